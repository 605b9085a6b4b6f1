"""Artefacts and tiers: other models and other strategies are told, and costs that have moved."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from llmrouter.config import Config, parse
from llmrouter.errors import ArtefactError
from llmrouter.pricing.book import PriceBook
from llmrouter.routing.artefact_fit import about, check_manifest, misfits, moved_costs, promise, safe_point
from tests.support import model, pool, tier

URL = "http://127.0.0.1:9/v1"


def config(strategy: str = "cascade", *, usd_large: str = "10", extra: str = "") -> Config:
    """Small s at $1, large l, and p, q as peers."""
    parts = [
        *(model("s", usd_out="1"), model("l", usd_in=usd_large, usd_out=usd_large)),
        *(model("p"), model("q"), *(pool(name, [URL]) for name in "slpq")),
        tier("auto", small="s", large="l", extra=f'strategy = "{strategy}"\npeers = ["p", "q"]\n{extra}'),
    ]
    return parse("\n".join(parts), environ={})


def manifest(**changes: Any) -> dict[str, Any]:
    return {
        "generic": False,
        "policy": "auto",
        "roles": {"small": ["s"], "large": ["l", "l-2"], "peer1": ["p"], "peer2": ["q"]},
        "costs": {"small": 1, "large": 10},
        "data": {"digest": "d", "n_train": 1, "n_cal": 2, "n_test": 3, "sources": {}},
        "policy_parameters": {"points": [{}, {}, {}], "chosen": 2, "certified": 1},
        "guarantee": {"max_quality_loss": 1.0, "confidence": 0.95, "reference_role": "large"},
        **changes,
    }


@pytest.mark.parametrize(
    ("strategy", "extra", "changes", "says"),
    [
        ("cascade", "", {}, []),
        ("router", "", {"policy": "route"}, []),
        ("cascade", "", {"policy": "route", "roles": {"small": ["s"], "large": ["l"]}}, []),
        ("cascade", "cascade.max_peers = 1", {"roles": {"small": ["s"], "large": ["l"], "peer1": ["p"]}}, []),
        ("router", "", {"generic": True, "roles": {"small": ["x"]}}, []),
        ("router", "", {}, ['it was trained to check answers, which the strategy "router" never does']),
        (
            "router",
            "",
            {"policy": "route", "roles": {"small": ["x", "y"], "large": ["l"]}},
            ["small is s, and it was trained on x or y"],
        ),
        (
            "router",
            "",
            {"policy": "route", "roles": {"small": ["s"], "frontier": ["f"]}},
            ["frontier is missing, for which it was trained on f", "large is l, and it was trained without one"],
        ),
        ("cascade", "cascade.max_peers = 1", {}, ["peer2 is missing, for which it was trained on q"]),
        (
            "cascade",
            "cascade.max_peers = 1\ncascade.samples = 3",
            {},
            ["peer2 is s, and it was trained on q"],
        ),
        (
            "cascade",
            "cascade.max_peers = 1\ncascade.samples = 3",
            {"roles": {"small": ["s"], "large": ["l"], "peer1": ["p"], "peer2": ["s"]}},
            [],
        ),
    ],
)
def test_an_artefact_fits_a_tier_of_the_models_it_was_trained_on(
    strategy: str, extra: str, changes: dict[str, Any], says: list[str]
):
    assert misfits(manifest(**changes), config(strategy, extra=extra).tiers["auto"]) == says


@pytest.mark.parametrize(
    ("usd_large", "told"), [("10", False), ("12.4", False), ("12.6", True), ("8.1", False), ("7.9", True)]
)
def test_a_price_ratio_that_moved_by_more_than_a_quarter_is_told(usd_large: str, told: bool):
    given = config(usd_large=usd_large)
    lines = moved_costs(manifest(), given.tiers["auto"], PriceBook(given, lambda: datetime.now(UTC)))
    assert len(lines) == told
    if told:
        assert (
            f"costs {float(usd_large):.3g} times one of small (s), and the artefact was trained for 10 times"
            in lines[0]
        )


def test_a_small_model_that_costs_nothing_is_told_and_not_divided_by():
    text = "\n".join(
        [
            *(model("s", usd_in="0", usd_out="0"), model("l"), pool("s", [URL]), pool("l", [URL])),
            tier("auto", small="s", large="l", extra='strategy = "router"'),
        ]
    )
    given = parse(text, environ={})
    (line,) = moved_costs(manifest(), given.tiers["auto"], PriceBook(given, lambda: datetime.now(UTC)))
    assert "costs inf times one of small" in line


@pytest.mark.parametrize(
    ("point", "certified", "safe"),
    [(None, 1, 1), (2, 1, 1), (1, 1, 0), (0, 1, 0), (None, 2, 0), (None, None, 0), (2, None, 0)],
)
def test_from_beyond_what_is_certified_it_is_safe_there_and_else_at_the_most_careful_point(
    point: int | None, certified: int | None, safe: int
):
    parameters = {"points": [{}, {}, {}], "chosen": 2, "certified": certified}
    assert safe_point(manifest(policy_parameters=parameters), point) == safe


def test_a_promise_is_told_in_one_phrase():
    kept = "at most 1 point below large with 95% confidence"
    assert promise(about(manifest()), 1) == promise(about(manifest()), 0) == kept
    assert promise(about(manifest()), None) == "no guarantee, which ends at operating point 1"
    for nothing in (manifest(guarantee=None), manifest(generic=True)):
        assert promise(about(nothing), 0) == "no guarantee"


def test_lists_show_a_part_of_the_manifest():
    shown = about(manifest())
    assert shown["points"] == {"count": 3, "chosen": 2, "certified": 1}
    assert shown["data"] == {"digest": "d", "n_train": 1, "n_cal": 2, "n_test": 3}
    assert shown["guarantee"]["confidence"] == 0.95
    assert "heads" not in shown


@pytest.mark.parametrize(
    ("part", "changes"),
    [
        ("roles", {"roles": ["s"]}),
        ("roles", {"roles": {"small": "s"}}),
        ("costs", {"costs": {"small": "1"}}),
        ("costs", {"costs": {"small": -1}}),
        ("data", {"data": None}),
        ("policy_parameters", {"policy_parameters": {}}),
        ("policy_parameters", {"policy_parameters": {"points": []}}),
        ("policy_parameters", {"policy_parameters": {"points": [{}], "chosen": 1}}),
        ("guarantee", {"guarantee": {"confidence": 0.95}}),
    ],
)
def test_a_manifest_that_cannot_be_read_is_refused_by_its_part(part: str, changes: dict[str, Any]):
    check_manifest(manifest())
    with pytest.raises(ArtefactError, match=f"the artefact's {part} are not as they must be"):
        check_manifest(manifest(**changes))
