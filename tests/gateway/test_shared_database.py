"""Two gateways, each with a file of its own, that share keys and routing versions in one database."""

import asyncio
import contextlib

import pytest

from llmrouter.config import Config, parse
from llmrouter.errors import AuthenticationFailed, ConfigError, StoreUnavailable
from llmrouter.gateway.build import Assembly, prepare_store
from llmrouter.gateway.supervisor import Supervisor
from llmrouter.routing.versions import RoutingStore
from llmrouter.shared_store import reading, shared_store
from llmrouter.tenancy.keys import KeyStore
from llmrouter.types import Rule
from tests.support import model, pool, running, tier


@pytest.fixture
def config_of(postgres_url, tmp_path):
    def make(name: str, extra: str = "") -> Config:
        store = f'url = "sqlite:///{tmp_path}/{name}.db"\nledger_url = "{postgres_url}"\nsecret = "{"s" * 20}"'
        text = model("small") + pool("small", ["http://127.0.0.1:1"]) + tier("auto", small="small")
        return parse(f"{extra}\n[store]\n{store}\n{text}", environ={})

    return make


@contextlib.asynccontextmanager
async def gateway(config: Config):
    prepare_store(config)
    assembly = Assembly(config)
    try:
        yield assembly
    finally:
        await assembly.aclose()


async def test_both_seed_one_version_and_follow_each_other(config_of):
    async with gateway(config_of("a")) as first, gateway(config_of("b")) as second:
        assert first.state.routing == second.state.routing
        rules = [Rule("code", {"intent": "code"}, model_id="small")]
        RoutingStore(first.store).publish(rules, base_version=1, author="ada")
        text, info = KeyStore(first.store, first.pepper).create("default")
        header = f"Bearer {text}".encode()
        with pytest.raises(AuthenticationFailed):
            second.authenticate(header)
        await second.follow_store()
        assert second.state.routing.version == 2
        assert second.authenticate(header).key_id == info.key_id
        KeyStore(second.store, second.pepper).revoke(info.key_id)
        await first.follow_store()
        with pytest.raises(AuthenticationFailed):
            first.authenticate(header)


async def test_a_database_that_goes_away_leaves_keys_and_rules_as_they_were(config_of, postgres_server):
    async with gateway(config_of("a")) as running:
        text, _ = KeyStore(running.store, running.pepper).create("default")
        await running.follow_store()
        postgres_server.stop()
        with pytest.raises(StoreUnavailable):
            await running.follow_store()
        assert running.authenticate(f"Bearer {text}".encode()).tenant_id == "default"
        assert running.state.routing.version == 1
        postgres_server.start()
        await running.follow_store()


async def test_g103_a_server_that_could_never_serve_all_workers_is_refused_at_the_start(config_of, tmp_path):
    config = config_of("a", "[server]\nworkers = 64")
    store = shared_store(config.store)
    prepare_store(config)
    with store.transaction("BEGIN") as connection:  # type: ignore[union-attr]
        limit = "format('ALTER DATABASE %I CONNECTION LIMIT 9', current_database())"
        connection.execute(f"DO $$ BEGIN EXECUTE {limit}; END $$".encode())
    (tmp_path / "llmrouter.toml").write_text("")
    supervisor = Supervisor(tmp_path / "llmrouter.toml", config, flags={}, on_event=lambda name, facts: None)
    with pytest.raises(ConfigError, match="allows 9 connections but this gateway needs 66"):
        await supervisor.run()


async def test_two_gateways_keep_one_ledger_while_the_server_comes_and_goes(config_of, postgres_server, tmp_path):
    """Not one call waits for the server, and when it is back each is in its books once."""
    store = config_of("a").store
    assert store.ledger_url is not None
    shared = f'ledger_url = "{store.ledger_url.get_secret_value()}"\nsecret = "{"s" * 20}"'
    echo = '[pools.small]\nmodel = "small"\napi = "echo"\n'
    text = f"[store]\n{shared}\n" + model("small") + echo + tier("auto", small="small")
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    async with running(text, folders[0]) as first, running(text, folders[1]) as second:

        async def ask_both() -> None:
            answers = await asyncio.gather(*(each.chat() for each in (first, second) for _ in range(10)))
            assert {answer.status_code for answer in answers} == {200}

        await ask_both()
        postgres_server.kill()
        await ask_both()
        postgres_server.start()
        await ask_both()
    server = shared_store(first.config.store)
    with reading(server) as connection:
        rows, calls, cost = connection.execute(
            "SELECT count(*), count(DISTINCT request_id), sum(cost_picousd) FROM ledger"
        ).fetchone()
        assert connection.execute("SELECT sum(cost_picousd) FROM attempts").fetchone() == (cost,)
    assert (rows, calls) == (60, 60)
    assert cost > 0
