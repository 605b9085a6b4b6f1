"""The tables of a policy, as they are fitted and as an artefact keeps them, applied to many rows at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrouter.offline.labels import Floats
from llmrouter.offline.logistic import KindTable, predict_kind_table
from llmrouter.offline.policy_rows import PolicyRows, StageRows
from llmrouter.offline.policy_walk import StageStanding, Standings

__all__ = ["StageTables", "arrays_of", "standings_of", "tables_of"]


@dataclass(frozen=True, slots=True)
class StageTables:
    ahead: KindTable
    """Heads: whether the models not asked yet would be right."""
    answer: KindTable | None = None
    """One head: whether an answer that was given is right."""


def standings_of(rows: PolicyRows, tables: Mapping[str, StageTables], chosen: NDArray[np.bool_]) -> Standings:
    """What the tables say of the chosen rows; the others are left at 0."""
    prompt = np.zeros(rows.targets.shape)
    prompt[chosen] = predict_kind_table(tables["prompt"].ahead, rows.prompt[chosen], rows.kind[chosen])
    return Standings(prompt, {name: _standing(rows, each, tables[name], chosen) for name, each in rows.stages.items()})


def arrays_of(tables: Mapping[str, StageTables], values: Mapping[str, Floats]) -> dict[str, Floats]:
    """As an artefact keeps them; all names begin with `policy_`."""
    arrays = {f"policy_{name}": each for name, each in values.items()}
    for name, table in tables.items():
        arrays[f"policy_{name}"], arrays[f"policy_{name}_means"] = table.ahead.weights, table.ahead.means
        if table.answer is not None:
            arrays[f"policy_{name}_answer"] = table.answer.weights
            arrays[f"policy_{name}_answer_means"] = table.answer.means
    return {name: np.ascontiguousarray(array, dtype="<f8") for name, array in arrays.items()}


def tables_of(
    parameters: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
) -> tuple[dict[str, StageTables], dict[str, Floats]]:
    """Tables and values, as `arrays_of` was given them."""

    def table(name: str) -> KindTable:
        return KindTable(arrays[f"policy_{name}_means"], arrays[f"policy_{name}"])

    tables = {"prompt": StageTables(table("prompt"))}
    for name in parameters["stages"]:
        tables[name] = StageTables(table(name), table(f"{name}_answer"))
    return tables, {name: arrays[f"policy_{name}"] for name in parameters["values"]}


def _standing(rows: PolicyRows, stage: StageRows, tables: StageTables, chosen: NDArray[np.bool_]) -> StageStanding:
    assert tables.answer is not None
    there = chosen & stage.rows
    ahead = np.zeros((len(rows), len(tables.ahead.weights)))
    ahead[there] = predict_kind_table(tables.ahead, stage.features[there], rows.kind[there])
    answers = np.flatnonzero(there[stage.answer_row])
    owners = stage.answer_row[answers]
    right = predict_kind_table(tables.answer, stage.answer_features[answers], rows.kind[owners])[:, 0]
    quality = np.zeros(len(rows))
    actual, giver = stage.unusable_quality.copy(), np.zeros(len(rows), dtype=np.intp)
    # The best answer of each row comes last; of equals the one that appeared first.
    order = np.lexsort((-np.arange(len(answers)), right, owners))
    quality[owners[order]] = right[order]
    actual[owners[order]] = stage.answer_quality[answers[order]]
    giver[owners[order]] = stage.answer_giver[answers[order]]
    return StageStanding(quality, ahead, actual, giver)
