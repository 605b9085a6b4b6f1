"""Drift of a learned tier's requests: seen, told, and answered by the certified operating point."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmrouter.routing.drift import statistics_of
from llmrouter.routing.versions import RoutingStore
from tests.gateway.test_artefacts import gateway_that_learned, put
from tests.support import Running
from tests.toy_learned import ToyArtefact, toy_learning

__all__ = ["toy_learning"]

pytestmark = pytest.mark.usefixtures("toy_learning")

_EASY = np.concatenate([np.full(1800, 0.9), np.full(200, 0.1)])


def calibrated(**changes: Any) -> ToyArtefact:
    """A tenth of its calibration rows was hard, and at the chosen point all went to the small model."""
    return ToyArtefact.of(calibration=statistics_of({"small": _EASY}, {"small": 1.0}), **changes)


async def serve(gateway: Running, text: str, times: int) -> None:
    """One request, and the decisions of as many more."""
    answer = await gateway.chat(text)
    assert answer.status_code == 200
    strategy: Any = gateway.assembly.state.tiers["auto"].strategy
    for _ in range(times - 1):
        strategy.observe(text)


async def published(gateway: Running, artefact: ToyArtefact, **more: Any) -> None:
    put(gateway, artefact, **more)
    await gateway.assembly.follow_store()


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged of the tier; a busy machine may have made others say something, too."""
    return [message for message in caplog.messages if message.startswith("tiers.auto")]


def level(gateway: Running) -> list[list[Any]]:
    return gateway.assembly.gauges(0)["llmrouter_router_drift"]


async def test_traffic_like_that_of_the_calibration_is_left_alone(tmp_path: Path):
    async with gateway_that_learned(tmp_path) as gateway:
        await published(gateway, calibrated())
        await serve(gateway, "easy", 900)
        await serve(gateway, "hard", 100)
        await gateway.assembly.look_for_drift()
        ((tier, value),) = level(gateway)
        assert (tier, value < 1) == ("auto", True)
        assert RoutingStore(gateway.store).fallbacks(2) == {}


@pytest.mark.parametrize(("certified", "safe"), [(1, 1), (2, 0), (None, 0)])
async def test_drift_is_logged_once_and_moves_the_tier_to_a_safe_point(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, certified: int | None, safe: int
):
    parameters = {"points": [{}, {}, {}], "chosen": 2, "certified": certified}
    async with gateway_that_learned(tmp_path) as gateway:
        await published(gateway, calibrated(policy_parameters=parameters))
        await serve(gateway, "hard", 500)
        with caplog.at_level(logging.WARNING):
            await gateway.assembly.look_for_drift()
            await gateway.assembly.look_for_drift()
            assert level(gateway) == [["auto", 1.0]]
            await gateway.assembly.follow_store()
        seen, moved = told(caplog)
        assert seen.startswith("tiers.auto: requests are no longer like those it was calibrated on: predicted score of")
        assert moved.startswith("tiers.auto is at its safe operating point: predicted score of small")
        assert gateway.assembly.state.learned["auto"].point == safe
        assert (await gateway.chat("hard")).headers["x-llmrouter-model"] == "l"
        assert level(gateway) == []


async def test_the_next_version_begins_to_watch_anew(tmp_path: Path):
    async with gateway_that_learned(tmp_path) as gateway:
        await published(gateway, calibrated())
        await serve(gateway, "hard", 500)
        await gateway.assembly.look_for_drift()
        await gateway.assembly.follow_store()
        await published(gateway, calibrated())
        assert gateway.assembly.state.learned["auto"].fallback is None
        await gateway.assembly.look_for_drift()
        assert level(gateway) == [["auto", 0.0]]


async def test_where_it_may_not_fall_back_it_only_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    async with gateway_that_learned(tmp_path, more="[routing.drift]\nfall_back = false") as gateway:
        await published(gateway, calibrated())
        await serve(gateway, "hard", 500)
        with caplog.at_level(logging.WARNING):
            await gateway.assembly.look_for_drift()
            await gateway.assembly.follow_store()
        assert len(told(caplog)) == 1
        assert level(gateway) == [["auto", 1.0]]
        assert gateway.assembly.state.learned["auto"].fallback is None


@pytest.mark.parametrize(
    ("more", "artefact"),
    [
        ("[routing.drift]\nwatch = false", calibrated()),
        ("", calibrated(generic=True)),
        ("", ToyArtefact.of()),
    ],
)
async def test_what_need_not_be_watched_is_not(tmp_path: Path, more: str, artefact: ToyArtefact):
    async with gateway_that_learned(tmp_path, more=more) as gateway:
        await published(gateway, artefact)
        await serve(gateway, "hard", 500)
        await gateway.assembly.look_for_drift()
        assert level(gateway) == []


async def test_a_reload_goes_on_counting(tmp_path: Path):
    async with gateway_that_learned(tmp_path) as gateway:
        await published(gateway, calibrated())
        watch = gateway.assembly.state.watches["auto"]
        gateway.reload()
        assert gateway.assembly.state.watches["auto"] is watch
        await serve(gateway, "hard", 500)
        await gateway.assembly.look_for_drift()
        assert level(gateway) == [["auto", 1.0]]


async def test_another_operating_point_routes_otherwise_without_being_drift(tmp_path: Path):
    async with gateway_that_learned(tmp_path) as gateway:
        await published(gateway, calibrated(), point=0)
        await serve(gateway, "easy", 900)
        await serve(gateway, "hard", 100)
        await gateway.assembly.look_for_drift()
        assert level(gateway)[0][1] < 1
        assert (await gateway.chat("easy")).headers["x-llmrouter-model"] == "l"


async def test_drift_that_cannot_be_noted_is_noted_by_the_next_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async with gateway_that_learned(tmp_path) as gateway:
        await published(gateway, calibrated())
        await serve(gateway, "hard", 500)
        gateway.store.rename(tmp_path / "away")
        with pytest.raises(Exception, match="cannot be opened"):
            await gateway.assembly.look_for_drift()
        (tmp_path / "away").rename(gateway.store)
        await gateway.assembly.look_for_drift()
        assert list(RoutingStore(gateway.store).fallbacks(2)) == ["auto"]
