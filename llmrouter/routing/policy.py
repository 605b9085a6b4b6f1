"""The policy of an artefact: routes and agreement as they were learned, and checks of single answers where it has
tables for them and promises nothing that these would change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmrouter.errors import ArtefactError
from llmrouter.routing.artifact import Artefact
from llmrouter.routing.checked import CheckedPolicy, CheckTable
from llmrouter.routing.evidence import Policy
from llmrouter.routing.learned_policy import LearnedPolicy

__all__ = ["policy_of"]


def policy_of(artefact: Artefact, point: int | None = None) -> Policy:
    """The policy at an operating point; None takes the one that training chose.

    Raises:
        ArtefactError: the artefact has no such point, or its tables cannot be used.
    """
    parameters: Mapping[str, Any] = artefact.manifest["policy_parameters"]
    if not isinstance(parameters, Mapping):
        raise ArtefactError("the artefact's policy is not as it must be; train the artefact again")
    try:
        learned = LearnedPolicy.of(artefact, point)
        tables = [CheckTable.of(table) for table in artefact.manifest.get("checks") or ()]
        chosen = parameters["points"][learned.point]
        tradeoff, margin = float(chosen["tradeoff"]), float(chosen["margin"])
        novelty_limit = float(parameters["novelty_limit"])
        costs = {role: float(cost) for role, cost in parameters["costs"].items()}
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise ArtefactError(f"its policy cannot be used: {error}; train the artefact again") from error
    if not tables or learned.point == 0 or _is_promised(artefact, learned.point):
        return learned
    return CheckedPolicy(learned, tables, costs=costs, tradeoff=tradeoff, margin=margin, novelty_limit=novelty_limit)


def _is_promised(artefact: Artefact, point: int) -> bool:
    """Whether the artefact's guarantee is of this operating point; it was shown without checks of single answers."""
    certified = artefact.manifest["policy_parameters"].get("certified")
    return artefact.manifest.get("guarantee") is not None and certified is not None and point <= int(certified)
