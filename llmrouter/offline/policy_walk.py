"""The policy's decisions for many rows and all operating points at once; the same as `LearnedPolicy` takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from llmrouter.offline.labels import Floats
from llmrouter.offline.policy_rows import PolicyRows
from llmrouter.routing.learned_policy import ladder, stage_name

__all__ = ["StageStanding", "Standings", "Walked", "values_of", "walk"]

Points: TypeAlias = Sequence[tuple[float, float]]
"""Margin and tradeoff of each."""
Fit: TypeAlias = Callable[[Floats, Floats, Floats], Floats]
_EDGE = 0.01


@dataclass(frozen=True, slots=True)
class StageStanding:
    """What is known of each row after a check."""

    quality: Floats
    """How likely the best answer is right;"""
    ahead: Floats
    """shape (n, heads): how likely those of the models not asked would be."""
    actual: Floats
    """What the best answer really scores."""
    giver: NDArray[np.intp]

    def filled(self, other: StageStanding, rows: NDArray[np.bool_]) -> StageStanding:
        return StageStanding(
            np.where(rows, other.quality, self.quality),
            np.where(rows[:, None], other.ahead, self.ahead),
            np.where(rows, other.actual, self.actual),
            np.where(rows, other.giver, self.giver),
        )

    @property
    def basis(self) -> Floats:
        return value_bases(np.column_stack([self.quality, self.ahead]))


@dataclass(frozen=True, slots=True)
class Standings:
    """Before any call, and after each check."""

    prompt: Floats
    """Shape (n, roles): predicted quality."""
    stages: Mapping[str, StageStanding]

    def filled(self, other: Standings, rows: NDArray[np.bool_]) -> Standings:
        """These, with the rows' values taken from the other."""
        return Standings(
            np.where(rows[:, None], other.prompt, self.prompt),
            {name: stage.filled(other.stages[name], rows) for name, stage in self.stages.items()},
        )

    def first_basis(self, rows: PolicyRows) -> Floats:
        kinds = rows.kind[:, None] == np.arange(len(rows.kinds))
        return np.column_stack([value_bases(self.prompt), kinds.astype(np.float64)])


@dataclass(frozen=True, slots=True)
class Walked:
    """Of each point and chosen row, shape (points, rows)."""

    quality: Floats
    role: NDArray[np.intp]
    """Whose answer was given, as a position in `PolicyRows.givers`."""
    calls: Mapping[str, Floats]
    """Role → 1 where it was called."""

    def cost(self, prices: Mapping[str, float]) -> Floats:
        """Of all calls together, with the price of each role's."""
        total: Floats = np.sum([called * prices[role] for role, called in self.calls.items()], axis=0)
        return total


def value_bases(probabilities: Floats) -> Floats:
    """`routing.policy_features.value_basis` of each row."""
    bounded = np.clip(probabilities, _EDGE, 1.0 - _EDGE)
    logits = np.log(bounded / (1.0 - bounded))
    columns = [np.ones(len(probabilities)), *probabilities.T, *logits.T]
    for at in range(probabilities.shape[1]):
        for other in range(at, probabilities.shape[1]):
            columns.append(probabilities[:, at] * probabilities[:, other])
            columns.append(logits[:, at] * logits[:, other])
    return np.column_stack(columns)


def values_of(
    rows: PolicyRows,
    standings: Standings,
    points: Points,
    costs: Mapping[str, float],
    chosen: NDArray[np.bool_],
    weights: Floats,
    fit: Fit,
) -> dict[str, Floats]:
    """What each way on is worth at each point, as linear in what is known before it; from the last stage backwards."""
    margins, tradeoffs = (np.array(each) for each in zip(*points, strict=True))
    values: dict[str, Floats] = {}
    gains: dict[str, Floats] = {}
    reach = chosen & (rows.peers > 0)
    limits = range(1, rows.peer_count + 1)
    if not reach.any():
        return values
    safe = rows.best
    prices = np.array([costs[role] for role in rows.roles])[safe]

    def routed(stage: StageStanding) -> Floats:
        worth: Floats = _of_reference(rows, stage, safe)[:, None] + margins - np.outer(prices, tradeoffs)
        return worth

    for peers in limits:
        name, later = stage_name(peers), stage_name(peers, large=True)
        stage = standings.stages[name]
        best = np.maximum(stage.quality[:, None], routed(stage))
        if later in standings.stages:
            there = reach & rows.stages[later].rows & (safe > 1)
            after = standings.stages[later]
            if there.any():
                worth = np.maximum(after.quality[:, None], routed(after))
                values[f"{name}_to_large"] = fit(stage.basis[there], worth[there], weights[there])
                on = stage.basis @ values[f"{name}_to_large"].T - tradeoffs * costs["large"]
                able = rows.stages[later].rows & (safe > 1)
                best = np.where(able[:, None], np.maximum(best, on), best)
        gains[name] = best
    first = standings.first_basis(rows)
    for limit in limits:
        there = reach & (rows.peers >= limit)
        for peers in reversed(ladder(limit)):
            name = stage_name(peers)
            worth = gains[name]
            if peers < limit:
                rest = f"{name}_to_{limit}_of_{limit}"
                values[rest] = fit(standings.stages[name].basis[there], gains[stage_name(limit)][there], weights[there])
                more = sum(costs[f"peer{number}"] for number in range(peers + 1, limit + 1))
                worth = np.maximum(worth, standings.stages[name].basis @ values[rest].T - tradeoffs * more)
            values[f"first_to_{peers}_of_{limit}"] = fit(first[there], worth[there], weights[there])
    return values


def walk(
    rows: PolicyRows,
    standings: Standings,
    values: Mapping[str, Floats],
    points: Points,
    costs: Mapping[str, float],
    chosen: NDArray[np.bool_],
    policy: str,
    novel: NDArray[np.bool_] | None = None,
) -> Walked:
    """Let every point decide every chosen row.

    Args:
        novel: rows that go to the reference because their prompts are unlike all that was learned from.
    """
    places = _Places.of(rows, standings, values, costs, policy, novel)
    at = np.flatnonzero(chosen)
    played = [_Turn(places, at, index, margin, tradeoff) for index, (margin, tradeoff) in enumerate(points)]
    for turn in played:
        turn.play()
    return Walked(
        quality=np.stack([turn.quality for turn in played]),
        role=np.stack([turn.role for turn in played]),
        calls={role: np.stack([turn.calls[role] for turn in played]) for role in rows.givers},
    )


@dataclass(frozen=True, slots=True)
class _Places:
    """What all points share."""

    rows: PolicyRows
    standings: Standings
    values: Mapping[str, Floats]
    costs: Mapping[str, float]
    always_checks: bool
    novel: NDArray[np.bool_]
    prices: Floats
    """Of a call of each main role."""
    safe: NDArray[np.intp]
    """Each row's reference."""
    first: Floats
    bases: Mapping[str, Floats]

    @classmethod
    def of(
        cls,
        rows: PolicyRows,
        standings: Standings,
        values: Mapping[str, Floats],
        costs: Mapping[str, float],
        policy: str,
        novel: NDArray[np.bool_] | None,
    ) -> _Places:
        return cls(
            rows,
            standings,
            values,
            costs,
            policy == "cascade",
            np.zeros(len(rows), dtype=bool) if novel is None else novel,
            np.array([costs[role] for role in rows.roles]),
            rows.best,
            standings.first_basis(rows),
            {name: stage.basis for name, stage in standings.stages.items()},
        )


class _Turn:
    """One operating point deciding some rows. `to` are positions among these, `at` the same rows among all."""

    def __init__(self, places: _Places, at: NDArray[np.intp], point: int, margin: float, tradeoff: float) -> None:
        self._places = places
        self._at = at
        self._point = point
        self._margin = margin
        self._tradeoff = tradeoff
        self.quality = np.zeros(len(at))
        self.role = np.zeros(len(at), dtype=np.intp)
        self.calls = {role: np.zeros(len(at)) for role in places.rows.givers}

    def play(self) -> None:
        places, at = self._places, self._at
        everything = np.arange(len(at))
        if self._point == 0:
            self._route(everything, places.safe[at])
            return
        worth = places.standings.prompt[at] - self._tradeoff * places.prices
        worth[everything, places.safe[at]] += self._margin
        worth[np.isnan(places.rows.targets[at])] = -np.inf
        role = np.argmax(worth, axis=1)
        first, tried = self._tries()
        novel = places.novel[at]
        checked = (first > 0) & ((tried > worth[everything, role]) | places.always_checks) & ~novel
        routed = ~checked
        self._route(everything[routed], np.where(novel, places.safe[at], role)[routed])
        for peers in np.unique(first[checked]).tolist():
            those = everything[checked & (first == peers)]
            self._call(those, "small", *_peers(0, peers))
            self._after(those, peers, checks=1)

    def _tries(self) -> tuple[NDArray[np.intp], Floats]:
        """Peers to ask first, 0 where none can be, and what that is worth."""
        places, at = self._places, self._at
        tried = np.full(len(at), -np.inf)
        first = np.zeros(len(at), dtype=np.intp)
        for limit in range(1, places.rows.peer_count + 1):
            there = np.flatnonzero((places.rows.peers[at] == limit) & (places.safe[at] > 0))
            for peers in ladder(limit):
                name = f"first_to_{peers}_of_{limit}"
                if name not in places.values or not len(there):
                    continue
                price = places.costs["small"] + self._cost(_peers(0, peers))
                found = places.first[at[there]] @ places.values[name][self._point] - self._tradeoff * price
                better = found > tried[there]
                tried[there[better]], first[there[better]] = found[better], peers
        return first, tried

    def _after(self, to: NDArray[np.intp], peers: int, *, checks: int) -> None:
        """Decide rows that have come to a stage without the large model's answer."""
        places, at = self._places, self._at[to]
        name = stage_name(peers)
        stage, basis, limits = places.standings.stages[name], places.bases[name][at], places.rows.peers[at]
        more, ask = np.full(len(at), -np.inf), np.full(len(at), -np.inf)
        for limit in np.unique(limits[limits > peers]).tolist() if checks == 1 else ():
            value = places.values[f"{name}_to_{limit}_of_{limit}"][self._point]
            worth = basis @ value - self._tradeoff * self._cost(_peers(peers, limit))
            more = np.where(limits == limit, worth, more)
        if f"{name}_to_large" in places.values:
            value = places.values[f"{name}_to_large"][self._point]
            able = (places.safe[at] > 1) & ~np.isnan(places.rows.targets[at, 1])
            ask = np.where(able, basis @ value - self._tradeoff * places.costs["large"], ask)
        move = np.argmax(np.stack([stage.quality[at], self._routed(stage, at), more, ask]), axis=0)
        self._accept(to[move == 0], stage)
        self._route(to[move == 1], places.safe[at[move == 1]])
        for limit in np.unique(limits[move == 2]).tolist():
            those = to[(move == 2) & (limits == limit)]
            self._call(those, *_peers(peers, limit))
            self._after(those, limit, checks=checks + 1)
        self._last(to[move == 3], peers)

    def _last(self, to: NDArray[np.intp], peers: int) -> None:
        name = stage_name(peers, large=True)
        if not len(to):
            return
        self._call(to, "large")
        stage, at = self._places.standings.stages[name], self._at[to]
        up = self._routed(stage, at) > stage.quality[at]
        self._accept(to[~up], stage)
        self._route(to[up], self._places.safe[at[up]])

    def _routed(self, stage: StageStanding, at: NDArray[np.intp]) -> Floats:
        """Worth of going to the reference."""
        found: Floats = _of_reference(self._places.rows, stage, self._places.safe)[at]
        return found + self._margin - self._tradeoff * self._places.prices[self._places.safe[at]]

    def _route(self, to: NDArray[np.intp], role: NDArray[np.intp]) -> None:
        rows = self._places.rows
        self.quality[to] = rows.targets[self._at[to], role]
        self.role[to] = role
        for number, name in enumerate(rows.roles):
            self._call(to[role == number], name)

    def _accept(self, to: NDArray[np.intp], stage: StageStanding) -> None:
        self.quality[to] = stage.actual[self._at[to]]
        self.role[to] = stage.giver[self._at[to]]

    def _call(self, to: NDArray[np.intp], *roles: str) -> None:
        for role in roles:
            self.calls[role][to] += 1.0

    def _cost(self, roles: Sequence[str]) -> float:
        return sum(self._places.costs[role] for role in roles)


def _peers(asked: int, wanted: int) -> tuple[str, ...]:
    return tuple(f"peer{number}" for number in range(asked + 1, wanted + 1))


def _of_reference(rows: PolicyRows, stage: StageStanding, safe: NDArray[np.intp]) -> Floats:
    """How likely each row's reference would be right."""
    head = np.clip(safe - (len(rows.roles) - stage.ahead.shape[1]), 0, None)
    found: Floats = stage.ahead[np.arange(len(rows)), head]
    return found
