"""Labels as the numbers that a policy is fitted on: one row a prompt, for each stage the features of its answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from llmrouter.offline.labels import Floats
from llmrouter.offline.replay import Replays
from llmrouter.routing.learned_policy import giver, stage_name
from llmrouter.routing.policy_features import prompt_features, slots_of, stage_features, supporters

__all__ = ["PolicyRows", "StageRows"]


@dataclass(frozen=True, slots=True)
class StageRows:
    """The answers after one kind of check."""

    peers: int
    large: bool
    rows: NDArray[np.bool_]
    """Rows that can come to this stage."""
    features: Floats
    """Shape (n, features); 0 for other rows."""
    answer_row: NDArray[np.intp]
    """Row of each different answer,"""
    answer_features: Floats
    answer_quality: Floats
    """its score,"""
    answer_giver: NDArray[np.intp]
    """and position in `PolicyRows.givers` of the role whose answer is given for it."""
    unusable_quality: Floats
    """Shape (n,): score of what is given where no answer is usable."""

    def targets(self, rows: PolicyRows) -> Floats:
        """Quality of the models not asked yet, as heads: those above small, or after the large one the reference."""
        return rows.targets[:, -1:] if self.large else rows.targets[:, 1:]


@dataclass(frozen=True, slots=True)
class PolicyRows:
    """All rows."""

    roles: tuple[str, ...]
    """The main roles, the reference last."""
    prompt_roles: tuple[str, ...]
    kinds: tuple[str, ...]
    compared: tuple[str, ...]
    """Kinds of which there is enough agreement to learn from."""
    kind: NDArray[np.intp]
    """Position in `kinds`; its length for another."""
    prompt: Floats
    targets: Floats
    """Shape (n, roles): quality; NaN where a row has none."""
    peers: NDArray[np.intp]
    """Peers that may be asked in all."""
    stages: Mapping[str, StageRows] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def peer_count(self) -> int:
        return int(self.peers.max(initial=0))

    @property
    def givers(self) -> tuple[str, ...]:
        """Roles whose answer may be given."""
        return (*self.roles, *(f"peer{number}" for number in range(1, self.peer_count + 1)))

    @property
    def best(self) -> NDArray[np.intp]:
        """Position of each row's reference: the best role that it has."""
        there = ~np.isnan(self.targets)
        found: NDArray[np.intp] = there.shape[1] - 1 - np.argmax(there[:, ::-1], axis=1)
        return found

    @property
    def reference_quality(self) -> Floats:
        found: Floats = self.targets[np.arange(len(self)), self.best]
        return found

    @classmethod
    def of(
        cls,
        replays: Replays,
        promised: Sequence[Mapping[str, float]],
        *,
        roles: tuple[str, ...],
        prompt_roles: tuple[str, ...],
        kinds: tuple[str, ...],
        compared: tuple[str, ...],
        most_peers: int,
    ) -> PolicyRows:
        """Read labels and predictions.

        Args:
            promised: of each row, role → quality predicted from the prompt.
            most_peers: that may be asked about any row.
        """
        fit = np.array([kind in compared for kind in replays.kinds], dtype=bool)
        peers = np.where(fit, np.minimum(replays.peers, most_peers), 0)
        unknown = np.full(len(replays), np.nan)
        columns = replays.labels.roles
        rows = cls(
            roles=roles,
            prompt_roles=prompt_roles,
            kinds=kinds,
            compared=compared,
            kind=np.array([kinds.index(k) if k in kinds else len(kinds) for k in replays.kinds], dtype=np.intp),
            prompt=np.array([prompt_features(each, prompt_roles) for each in promised]),
            targets=np.column_stack([columns[role].quality if role in columns else unknown for role in roles]),
            peers=peers,
        )
        stages = {}
        for number in range(1, rows.peer_count + 1):
            for large in (False, True) if len(roles) > 2 else (False,):
                stages[stage_name(number, large=large)] = _stage(rows, replays, promised, number, large=large)
        return replace(rows, stages=stages)


def _stage(
    rows: PolicyRows, replays: Replays, promised: Sequence[Mapping[str, float]], peers: int, *, large: bool
) -> StageRows:
    voters = ("small", *(f"peer{number}" for number in range(1, peers + 1)), *(("large",) if large else ()))
    there = rows.peers >= peers
    if large:
        there &= ~np.isnan(rows.targets[:, 1])
    features: list[list[float]] = []
    answers: list[tuple[int, list[float], float, int]] = []
    unusable = np.zeros(len(rows))
    for row in np.flatnonzero(there).tolist():
        slots = slots_of(replays.evidence(row, voters), voters)
        prompt = rows.prompt[row].tolist()
        trust = prompt_features(promised[row], voters)
        features.append(stage_features(slots, prompt))
        unusable[row] = replays.quality("small", row)
        for group in sorted({vote for vote in slots.votes if vote >= 0}):
            role = voters[giver(slots, group, voters)]
            found = supporters(slots, group, trust, prompt)
            answers.append((row, found, replays.quality(role, row), rows.givers.index(role)))
    width = len(features[0]) if features else 0
    filled = np.zeros((len(rows), width))
    filled[there] = np.array(features).reshape(-1, width)
    return StageRows(
        peers=peers,
        large=large,
        rows=there,
        features=filled,
        answer_row=np.array([each[0] for each in answers], dtype=np.intp),
        answer_features=np.array([each[1] for each in answers]).reshape(len(answers), -1 if answers else 0),
        answer_quality=np.array([each[2] for each in answers], dtype=np.float64),
        answer_giver=np.array([each[3] for each in answers], dtype=np.intp),
        unusable_quality=unusable,
    )
