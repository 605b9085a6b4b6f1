"""Whether an artefact fits a tier: trained on its models, and on costs that are still about right.

The generic artefact is bound to roles, fits every tier and promises nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from llmrouter.config import TierConfig
from llmrouter.errors import ArtefactError
from llmrouter.pricing.book import PriceBook
from llmrouter.types import Usage

__all__ = ["about", "check_manifest", "is_generic", "misfits", "moved_costs", "promise", "safe_point"]

_USUAL = Usage(input_tokens=500, output_tokens=250)
"""The call at which prices per token are compared with costs per call."""
_TOLERANCE = 1.25
_ABOUT = ("generic", "policy", "roles", "costs", "guarantee", "created_at", "llmrouter_version", "feature_version")


def check_manifest(manifest: Mapping[str, Any]) -> None:
    """Make sure that everything here can be read from a manifest.

    Raises:
        ArtefactError: the part that is not as it must be.
    """
    roles, costs, data = manifest["roles"], manifest["costs"], manifest["data"]
    parameters = manifest["policy_parameters"]
    fine = {
        "roles": isinstance(roles, Mapping) and all(_names(models) for models in roles.values()),
        "costs": isinstance(costs, Mapping) and all(_is_number(cost) and cost >= 0 for cost in costs.values()),
        "data": isinstance(data, Mapping),
        "policy_parameters": isinstance(parameters, Mapping)
        and isinstance(points := parameters.get("points"), list)
        and len(points) > 0
        and all(_is_point(parameters.get(name), len(points)) for name in ("chosen", "certified")),
        "guarantee": _is_guarantee(manifest.get("guarantee")),
    }
    for part, is_fine in fine.items():
        if not is_fine:
            raise ArtefactError(f"the artefact's {part} are not as they must be; train the artefact again")


def about(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a manifest that lists show: what it is for, what it promises, which operating points it has."""
    parameters = manifest["policy_parameters"]
    data = manifest["data"]
    return {
        **{name: manifest.get(name) for name in _ABOUT},
        "points": {
            "count": len(parameters.get("points", ())),
            "chosen": parameters.get("chosen"),
            "certified": parameters.get("certified"),
        },
        "data": {name: data.get(name) for name in ("digest", "n_train", "n_cal", "n_test")},
    }


def is_generic(manifest: Mapping[str, Any]) -> bool:
    """Whether it is bound to roles instead of models."""
    return bool(manifest["generic"])


def safe_point(manifest: Mapping[str, Any], point: int | None) -> int:
    """Where to go from an operating point when requests are no longer what the artefact was calibrated on.

    From beyond the certified point back to it; from there, where the certificate itself is in doubt, or where nothing
    is certified, to the first one, which asks the best model for everything. None is the chosen point.
    """
    parameters = manifest["policy_parameters"]
    certified = parameters.get("certified")
    now = parameters.get("chosen") if point is None else point
    return int(certified) if certified is not None and now is not None and now > certified else 0


def promise(about: Mapping[str, Any], point: int | None) -> str:
    """What an artefact guarantees at an operating point, in one phrase, given what `about` tells of it."""
    guarantee, points = about["guarantee"], about["points"]
    if about["generic"] or guarantee is None:
        return "no guarantee"
    now = points["chosen"] if point is None else point
    if points["certified"] is not None and now is not None and now > points["certified"]:
        return f"no guarantee, which ends at operating point {points['certified']}"
    reference = guarantee.get("reference_role") or "the best model"
    loss, confidence = guarantee["max_quality_loss"], guarantee["confidence"]
    unit = "point" if loss == 1 else "points"
    return f"at most {loss:g} {unit} below {reference} with {confidence:.0%} confidence"


def misfits(manifest: Mapping[str, Any], tier: TierConfig) -> list[str]:
    """What a tier has other than what the artefact was trained for, a phrase each; empty when it may be used there."""
    if is_generic(manifest):
        return []
    checks = manifest["policy"] != "route"
    if checks and tier.strategy != "cascade":
        return [f'it was trained to check answers, which the strategy "{tier.strategy}" never does']
    have = dict(tier.roles)
    if checks:
        asked = list(tier.peers[: tier.cascade.max_peers])
        # Further samples of the small model take the places of peers that are missing.
        asked += [tier.roles.get("small", "")] * (tier.cascade.samples - 1 - len(asked))
        have |= {f"peer{number}": model_id for number, model_id in enumerate(asked, start=1)}
    trained = {role: models for role, models in manifest["roles"].items() if checks or not role.startswith("peer")}
    return [
        *(
            f"{role} is {have[role]}, and it was trained on {' or '.join(models)}"
            for role, models in trained.items()
            if role in have and have[role] not in models
        ),
        *(
            f"{role} is missing, for which it was trained on {' or '.join(trained[role])}"
            for role in trained
            if role not in have
        ),
        *(f"{role} is {have[role]}, and it was trained without one" for role in have if role not in trained),
    ]


def moved_costs(manifest: Mapping[str, Any], tier: TierConfig, prices: PriceBook) -> list[str]:
    """Roles whose price, as a multiple of the small model's, is no longer about what it was trained with; a sentence
    each."""
    return list(_moved(manifest, tier, prices))


def _moved(manifest: Mapping[str, Any], tier: TierConfig, prices: PriceBook) -> Iterator[str]:
    costs: Mapping[str, float] = manifest["costs"]
    small = tier.roles.get("small")
    if small is None or not costs.get("small"):
        return
    base = float(prices.cost(small, _USUAL))
    for role, model_id in tier.roles.items():
        if role == "small" or not costs.get(role):
            continue
        trained = costs[role] / costs["small"]
        now = float(prices.cost(model_id, _USUAL)) / base if base else float("inf")
        if not trained / _TOLERANCE <= now <= trained * _TOLERANCE:
            yield (
                f"a usual call of {role} ({model_id}) costs {now:.3g} times one of small ({small}), and the artefact "
                f"was trained for {trained:.3g} times: what it saves is not what it could; train again with --costs"
            )


def _names(models: object) -> bool:
    return isinstance(models, list) and all(isinstance(model, str) for model in models)


def _is_number(number: object) -> bool:
    return isinstance(number, int | float) and not isinstance(number, bool)


def _is_point(point: object, count: int) -> bool:
    return point is None or (isinstance(point, int) and not isinstance(point, bool) and 0 <= point < count)


def _is_guarantee(given: object) -> bool:
    return given is None or (
        isinstance(given, Mapping) and all(_is_number(given.get(name)) for name in ("max_quality_loss", "confidence"))
    )
