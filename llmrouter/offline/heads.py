"""Trains the quality heads that `routing.predictor` serves: one for each role, on the features that serving reads.

A head is linear in the ask's words, runs of bytes and counts. Its weights are the mean of two fits: a ridge regression
on everything, and one on the leading directions of the texts alone (principal components), which says more where labels
are few. Where there are enough labels, the line of each main role is averaged with small trees on the counts and on the
linear scores of the main roles; for their training, those scores are made out of fold. Everything is stored before it
is used: scores that are reported come from the arrays as they are written.

Every row gets a prediction from heads that have not seen its group (cross-fitting), and calibration is fitted on those;
a row's calibrated prediction comes from a calibration that has not seen its fold. So small sets are used whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrouter.errors import UsageError
from llmrouter.offline.calibrated import reliability
from llmrouter.offline.calibration import calibrate, fit_curves, reference_of
from llmrouter.offline.curves import Pair, measure
from llmrouter.offline.labels import Floats, LabelSet
from llmrouter.offline.roles import MAIN_ROLES
from llmrouter.routing.ask import Ask
from llmrouter.routing.features import CHAR_BITS, HAND, WORD_BITS, features_of
from llmrouter.routing.predictor import HEADS_VERSION, MOST_DEVIATIONS
from llmrouter.routing.trees import Trees

__all__ = [
    "FittedHeads",
    "HeadSettings",
    "Matrix",
    "cross_fit",
    "fit_heads",
    "folds_of",
    "read_matrix",
    "score",
    "train_heads",
]

_AROUND = ("cap", "tools", "turns", "history")
"""What many requests have and labels seldom do: where all labels lack it, it makes no ask a strange one. A cap never
does, since many clients always set the same."""
_NO_SPREAD = 1e-6
_ROUNDS = 12
_EVERYTHING = 1e300
"""A bound that every number stays below."""
Progress = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and how much there is to do."""


@dataclass(frozen=True, slots=True)
class HeadSettings:
    """What a fit is made with."""

    folds: int = 5
    inner_folds: int = 3
    penalty: float = 10.0
    """Of the squared weights in the fit on everything."""
    rank: int = 32
    """Directions of the other fit; fewer where there are few rows."""
    rank_penalty: float = 1.0
    few: float = 1000.0
    """Rows up to which the second fit alone counts; with n rows, it counts for this number divided by n, and with five
    times as many it is left out."""
    chars: float = 0.4
    """What the runs of bytes count for beside the words."""
    hand: float = 0.03
    """What a standard deviation of a count is worth beside the text's unit vector."""
    trees: int = 120
    """For each main role; none below `trees_from` labels."""
    tree_shares: tuple[float, ...] = (0.0, 0.15, 0.3, 0.5)
    """What the trees may count for, the line counting for the rest; what sorts rows best out of fold is taken."""
    trees_from: int = 2000
    depth: int = 3
    rate: float = 0.05
    leaf: int = 40
    """Rows that a leaf stands on, at least."""
    clusters: int = 24
    """Centres that the strangeness of an ask is measured from."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """The features of many asks."""

    words: Any
    """Sparse, shape (n, 2**WORD_BITS): 1 where the ask has the bucket."""
    chars: Any
    hand: Floats
    """Shape (n, len(HAND))."""

    def __len__(self) -> int:
        return len(self.hand)

    def take(self, rows: NDArray[np.intp]) -> Matrix:
        return Matrix(self.words[rows], self.chars[rows], self.hand[rows])


@dataclass(frozen=True, slots=True)
class FittedHeads:
    """Trained heads, and what they predict of rows that they were not trained on."""

    roles: tuple[str, ...]
    arrays: Mapping[str, NDArray[Any]]
    manifest: Mapping[str, Any]
    """The artefact's `heads`."""
    raw: Floats
    """Shape (n, roles): scores of each row before calibration, out of fold."""
    quality: Floats
    """Shape (n, roles): calibrated likewise; a prediction also for rows without a label."""
    novelty: Floats
    """Shape (n,): from 0 to 1, out of fold."""


def train_heads(
    labels: LabelSet, *, seed: int = 0, settings: HeadSettings | None = None, progress: Progress | None = None
) -> FittedHeads:
    """Train a head for every role of the labels.

    Raises:
        UsageError: scikit-learn is missing, or there are fewer groups than folds.
    """
    settings = settings or HeadSettings()
    roles = tuple(labels.roles)
    targets = np.column_stack([labels.roles[role].quality for role in roles])
    matrix = read_matrix(labels.asks, progress)
    folds = folds_of(labels.groups, settings.folds, seed)
    reference = reference_of(roles)
    main = [at for at, role in enumerate(roles) if role in MAIN_ROLES]
    linear, grown, apart = cross_fit(matrix, targets, main, labels.groups, folds, settings, seed, progress)
    share = _best_share(linear, grown, targets, main, reference, settings)
    raw = linear + share * (grown - linear)
    arrays = fit_heads(matrix, targets, main if share else (), labels.groups, settings, seed)
    if progress is not None:
        progress("training", settings.folds + 1, settings.folds + 1)
    curves = fit_curves(raw, targets, reference)
    distances = np.sort(apart)[:: max(len(apart) // 512, 1)]
    arrays = {**arrays, "head_curves": curves, "head_novelty_distances": distances.astype(np.float64)}
    quality = _calibrated_apart(raw, targets, folds, reference)
    manifest = {
        "version": HEADS_VERSION,
        "roles": list(roles),
        "reference": roles[reference],
        "folds": settings.folds,
        "trees": len(arrays["head_tree_values"]),
        "tree_share": share,
        "tree_roles": [roles[at] for at in main] if share else [],
        "calibration_error": {role: round(_error(quality[:, at], targets[:, at]), 6) for at, role in enumerate(roles)},
    }
    novelty = np.searchsorted(distances, apart) / len(distances)
    return FittedHeads(roles, arrays, manifest, raw, quality, novelty)


def read_matrix(asks: Sequence[Ask], progress: Progress | None = None) -> Matrix:
    """Read the features of asks with the code that serves."""
    words, chars, hand = [], [], []
    for at, ask in enumerate(asks):
        found = features_of(ask)
        words.append(found.words)
        chars.append(found.chars)
        hand.append(found.hand)
        if progress is not None and (at + 1) % 500 == 0:
            progress("reading asks", at + 1, len(asks))
    return Matrix(_sparse(words, 1 << WORD_BITS), _sparse(chars, 1 << CHAR_BITS), np.array(hand))


def folds_of(groups: Sequence[str], count: int, seed: int) -> NDArray[np.intp]:
    """The fold of each row; rows of a group are in one.

    Raises:
        UsageError: there are fewer groups than folds.
    """
    names = sorted(set(groups))
    if len(names) < count:
        raise UsageError(f"the labels are of {len(names)} different questions; at least {count} are needed")
    order = np.random.default_rng(seed).permutation(len(names))
    fold = {name: int(order[at]) % count for at, name in enumerate(names)}
    return np.array([fold[group] for group in groups], dtype=np.intp)


def cross_fit(
    matrix: Matrix,
    targets: Floats,
    main: Sequence[int],
    groups: Sequence[str],
    folds: NDArray[np.intp],
    settings: HeadSettings,
    seed: int,
    progress: Progress | None = None,
) -> tuple[Floats, Floats, Floats]:
    """Linear scores, the trees' (or the same again) and the distance of each row, by heads trained without its fold."""
    linear, grown, apart = np.zeros(targets.shape), np.zeros(targets.shape), np.zeros(len(targets))
    count = int(folds.max()) + 1
    for fold in range(count):
        inside, outside = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
        inner = [groups[row] for row in inside.tolist()]
        arrays = fit_heads(matrix.take(inside), targets[inside], main, inner, settings, seed)
        linear[outside], grown[outside], apart[outside] = _parts(arrays, matrix.take(outside), main)
        if progress is not None:
            progress("training", fold + 1, count + 1)
    return linear, grown, apart


def fit_heads(
    matrix: Matrix, targets: Floats, main: Sequence[int], groups: Sequence[str], settings: HeadSettings, seed: int
) -> dict[str, NDArray[Any]]:
    """The arrays of heads fitted to all of these rows, but for calibration.

    Args:
        main: positions of the roles that get trees, where there are enough labels of all of them.

    Raises:
        UsageError: scikit-learn is missing.
    """
    mean, scale = matrix.hand.mean(axis=0), matrix.hand.std(axis=0)
    scale = np.where(scale > _NO_SPREAD, scale, 1.0)
    arrays: dict[str, NDArray[Any]] = {
        "head_word_idf": _idf(matrix.words),
        "head_char_idf": _idf(matrix.chars),
        "head_hand_mean": mean,
        "head_hand_scale": scale,
    }
    deviations = _deviations(arrays, matrix)
    design = _design(arrays, matrix, deviations, settings)
    weights, bias = _linear(design, targets, settings, seed)
    words, chars = 1 << WORD_BITS, 1 << CHAR_BITS
    arrays |= {
        "head_words": weights[:words].astype(np.float16),
        "head_chars": (weights[words : words + chars] * settings.chars).astype(np.float16),
        "head_hand": weights[words + chars :] * settings.hand,
        "head_bias": bias,
    }
    judged = targets[:, list(main)]
    if len(main) and settings.trees and np.isfinite(judged).sum(axis=0).min() >= settings.trees_from:
        linear = _out_of_fold(design, judged, groups, settings, seed)
        arrays |= _trees(np.hstack((deviations, linear)), judged, settings, seed)
    else:
        arrays |= _no_trees(settings.depth)
    return arrays | _novelty(arrays, matrix, deviations, settings, seed)


def score(arrays: Mapping[str, NDArray[Any]], manifest: Mapping[str, Any], matrix: Matrix) -> Floats:
    """Scores before calibration, as the predictor computes them one by one."""
    main = [manifest["roles"].index(role) for role in manifest["tree_roles"]]
    linear, grown, _ = _parts(arrays, matrix, main)
    return linear + float(manifest["tree_share"]) * (grown - linear)


def _parts(arrays: Mapping[str, NDArray[Any]], matrix: Matrix, main: Sequence[int]) -> tuple[Floats, Floats, Floats]:
    """Linear scores, the trees' scores (without trees, the linear ones again), and distances from the training rows."""
    deviations = _deviations(arrays, matrix)
    linear = _linear_scores(arrays, matrix, deviations)
    grown = linear.copy()
    if len(arrays["head_tree_values"]):
        trees = Trees.of(*(arrays[f"head_tree_{name}"] for name in ("features", "bounds", "values", "counts")))
        grown[:, list(main)] = [trees.scores(row) for row in np.hstack((deviations, linear[:, list(main)]))]
    return linear, grown, _distances(arrays, matrix, deviations)


def _best_share(
    linear: Floats, grown: Floats, targets: Floats, main: Sequence[int], reference: int, settings: HeadSettings
) -> float:
    """How much the trees should count: as much as sorts the rows best by what the reference gains over the others."""
    others = [at for at in main if at != reference]
    if not others or not (grown != linear).any():
        return 0.0

    def sorted_by(share: float) -> float:
        raw = linear + share * (grown - linear)
        return sum(_area(raw[:, reference] - raw[:, at], targets[:, at], targets[:, reference]) for at in others)

    return max(settings.tree_shares, key=sorted_by)


def _area(score: Floats, weak: Floats, strong: Floats) -> float:
    """APGR, or that of chance where the strong model gains nothing."""
    rows = np.isfinite(weak) & np.isfinite(strong)
    found = measure(score[rows], Pair(weak[rows], strong[rows])).apgr
    return 0.5 if found is None else found


def _out_of_fold(design: Any, targets: Floats, groups: Sequence[str], settings: HeadSettings, seed: int) -> Floats:
    """The linear scores of each row from fits that have not seen its group."""
    folds = folds_of(groups, settings.inner_folds, seed + 1)
    found = np.zeros(targets.shape)
    for fold in range(settings.inner_folds):
        inside, outside = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
        weights, bias = _linear(design[inside], targets[inside], settings, seed)
        found[outside] = design[outside] @ weights + bias
    return found


def _linear_scores(arrays: Mapping[str, NDArray[Any]], matrix: Matrix, deviations: Floats) -> Floats:
    found = arrays["head_bias"] + deviations @ arrays["head_hand"]
    for name, table in (("word", matrix.words), ("char", matrix.chars)):
        weighted = _weighted(table, arrays[f"head_{name}_idf"])
        found = found + weighted @ arrays[f"head_{name}s"].astype(np.float64)
    return np.asarray(found)


def _design(arrays: Mapping[str, NDArray[Any]], matrix: Matrix, deviations: Floats, settings: HeadSettings) -> Any:
    import scipy.sparse as sparse

    parts = [
        _weighted(matrix.words, arrays["head_word_idf"]),
        _weighted(matrix.chars, arrays["head_char_idf"]) * settings.chars,
        sparse.csr_matrix(deviations * settings.hand),
    ]
    return sparse.hstack(parts).tocsr()


def _linear(design: Any, targets: Floats, settings: HeadSettings, seed: int) -> tuple[Floats, Floats]:
    """Weights of shape (columns, roles) and the bias; roles that are labelled on the same rows are fitted at once."""
    weights = np.zeros((design.shape[1], targets.shape[1]))
    bias = np.full(targets.shape[1], 0.5)
    known = np.isfinite(targets)
    patterns, pattern_of = np.unique(known.T, axis=0, return_inverse=True)
    for number, pattern in enumerate(patterns):
        roles = np.flatnonzero(pattern_of == number)
        rows = np.flatnonzero(pattern)
        if len(rows) < 2:
            continue
        found, middle = _two_fits(design[rows], targets[np.ix_(rows, roles)], settings, seed)
        weights[:, roles], bias[roles] = found, middle
    return weights, bias


def _two_fits(design: Any, targets: Floats, settings: HeadSettings, seed: int) -> tuple[Floats, Floats]:
    columns = design.shape[1]
    ridge, svd = _sklearn()
    used = np.flatnonzero(design.getnnz(axis=0))
    design = design[:, used]
    share = min(1.0, settings.few / len(targets)) if len(targets) < 5 * settings.few else 0.0
    found = np.zeros((targets.shape[1], len(used)))
    if share > 0.0:
        rank = max(2, min(settings.rank, len(targets) // 12, len(used) - 1))
        _, _, axes = svd(design, rank, random_state=seed, n_iter=2)
        low = ridge(alpha=settings.rank_penalty).fit(design @ axes.T, targets)
        found += share * (low.coef_.reshape(targets.shape[1], -1) @ axes)
    if share < 1.0:
        full = ridge(alpha=settings.penalty, solver="sparse_cg", tol=1e-4, max_iter=300).fit(design, targets)
        found += (1.0 - share) * full.coef_.reshape(targets.shape[1], -1)
    weights = np.zeros((columns, targets.shape[1]))
    weights[used] = found.T
    return weights, np.asarray(targets.mean(axis=0) - np.asarray(design.mean(axis=0)).ravel() @ found.T)


def _no_trees(depth: int) -> dict[str, NDArray[Any]]:
    return {
        "head_tree_features": np.zeros((0, (1 << depth) - 1), dtype=np.int16),
        "head_tree_bounds": np.zeros((0, (1 << depth) - 1)),
        "head_tree_values": np.zeros((0, 1 << depth)),
        "head_tree_counts": np.zeros(0, dtype=np.int32),
    }


def _trees(numbers: Floats, targets: Floats, settings: HeadSettings, seed: int) -> dict[str, NDArray[Any]]:
    """Trees for each role on these numbers of each row."""
    from sklearn.ensemble import GradientBoostingRegressor

    found = []
    for role in range(targets.shape[1]):
        rows = np.isfinite(targets[:, role])
        boosted = GradientBoostingRegressor(
            n_estimators=settings.trees,
            learning_rate=settings.rate,
            max_depth=settings.depth,
            min_samples_leaf=settings.leaf,
            subsample=0.5,
            max_features=0.25,
            random_state=seed,
        ).fit(numbers[rows], targets[rows, role])
        start = float(targets[rows, role].mean()) / settings.trees
        found += [compiled(each.tree_, settings.depth, settings.rate, start) for each in boosted.estimators_[:, 0]]
    return {
        "head_tree_features": np.array([each[0] for each in found], dtype=np.int16),
        "head_tree_bounds": np.array([each[1] for each in found]),
        "head_tree_values": np.array([each[2] for each in found]),
        "head_tree_counts": np.full(targets.shape[1], settings.trees, dtype=np.int32),
    }


def compiled(tree: Any, depth: int, rate: float, start: float) -> tuple[list[int], list[float], list[float]]:
    """A tree of scikit-learn as a complete tree: each node's feature and bound, and each leaf's value.

    Args:
        start: added to every leaf, so that all trees together begin where boosting began.
    """
    features = [0] * ((1 << depth) - 1)
    bounds = [_EVERYTHING] * len(features)
    values = [0.0] * (1 << depth)

    def place(node: int, at: int) -> None:
        leaf = tree.children_left[node] < 0
        if at >= len(features):
            values[at - len(features)] = start + rate * float(tree.value[node].ravel()[0])
            return
        if not leaf:
            features[at], bounds[at] = int(tree.feature[node]), float(tree.threshold[node])
        place(node if leaf else tree.children_left[node], 2 * at + 1)
        place(node if leaf else tree.children_right[node], 2 * at + 2)

    place(0, 0)
    return features, bounds, values


def _novelty(
    arrays: Mapping[str, NDArray[Any]], matrix: Matrix, deviations: Floats, settings: HeadSettings, seed: int
) -> dict[str, NDArray[Any]]:
    """Centres of the training asks in the space in which their strangeness is measured."""
    numbers = _novelty_rows(arrays, matrix, deviations)
    middle = numbers.mean(axis=0)
    spread, axes = np.linalg.eigh(np.cov(numbers.T) + 0.05 * np.eye(numbers.shape[1]))
    axes = axes / np.sqrt(spread)
    same = matrix.hand.std(axis=0) <= _NO_SPREAD
    for name in _AROUND:
        if same[HAND.index(name)] or name == "cap":
            axes[HAND.index(name)] = 0.0
    whitening = np.vstack((axes, -middle @ axes))
    places = numbers @ axes + whitening[-1]
    centres = _centres(places, max(1, min(settings.clusters, len(places) // 20)), seed)
    return {"head_novelty_axes": whitening, "head_novelty_centres": centres}


def _centres(places: Floats, count: int, seed: int) -> Floats:
    """Lloyd's k-means from distinct places; a centre that loses all its places stays where it is."""
    distinct = np.unique(places, axis=0)
    rng = np.random.default_rng(seed)
    centres = distinct[rng.permutation(len(distinct))[:count]]
    for _ in range(_ROUNDS):
        nearest = np.argmin([((places - centre) ** 2).sum(axis=1) for centre in centres], axis=0)
        centres = np.stack(
            [
                places[nearest == number].mean(axis=0) if (nearest == number).any() else centre
                for number, centre in enumerate(centres)
            ]
        )
    return centres


def _novelty_rows(arrays: Mapping[str, NDArray[Any]], matrix: Matrix, deviations: Floats) -> Floats:
    columns = [deviations]
    for name, table in (("word", matrix.words), ("char", matrix.chars)):
        counts = np.maximum(np.diff(table.indptr), 1)
        columns.append(((table @ arrays[f"head_{name}_idf"].astype(np.float64)) / counts)[:, None])
    return np.hstack(columns)


def _distances(arrays: Mapping[str, NDArray[Any]], matrix: Matrix, deviations: Floats) -> Floats:
    whitening, centres = arrays["head_novelty_axes"], arrays["head_novelty_centres"]
    places = _novelty_rows(arrays, matrix, deviations) @ whitening[:-1] + whitening[-1]
    return np.asarray(np.min([((places - centre) ** 2).sum(axis=1) for centre in centres], axis=0))


def _error(quality: Floats, target: Floats) -> float:
    found = reliability(quality, target)
    return found.error if found is not None else 0.0


def _calibrated_apart(raw: Floats, targets: Floats, folds: NDArray[np.intp], reference: int) -> Floats:
    """Each fold's scores through curves that were fitted to the other folds."""
    quality = np.zeros(raw.shape)
    for fold in range(int(folds.max()) + 1):
        inside, outside = folds != fold, folds == fold
        quality[outside] = calibrate(fit_curves(raw[inside], targets[inside], reference), raw[outside], reference)
    return quality


def _deviations(arrays: Mapping[str, NDArray[Any]], matrix: Matrix) -> Floats:
    found = (matrix.hand - arrays["head_hand_mean"]) / arrays["head_hand_scale"]
    return np.asarray(np.clip(found, -MOST_DEVIATIONS, MOST_DEVIATIONS))


def _idf(table: Any) -> NDArray[np.float16]:
    """How rare each bucket is among these rows, from 1 for one that all have."""
    count = np.asarray(table.sum(axis=0)).ravel()
    return np.asarray(np.log((1.0 + table.shape[0]) / (1.0 + count)) + 1.0).astype(np.float16)


def _weighted(table: Any, idf: NDArray[Any]) -> Any:
    """Rows of unit length, rare buckets weighing more."""
    weighted = table.multiply(idf.astype(np.float64)).tocsr()
    length = np.sqrt(np.asarray(weighted.multiply(weighted).sum(axis=1)).ravel())
    weighted.data /= np.repeat(np.where(length > 0, length, 1.0), np.diff(weighted.indptr))
    return weighted


def _sparse(rows: Sequence[NDArray[np.intp]], columns: int) -> Any:
    import scipy.sparse as sparse

    ends = np.concatenate(([0], np.cumsum([len(row) for row in rows])))
    places = np.concatenate(rows) if rows else np.zeros(0, dtype=np.intp)
    table = sparse.csr_matrix((np.ones(len(places)), places, ends), shape=(len(rows), columns))
    table.sort_indices()
    return table


def _sklearn() -> tuple[Any, Any]:
    try:
        from sklearn.linear_model import Ridge
        from sklearn.utils.extmath import randomized_svd
    except ImportError as error:
        raise UsageError("training needs scikit-learn: pip install 'llmrouter[train]'") from error
    return Ridge, randomized_svd
