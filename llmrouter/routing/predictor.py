"""What the prompt alone says about how well each role's model will do: linear tables and compiled trees.

The linear score of a role is the sum of the weights of the ask's words, of its runs of bytes and of its counts. Where
there are trees, they look at the counts and at the linear scores of the roles that have some, and line and trees are
averaged. Curves turn the scores into expected qualities (`offline.calibration`). The arrays (`head_…`) are written by
`offline.heads`, and what is computed here is what was computed when they were fitted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from llmrouter.errors import ArtefactError
from llmrouter.routing.ask import Ask
from llmrouter.routing.evidence import Prediction
from llmrouter.routing.features import CHAR_BITS, HAND, MOST_TERMS, WORD_BITS, Features, features_of, terms_of
from llmrouter.routing.trees import Trees
from llmrouter.types import value

__all__ = ["HEADS_VERSION", "Predictor", "Trained", "novelty_numbers"]

HEADS_VERSION = 1
"""Of the meaning of the arrays."""
MOST_DEVIATIONS = 5.0
"""Standard deviations that a count may lie from its mean; beyond, it is taken to lie there."""
_SHOWN = 8
_NOTICEABLE = 0.002


class Trained(Protocol):
    """The part of an artefact that the heads are read from."""

    @property
    def manifest(self) -> Mapping[str, Any]: ...

    @property
    def arrays(self) -> Mapping[str, NDArray[Any]]: ...


@value
class _Seen:
    """Scores of one ask before calibration, and the numbers that they came from."""

    raw: NDArray[np.float64]
    deviations: NDArray[np.float64]
    word_norm: float
    char_norm: float
    rarity: tuple[float, float]


@value
class _Curve:
    """A quality by a score: straight between evenly spaced points, and flat beyond them."""

    low: float
    high: float
    points: list[float]
    steps_per_score: float

    @classmethod
    def of(cls, row: list[float]) -> Self:
        low, high, *points = row
        return cls(low, high, points, (len(points) - 1) / (high - low))

    def read(self, score: float) -> float:
        place = (min(max(score, self.low), self.high) - self.low) * self.steps_per_score
        step = min(int(place), len(self.points) - 2)
        left = self.points[step]
        return left + (place - step) * (self.points[step + 1] - left)


class Predictor:
    """Predicts from the arrays of one artefact; stateless, any thread may ask."""

    def __init__(self, heads: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        self.roles = tuple(heads["roles"])
        self._reference = self.roles.index(heads["reference"])
        self._words = _table(arrays["head_words"], arrays["head_word_idf"])
        self._chars = _table(arrays["head_chars"], arrays["head_char_idf"])
        self._hand = _floats(arrays["head_hand"])
        self._means = _floats(arrays["head_hand_mean"])
        self._scales = _floats(arrays["head_hand_scale"])
        self._bias = _floats(arrays["head_bias"])
        self._tree_share = float(heads["tree_share"])
        self._tree_roles = np.array(
            [self.roles.index(role) for role in heads.get("tree_roles", self.roles)], dtype=np.intp
        )
        self._trees = None
        if len(arrays["head_tree_values"]):
            self._trees = Trees.of(
                arrays["head_tree_features"],
                arrays["head_tree_bounds"],
                arrays["head_tree_values"],
                arrays["head_tree_counts"],
            )
        self._curves = [_Curve.of(row) for row in _floats(arrays["head_curves"]).tolist()]
        self._whitening = _floats(arrays["head_novelty_axes"])
        self._centres = _floats(arrays["head_novelty_centres"])
        self._distances = arrays["head_novelty_distances"].tolist()

    @classmethod
    def of(cls, artefact: Trained) -> Self:
        """Read the heads of an artefact.

        Raises:
            ArtefactError: they are of another version, or the arrays do not fit together.
        """
        heads = artefact.manifest["heads"]
        if not isinstance(heads, Mapping):
            raise ArtefactError("the artefact's heads are not as they must be; train the artefact again")
        if heads.get("version") != HEADS_VERSION:
            raise ArtefactError(
                f"the artefact's heads have version {heads.get('version')!r}, this llmrouter reads {HEADS_VERSION}; "
                "train the artefact again"
            )
        roles = heads.get("roles")
        if not isinstance(roles, list) or not roles or not all(isinstance(role, str) for role in roles):
            raise ArtefactError("the artefact's heads name no roles; train the artefact again")
        try:
            _check(len(roles), len(heads.get("tree_roles", roles)), artefact.arrays)
            return cls(heads, artefact.arrays)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ArtefactError(f"the artefact's heads are not whole: {error}; train the artefact again") from error

    def predict(self, ask: Ask) -> Prediction:
        """The calibrated expectation of each role's score, and how strange the ask is."""
        features = features_of(ask)
        seen = self._see(features)
        return Prediction(dict(zip(self.roles, self._calibrated(seen.raw), strict=True)), self._novelty(seen))

    def raw_scores(self, features: Features) -> NDArray[np.float64]:
        """Shape (roles,): before calibration."""
        return self._see(features).raw

    def explain(self, ask: Ask) -> list[str]:
        """What moved the predictions away from those of a usual ask, in words, the strongest first.

        What the linear tables add is exact; the trees are left out, as is what runs of bytes add beyond whole words.
        """
        features = features_of(ask)
        seen = self._see(features)
        found = [*self._of_words(ask, seen), *self._of_counts(seen), *self._of_spelling(features, seen)]
        found.sort(key=lambda each: -float(np.abs(each[1]).max()))
        lines = [line for name, moved in found[:_SHOWN] if (line := self._told(name, moved))]
        novelty = self._novelty(seen)
        if novelty > 0.95:
            lines.append(f"unlike the training prompts: only {1 - novelty:.1%} of them were as unlike the others")
        return lines

    def _see(self, features: Features) -> _Seen:
        words, word_norm, word_rarity = _looked_up(self._words, features.words)
        chars, char_norm, char_rarity = _looked_up(self._chars, features.chars)
        deviations = (features.hand - self._means) / self._scales
        # np.clip takes three times as long for a short array.
        deviations = np.minimum(np.maximum(deviations, -MOST_DEVIATIONS), MOST_DEVIATIONS)
        raw = self._bias + words / word_norm + chars / char_norm + deviations @ self._hand
        if self._trees is not None:
            linear = raw.take(self._tree_roles)
            grown = self._trees.scores(np.concatenate((deviations, linear)))
            raw[self._tree_roles] = linear + self._tree_share * (grown - linear)
        return _Seen(raw, deviations, word_norm, char_norm, (word_rarity, char_rarity))

    def _calibrated(self, raw: NDArray[np.float64]) -> list[float]:
        """The reference's quality off its curve, and what it gains over each other role off that role's."""
        scores = raw.tolist()
        best = scores[self._reference]
        highest = self._curves[self._reference].read(best)
        return [
            min(max(highest if at == self._reference else highest - curve.read(best - score), 0.0), 1.0)
            for at, (curve, score) in enumerate(zip(self._curves, scores, strict=True))
        ]

    def _novelty(self, seen: _Seen) -> float:
        place = novelty_numbers(seen.deviations, *seen.rarity) @ self._whitening[:-1] + self._whitening[-1]
        apart = self._centres - place
        apart *= apart
        nearest = float(apart.sum(axis=1).min())
        return bisect_left(self._distances, nearest) / len(self._distances)

    def _of_words(self, ask: Ask, seen: _Seen) -> list[tuple[str, NDArray[np.float64]]]:
        terms = terms_of(ask)
        moved = self._words[terms.buckets, : len(self.roles)] / seen.word_norm
        first: dict[int, int] = {}
        for at, bucket in enumerate(terms.buckets.tolist()):
            first.setdefault(bucket, at)
        return [(f'"{terms.texts[at]}"', moved[at]) for at in first.values()]

    def _of_counts(self, seen: _Seen) -> list[tuple[str, NDArray[np.float64]]]:
        moved = seen.deviations[:, None] * self._hand
        sides = ("few or no", "many")
        return [
            (_IN_WORDS.get(name, f"{sides[int(seen.deviations[at] > 0)]} {name.replace('_', ' ')}"), moved[at])
            for at, name in enumerate(HAND)
        ]

    def _of_spelling(self, features: Features, seen: _Seen) -> list[tuple[str, NDArray[np.float64]]]:
        moved = self._chars.take(features.chars, axis=0)[:, : len(self.roles)].sum(axis=0) / seen.char_norm
        return [("parts of words and marks, taken together,", np.asarray(moved))]

    def _told(self, name: str, moved: NDArray[np.float64]) -> str:
        parts = [
            f"{'raises' if by > 0 else 'lowers'} {role} by {abs(by):.3f}"
            for role, by in zip(self.roles, moved.tolist(), strict=True)
            if abs(by) >= _NOTICEABLE
        ]
        return f"{name} {', '.join(parts)}" if parts else ""


_IN_WORDS = {
    "length": "its length",
    "word_length": "the length of its words",
    "last_line": "the length of its last line",
    "last_line_share": "the share of its last line",
    "other_script": "letters other than English ones",
    "distinct_words": "how seldom words come again",
    "code": "signs of code",
    "cap": "the cap on the answer",
    "turns": "the turns before it",
    "history": "what was said before",
    "indented": "indented lines",
}


def novelty_numbers(deviations: NDArray[np.float64], words: float, chars: float) -> NDArray[np.float64]:
    """What the strangeness of an ask is measured on: its counts, and how rare its words and runs of bytes are."""
    numbers = np.empty(len(deviations) + 2)
    numbers[:-2] = deviations
    numbers[-2], numbers[-1] = words, chars
    return numbers


def _looked_up(table: NDArray[np.float64], buckets: NDArray[np.intp]) -> tuple[NDArray[np.float64], float, float]:
    """The summed weights of some buckets, the length of their vector, and how rare they are on average."""
    count = len(buckets)
    if not count:
        return np.zeros(table.shape[1] - 2), 1.0, 0.0
    total = _ONES[:count] @ table.take(buckets, axis=0)
    return total[:-2], float(total[-2]) ** 0.5, float(total[-1]) / count


_ONES = np.ones(MOST_TERMS)


def _table(weights: NDArray[Any], idf: NDArray[Any]) -> NDArray[np.float64]:
    """A row a bucket: its weights times its rarity, and its rarity squared and plain."""
    rarity = _floats(idf)[:, None]
    return np.ascontiguousarray(np.hstack((_floats(weights) * rarity, rarity**2, rarity)))


def _floats(array: NDArray[Any]) -> NDArray[np.float64]:
    return array.astype(np.float64)


def _check(roles: int, tree_roles: int, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Raises `ValueError` unless the arrays have the shapes that go together."""
    hand = len(HAND)
    shapes = {
        "head_words": (1 << WORD_BITS, roles),
        "head_chars": (1 << CHAR_BITS, roles),
        "head_word_idf": (1 << WORD_BITS,),
        "head_char_idf": (1 << CHAR_BITS,),
        "head_hand": (hand, roles),
        "head_hand_mean": (hand,),
        "head_hand_scale": (hand,),
        "head_bias": (roles,),
    }
    for name, shape in shapes.items():
        if arrays[name].shape != shape:
            raise ValueError(f"{name} has the shape {arrays[name].shape} instead of {shape}")
    curves, axes, centres = arrays["head_curves"], arrays["head_novelty_axes"], arrays["head_novelty_centres"]
    if curves.ndim != 2 or len(curves) != roles or curves.shape[1] < 4 or not (curves[:, 1] > curves[:, 0]).all():
        raise ValueError("head_curves is no table of curves")
    if not (arrays["head_hand_scale"] > 0).all() or not (arrays["head_word_idf"] > 0).all():
        raise ValueError("a scale is not above 0")
    if axes.ndim != 2 or len(axes) != hand + 3 or centres.ndim != 2 or centres.shape[1] != axes.shape[1]:
        raise ValueError("the arrays of novelty do not fit together")
    if not len(centres) or not len(arrays["head_novelty_distances"]):
        raise ValueError("the arrays of novelty are empty")
    if len(arrays["head_tree_values"]):
        looked_at = arrays["head_tree_features"]
        if len(arrays["head_tree_counts"]) != tree_roles or looked_at.min() < 0 or looked_at.max() >= hand + tree_roles:
            raise ValueError("head_tree_features looks at numbers that there are not")
