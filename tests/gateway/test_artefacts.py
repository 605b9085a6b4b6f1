"""Artefacts as a part of routing versions: taken over while serving, refused when they are not what they should be."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from llmrouter.config import load
from llmrouter.errors import ArtefactError, ConfigError
from llmrouter.gateway.artefacts import ArtefactShelf, doubts, newest_usable, notes
from llmrouter.gateway.publishing import artefact_shelf, artefact_store, publish_artefact
from llmrouter.pricing.book import PriceBook
from llmrouter.routing.artefact_store import ArtefactRefused
from llmrouter.routing.versions import RoutingStore
from llmrouter.shared_store import writing
from llmrouter.testing import FakeBackend
from tests.gateway.test_admin import admin, answered_by, error, publish
from tests.support import Running, model, pool, running, tier
from tests.toy_learned import ToyArtefact, toy_learning, write_toy

__all__ = ["toy_learning"]

pytestmark = pytest.mark.usefixtures("toy_learning")

OTHER = ToyArtefact.of(note="another one")
FOREIGN = ToyArtefact.of(roles={"small": ["x"], "large": ["l"]})


@contextlib.asynccontextmanager
async def gateway_that_learned(folder: Path, extra: str = "", more: str = "", **options: Any) -> AsyncIterator[Running]:
    """A gateway whose tier `auto` has models s and l and has learned."""
    async with FakeBackend() as small, FakeBackend() as large:
        parts = [
            *(model("s"), model("l"), pool("s", [small.url]), pool("l", [large.url])),
            *(tier("auto", small="s", large="l", extra=f'strategy = "router"\nretries = 0\n{extra}'), more),
        ]
        async with running("\n".join(parts), folder, **options) as gateway:
            yield gateway


def put(gateway: Running, artefact: ToyArtefact = OTHER, **more: Any) -> int:
    """Publish as the command line does; returns the version."""
    return publish_artefact(gateway.config, cast("Any", artefact), author="me", **more).version


def tamper(gateway: Running) -> None:
    with writing(gateway.assembly.store) as connection:
        connection.execute("DROP TRIGGER artefacts_no_update")
        connection.execute("UPDATE artefacts SET content = ?", (b"{}",))


def refused(gateway: Running) -> float:
    return float(gateway.assembly.gauges(0)["llmrouter_routing_refused"][0][0])


async def test_a_learned_tier_goes_by_the_generic_artefact_until_one_is_published(tmp_path: Path):
    async with gateway_that_learned(tmp_path) as gateway:
        assert await answered_by(gateway) == ("s", "1")
        (line,) = notes(gateway.assembly.state.learned)
        assert line.startswith("tiers.auto: goes by the generic artefact ")
        assert line.endswith(" at its chosen operating point: no guarantee")
        assert put(gateway, point=0) == 2
        await gateway.assembly.follow_store()
        assert await answered_by(gateway) == ("l", "2")
        (line,) = notes(gateway.assembly.state.learned)
        assert f"the published artefact {OTHER.digest[:12]} at operating point 0: at most 1 point below large" in line


async def test_another_operating_point_of_the_same_artefact_is_a_version_of_its_own(tmp_path: Path):
    async with gateway_that_learned(tmp_path) as gateway:
        parameters = {"points": [{}, {}, {}], "chosen": 1, "certified": 1}
        put(gateway, ToyArtefact.of(policy_parameters=parameters))
        put(gateway, ToyArtefact.of(policy_parameters=parameters), point=2)
        await gateway.assembly.follow_store()
        assert await answered_by(gateway) == ("s", "3")
        assert "no guarantee, which ends at operating point 1" in notes(gateway.assembly.state.learned)[0]


async def test_a_rollback_brings_the_old_artefact_back(tmp_path: Path):
    async with gateway_that_learned(tmp_path, with_admin=True) as gateway:
        put(gateway, point=0)
        put(gateway, ToyArtefact.of(note="later"), point=2)
        done = await admin(gateway, "POST", "routing/rollback", {"to": 2})
        assert done.json()["artefact"] == {"digest": OTHER.digest, "point": 0}
        await gateway.assembly.follow_store()
        assert await answered_by(gateway) == ("l", "4")


async def test_what_a_tier_remembers_outlives_a_routing_version(tmp_path: Path):
    async with gateway_that_learned(tmp_path) as gateway:
        put(gateway)
        await gateway.assembly.follow_store()
        gateway.reload()
        strategy: Any = gateway.assembly.state.tiers["auto"].strategy
        assert strategy.parts.memory == {"made": 3}
        assert strategy.parts.price("s", 10) == gateway.assembly.state.prices.price("s", 10)


async def test_an_artefact_tampered_with_leaves_the_last_good_version_in_force(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    async with gateway_that_learned(tmp_path, with_admin=True) as gateway:
        put(gateway, point=0)
        tamper(gateway)
        with caplog.at_level(logging.ERROR):
            await gateway.assembly.follow_store()
            await gateway.assembly.follow_store()
        (line,) = caplog.messages
        assert "the newest routing version cannot be used, version 1 stays in force: tiers.auto: the artefact" in line
        assert "does not bear the signature" in line
        assert await answered_by(gateway) == ("s", "1")
        assert refused(gateway) == 1
        shown = (await admin(gateway, "GET", "routing")).json()
        assert "does not bear the signature" in shown["artefact_about"]["refused"]
    async with gateway_that_learned(tmp_path) as gateway:
        assert await answered_by(gateway) == ("s", "1")
        assert refused(gateway) == 1


async def test_the_next_good_version_ends_the_refusal(tmp_path: Path):
    async with gateway_that_learned(tmp_path) as gateway:
        put(gateway, point=0)
        tamper(gateway)
        await gateway.assembly.follow_store()
        put(gateway, ToyArtefact.of(note="later"), point=0)
        await gateway.assembly.follow_store()
        assert await answered_by(gateway) == ("l", "3")
        assert refused(gateway) == 0


async def test_a_new_key_is_known_although_the_newest_version_is_refused(tmp_path: Path):
    async with gateway_that_learned(tmp_path) as gateway:
        put(gateway)
        tamper(gateway)
        key = await gateway.new_key()
        assert (await gateway.chat(headers={"authorization": f"Bearer {key}"})).status_code == 200


async def test_an_artefact_for_other_models_is_not_published(tmp_path: Path):
    async with gateway_that_learned(tmp_path) as gateway:
        with pytest.raises(ConfigError) as caught:
            put(gateway, FOREIGN)
        assert "was not trained for this tier: small is s, and it was trained on x" in caught.value.message
        with pytest.raises(ConfigError, match="has no operating point 7; it has those from 0 to 2"):
            put(gateway, point=7)
        assert RoutingStore(gateway.store).current().version == 1


async def test_a_configuration_whose_models_the_artefact_does_not_know_is_refused(tmp_path: Path):
    async with gateway_that_learned(tmp_path) as gateway:
        put(gateway, point=0)
        await gateway.assembly.follow_store()
        path = tmp_path / "llmrouter.toml"
        path.write_text(path.read_text().replace('small = "s"', 'small = "l"').replace('large = "l"', 'large = "s"'))
        with pytest.raises(ConfigError, match=r"tiers\.auto: the published artefact .* small is l, and"):
            gateway.reload()
        assert await answered_by(gateway) == ("l", "2")


async def test_a_tier_can_insist_on_the_generic_one_or_on_a_folder(tmp_path: Path):
    write_toy(tmp_path / "mine", ToyArtefact.of(note="mine", policy_parameters={"points": [{}, {}], "chosen": 0}))
    own = tier("own", small="s", large="l", extra='strategy = "router"\nartefact = "mine"\nretries = 0')
    async with gateway_that_learned(tmp_path, 'artefact = "generic"', own) as gateway:
        put(gateway, point=0)
        await gateway.assembly.follow_store()
        assert await answered_by(gateway) == ("s", "2")
        assert await answered_by(gateway, tier="own") == ("l", "2")
        write_toy(tmp_path / "mine", FOREIGN)
        await gateway.assembly.follow_store()
        with pytest.raises(ConfigError, match=r"tiers\.own: the artefact of .*mine.* was not trained for this tier"):
            gateway.reload()


async def test_a_folder_that_is_changed_counts_from_the_next_reload_on(tmp_path: Path):
    write_toy(tmp_path / "mine", ToyArtefact.of(note="mine"))
    async with gateway_that_learned(tmp_path, 'artefact = "mine"') as gateway:
        write_toy(tmp_path / "mine", ToyArtefact.of(policy_parameters={"points": [{}, {}], "chosen": 0}))
        RoutingStore(gateway.store).publish([], base_version=1, author="me")
        await gateway.assembly.follow_store()
        assert await answered_by(gateway) == ("s", "2")
        gateway.reload()
        assert await answered_by(gateway) == ("l", "2")


async def test_the_admin_api_publishes_an_artefact_of_the_store_by_its_digest(tmp_path: Path):
    async with gateway_that_learned(tmp_path, with_admin=True) as gateway:
        put(gateway, point=0)
        learned = {"digest": OTHER.digest, "point": 2}
        tried = await publish(gateway, base=2, artefact=learned, dry_run=True)
        assert (tried.json()["artefact"], tried.json()["current_version"]) == (learned, 2)
        assert (await publish(gateway, base=2, artefact=learned)).json()["artefact"] == learned
        await gateway.assembly.follow_store()
        assert await answered_by(gateway) == ("s", "3")
        kept = (await publish(gateway, base=3)).json()
        assert (kept["version"], kept["artefact"]) == (4, learned)
        shown = (await admin(gateway, "GET", "routing")).json()
        assert shown["artefact"] == learned
        assert shown["artefact_about"]["guarantee"]["max_quality_loss"] == 1.0
        assert shown["artefact_about"]["points"] == {"count": 3, "chosen": 2, "certified": 2}
        gone = (await publish(gateway, base=4, artefact={"digest": None})).json()
        assert gone["artefact"] is None


@pytest.mark.parametrize(
    ("learned", "status", "says"),
    [
        ({"digest": "0" * 64}, 404, "the store has no artefact"),
        ({"digest": OTHER.digest, "point": 9}, 400, "has no operating point 9"),
        ({"digest": OTHER.digest, "point": -1}, 400, "artefact.point"),
        ({"point": 1}, 400, "artefact.digest"),
    ],
)
async def test_the_admin_api_refuses_an_artefact_that_cannot_be_used(
    tmp_path: Path, learned: dict[str, Any], status: int, says: str
):
    async with gateway_that_learned(tmp_path, with_admin=True) as gateway:
        put(gateway, point=0)
        told = error(await publish(gateway, base=2, artefact=learned), status)
        assert says in told["message"]
        assert RoutingStore(gateway.store).current().version == 2


async def test_drift_moves_every_worker_to_the_safe_point_until_the_next_version(tmp_path: Path):
    async with gateway_that_learned(tmp_path, with_admin=True) as gateway:
        put(gateway)
        await gateway.assembly.follow_store()
        assert await answered_by(gateway) == ("s", "2")
        assert RoutingStore(gateway.store).fall_back(2, "auto", "scores moved")
        await gateway.assembly.follow_store()
        assert await answered_by(gateway) == ("l", "2")
        assert gateway.assembly.gauges(0)["llmrouter_router_fallback"] == [["auto", 1.0]]
        prices = PriceBook(gateway.config, lambda: gateway.assembly.state.routing.created_at)
        (line,) = doubts(gateway.config, gateway.assembly.state.learned, prices)
        assert line == "tiers.auto: at its safe operating point since drift was seen: scores moved"
        shown = (await admin(gateway, "GET", "routing")).json()
        assert [each["reason"] for each in shown["fallbacks"]] == ["scores moved"]
        put(gateway)
        await gateway.assembly.follow_store()
        assert await answered_by(gateway) == ("s", "3")
        assert gateway.assembly.gauges(0)["llmrouter_router_fallback"] == [["auto", 0.0]]


async def test_an_artefact_that_no_strategy_can_be_made_of_is_neither_published_nor_started_with(tmp_path: Path):
    write_toy(tmp_path / "mine", ToyArtefact.of(broken=True))
    async with gateway_that_learned(tmp_path) as gateway:
        with pytest.raises(
            ArtefactError, match=r"tiers\.auto: the published artefact .* cannot be used: its heads are not"
        ):
            put(gateway, ToyArtefact.of(broken=True))
        assert RoutingStore(gateway.store).current().version == 1
    with pytest.raises(ArtefactError, match=r"tiers\.auto: the artefact of .*mine, \w+ cannot be used"):
        async with gateway_that_learned(tmp_path, 'artefact = "mine"'):
            pass


async def test_a_version_is_taken_over_while_requests_are_served(tmp_path: Path):
    async with gateway_that_learned(tmp_path, background=True) as gateway:
        put(gateway, point=0)
        async with asyncio.timeout(5):
            while await answered_by(gateway) != ("l", "2"):
                await asyncio.sleep(0.02)


async def test_a_start_looks_back_for_a_version_that_can_be_used(tmp_path: Path):
    async with gateway_that_learned(tmp_path) as gateway:
        put(gateway, point=0)
        tamper(gateway)
        config = load(tmp_path / "llmrouter.toml")
        version, in_force, why = newest_usable(config, RoutingStore(gateway.store), artefact_shelf(config))
        assert (version.version, in_force["auto"].origin) == (1, "generic")
        assert why is not None
        assert "does not bear the signature" in why


async def test_artefacts_in_use_stay_loaded_and_others_go(tmp_path: Path):
    async with gateway_that_learned(tmp_path) as gateway:
        shelf = ArtefactShelf(artefact_store(gateway.config))
        put(gateway, point=0)
        versions = RoutingStore(gateway.store)
        first = shelf.in_force(gateway.config, versions.current(), {})["auto"].artefact
        assert shelf.in_force(gateway.config, versions.current(), {})["auto"].artefact is first
        put(gateway, ToyArtefact.of(note="later"))
        shelf.in_force(gateway.config, versions.current(), {})
        tamper(gateway)
        assert shelf.published(ToyArtefact.of(note="later").digest).digest != first.digest
        with pytest.raises(ArtefactRefused, match="signature"):
            shelf.published(OTHER.digest)
