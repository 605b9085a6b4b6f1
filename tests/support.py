"""A whole gateway in the test's own event loop, on a real socket, in front of scripted engines."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import httpx

from llmrouter.config import Config, anchor_paths, parse
from llmrouter.database import database_path, migrate, open_database
from llmrouter.gateway.app import AdminContext, build_admin_app
from llmrouter.gateway.asgi import Gateway
from llmrouter.gateway.build import Assembly, prepare_store
from llmrouter.gateway.listen import bind, server
from llmrouter.ledger.postgres.queries import shared_entries
from llmrouter.ledger.queries import recent_entries
from llmrouter.protocols import Ledger
from llmrouter.shared_store import shared_store
from llmrouter.telemetry.metrics import render
from llmrouter.tenancy.keys import KeyStore
from llmrouter.tenancy.pepper import load_pepper
from llmrouter.types import LedgerEntry

__all__ = ["Running", "model", "pool", "running", "tier"]


def model(model_id: str, *, usd_in: str = "1", usd_out: str = "2", extra: str = "") -> str:
    """A priced model, in TOML."""
    return (
        f'[models.{model_id}]\nprice.usd = {{ input_usd_per_mtok = "{usd_in}", output_usd_per_mtok = "{usd_out}" }}\n'
        f"{extra}\n"
    )


def pool(model_id: str, urls: Iterable[str], *, api: str = "vllm", extra: str = "") -> str:
    """The pool of a model under the model's own name, in TOML; probing is rare so that it does not disturb."""
    listed = ", ".join(f'"{url}"' for url in urls)
    head = f'[pools.{model_id}]\nmodel = "{model_id}"\napi = "{api}"\nurls = [{listed}]\n'
    return f"{head}probe_interval_s = 3600\n{extra}\n"


def tier(tier_id: str, *, extra: str = "", **roles: str) -> str:
    """A tier with roles, in TOML."""
    lines = "".join(f'{role} = "{model_id}"\n' for role, model_id in roles.items())
    return f"[tiers.{tier_id}]\n{lines}{extra}\n"


@dataclass
class Running:
    """A gateway that serves."""

    config: Config
    assembly: Assembly
    gateway: Gateway
    root: str
    """`http://127.0.0.1:PORT`."""
    store: Path
    admin_key: str
    key: str
    """A plain key of the tenant `default`."""
    http: httpx.AsyncClient
    """Sends `key` with every request; answers of any status are returned."""
    reload: Callable[[], None]
    """Read the configuration file again, as a signal would."""

    @property
    def base_url(self) -> str:
        return f"{self.root}/v1"

    def keys(self) -> KeyStore:
        return KeyStore(shared_store(self.config.store), load_pepper(self.config.store, self.store))

    async def new_key(self, tenant_id: str = "default", **scopes: object) -> str:
        """Another key, already known to the gateway."""
        text, _ = self.keys().create(tenant_id, **scopes)  # type: ignore[arg-type]
        await self.assembly.follow_store()
        return text

    async def chat(
        self, text: str = "Hi", *, tier: str = "auto", headers: dict[str, str] | None = None, **fields: object
    ) -> httpx.Response:
        """One chat request."""
        body = {"model": tier, "messages": [{"role": "user", "content": text}], **fields}
        return await self.http.post("/v1/chat/completions", json=body, headers=headers)

    def books(self, limit: int = 100) -> list[LedgerEntry]:
        """What the ledger holds, newest first; of a shared one, what this gateway sees."""
        shared = shared_store(self.config.store)
        if isinstance(shared, Path):
            return recent_entries(self.store, limit)
        return shared_entries(self.store, shared, limit)

    async def settled(self, count: int) -> list[LedgerEntry]:
        """The books once they hold so many entries; a client that left is booked a moment later."""
        async with asyncio.timeout(5):
            while len(entries := self.books()) < count:
                await asyncio.sleep(0.005)
        return entries


@contextlib.asynccontextmanager
async def running(
    text: str, folder: Path, *, with_admin: bool = False, background: bool = False, ledger: Ledger | None = None
) -> AsyncIterator[Running]:
    """Serve a configuration given as TOML from a folder that holds its store.

    Args:
        with_admin: serve the admin plane on the same port.
        background: probe the pools and follow the store; without it, call `follow_store` where a test needs it.
        ledger: the books, instead of those in the store.
    """
    config = anchor_paths(parse(text, environ={}), folder)
    store = database_path(config.store.url)
    if not store.exists():
        store.write_bytes(_migrated())
    # While somebody else has it open, closing a connection to it costs no checkpoint.
    held = open_database(store)
    prepare_store(config)
    keys = KeyStore(shared_store(config.store), load_pepper(config.store, store))
    admin_key, _ = keys.create(next(iter(config.tenants)), admin=True)
    key, _ = keys.create(next(iter(config.tenants)))
    config_path = folder / "llmrouter.toml"
    config_path.write_text(text)
    assembly = Assembly(config, ledger=ledger)

    def reload() -> None:
        assembly.reload(anchor_paths(parse(config_path.read_text(), environ={}), folder), assembly.state.version + 1)

    context = AdminContext(
        config=lambda: assembly.state.config,
        version=lambda: assembly.state.version,
        authenticate=assembly.authenticate,
        path=store,
        store=assembly.store,
        pepper=assembly.pepper,
        metrics=lambda: render([assembly.metrics.snapshot()]),
        config_path=config_path,
        reload=reload,
    )
    gateway = assembly.gateway(build_admin_app(context) if with_admin else None)
    if background:
        await assembly.start()
    listener = bind("127.0.0.1:0")
    root = f"http://127.0.0.1:{listener.getsockname()[1]}"
    headers = {"authorization": f"Bearer {key}"}
    try:
        # Reading the certificates of all authorities would take longer than most tests.
        async with (
            _serving(gateway, listener),
            httpx.AsyncClient(base_url=root, headers=headers, timeout=20, verify=False) as http,
        ):
            yield Running(config, assembly, gateway, root, store, admin_key, key, http, reload)
    finally:
        await gateway.idle(2.0)
        await assembly.aclose()
        held.close()


@functools.cache
def _migrated() -> bytes:
    """A new store; making one takes longer than many a test."""
    with tempfile.TemporaryDirectory() as folder:
        migrate(path := Path(folder) / "new.db")
        return path.read_bytes()


@contextlib.asynccontextmanager
async def _serving(gateway: Gateway, listener: socket.socket) -> AsyncIterator[None]:
    """The product's uvicorn without its ticking main loop, which would cost each test 0.2 s."""
    served = server(gateway, drain_s=2.0)
    served.config.load()
    served.lifespan = served.config.lifespan_class(served.config)
    await served.startup(sockets=[listener])
    try:
        yield
    finally:
        for each in served.servers:
            each.close()
        for connection in list(served.server_state.connections):
            connection.shutdown()
        async with asyncio.timeout(5):
            while served.server_state.tasks:
                await asyncio.wait(served.server_state.tasks)
        listener.close()
