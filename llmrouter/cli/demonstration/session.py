"""One demo from the first download to the end of the gateway."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from llmrouter.cli.demonstration.client import Client
from llmrouter.cli.demonstration.folder import SMALL
from llmrouter.cli.demonstration.prompts import Prompt
from llmrouter.cli.demonstration.report import closing_words, show_report
from llmrouter.cli.demonstration.watch import Watch
from llmrouter.cli.output import say
from llmrouter.config import Config
from llmrouter.database import database_path
from llmrouter.errors import ConfigError, RouterError
from llmrouter.gateway.build import prepare_store
from llmrouter.gateway.listen import bind
from llmrouter.gateway.supervisor import Supervisor
from llmrouter.ledger.queries import recent_entries
from llmrouter.tenancy.keys import KeyStore
from llmrouter.tenancy.pepper import load_pepper
from llmrouter.types import LedgerEntry

__all__ = ["Session"]

_INTERRUPTED = 130
_KEY_LIFE = timedelta(days=30)


class Session:
    """Runs the gateway and is its first client.

    Args:
        path: the configuration file.
        config: what it holds.
        prompts: what to ask, in this order, one at a time.
        listen: address of the gateway; port 0 takes a free one.
        exit_after: end after the report; else serve until a signal.
    """

    def __init__(self, path: Path, config: Config, prompts: Sequence[Prompt], *, listen: str, exit_after: bool) -> None:
        self._path = path
        self._config = config
        self._prompts = prompts
        self._listen = listen
        self._exit_after = exit_after
        self._watch = Watch()

    async def run(self) -> int:
        """The exit code. Whatever happens, nothing that was started is left running.

        Raises:
            RouterError: something failed; the message says what, and what helps.
        """
        self._check_port()
        key = self._make_key()
        supervisor = Supervisor(self._path, self._config, flags={"listen": self._listen}, on_event=self._watch)
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(supervisor.run(ready=ready.set_result), name="gateway")
        try:
            base_url = await self._until_ready(serving, ready)
            showing = asyncio.create_task(self._show(base_url, key), name="demo")
            await asyncio.wait((serving, showing), return_when=asyncio.FIRST_COMPLETED)
            if not showing.done():
                showing.cancel()
                await asyncio.wait((showing,))
                serving.result()
                raise _Interrupted
            showing.result()
            if not self._exit_after:
                sys.stdout.write(f"\n{closing_words(base_url, key)}")
                sys.stdout.flush()
                self._watch.serving = True
                await serving
        except _Interrupted:
            return _INTERRUPTED
        finally:
            supervisor.stop()
            await asyncio.wait((serving,))
        return serving.result()

    def _check_port(self) -> None:
        """Find out before anything is downloaded that the port is taken."""
        try:
            bind(self._listen).close()
        except ConfigError as error:
            raise ConfigError(f"{error.message}; give another with --port, or --port 0 for any that is free") from error

    def _make_key(self) -> str:
        store = prepare_store(self._config)
        keys = KeyStore(store, load_pepper(self._config.store, store))
        tenant = next(iter(self._config.tenants))
        key, _ = keys.create(tenant, expires_at=datetime.now(UTC) + _KEY_LIFE, note="llmrouter demo")
        return key

    async def _until_ready(self, serving: asyncio.Task[int], ready: asyncio.Future[str]) -> str:
        say("starting the models (fetched once, then kept) and the gateway")
        self._watch.open()
        try:
            await asyncio.wait((serving, ready), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._watch.close()
        if ready.done():
            return ready.result()
        try:
            serving.result()
        except RouterError as error:
            raise self._with_way_out(error) from error
        raise _Interrupted

    def _with_way_out(self, error: RouterError) -> RouterError:
        """Without the large model the demo still runs, if that is asked for."""
        large = self._config.pools.get("large")
        model = large.runner.model if large is not None and large.runner is not None else SMALL
        if error.code != "model_unavailable" or model == SMALL or model not in error.message:
            return error
        way_out = f"Or let the small model play both parts: add --large {SMALL}"
        return RouterError(f"{error.message}\n{way_out}", code=error.code)

    async def _show(self, base_url: str, key: str) -> None:
        asked: list[tuple[Prompt, LedgerEntry]] = []
        store = database_path(self._config.store.url)
        async with Client(base_url, key) as client:
            for number, prompt in enumerate(self._prompts, 1):
                request_id = await self._ask(client, number, prompt)
                (entry,) = await asyncio.to_thread(recent_entries, store, 1, request_id)
                asked.append((prompt, entry))
        sys.stdout.write("\n")
        show_report(asked, self._config, self._path)

    async def _ask(self, client: Client, number: int, prompt: Prompt) -> str:
        """Ask and show the answer as it comes; the request's id."""
        out = sys.stdout
        out.write(f"\n[{number}/{len(self._prompts)}] {prompt.tier}: {prompt.text}\n")
        out.flush()

        def begin(model_id: str, reason: str) -> None:
            out.write(f"-> {model_id} ({reason})\n")

        def show(text: str) -> None:
            out.write(text)
            out.flush()

        try:
            reply = await client.ask(prompt, on_answer=begin, on_text=show)
        except RouterError as error:
            faults = "".join(f"\n{fault}" for fault in self._watch.faults)
            raise RouterError(f"request {number} to tier {prompt.tier} failed: {error.message}{faults}") from error
        out.write("\n")
        return reply.request_id


class _Interrupted(Exception):
    """A signal came before the report."""
