"""`llmrouter serve`: the gateway, with its progress told on standard error."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from llmrouter.cli.options import ConfigPath, Listen, Workers, example
from llmrouter.cli.output import say, warn

if TYPE_CHECKING:
    from llmrouter.config import Config

__all__ = ["EXAMPLE", "serve"]

EXAMPLE = example("llmrouter serve --listen 127.0.0.1:8080 --workers 2")


def serve(
    config: ConfigPath = Path("llmrouter.toml"),
    listen: Listen = None,
    workers: Workers = None,
) -> None:
    """Start the gateway: runners first, then the OpenAI-compatible API, until SIGTERM; SIGHUP reads the file again."""
    import uvloop

    from llmrouter.config import load
    from llmrouter.config_checks import oddities, refuse_contradictions
    from llmrouter.gateway.logs import set_up_logs
    from llmrouter.gateway.supervisor import Supervisor

    flags = {name: value for name, value in (("listen", listen), ("workers", workers)) if value is not None}
    loaded = load(config)
    effective = loaded.model_copy(update={"server": loaded.server.model_copy(update=flags)})
    refuse_contradictions(effective, str(config))
    for oddity in oddities(effective):
        warn(f"{config}: {oddity}")
    set_up_logs(loaded.log)
    supervisor = Supervisor(config, loaded, flags=flags, on_event=_Teller(config, effective))
    raise typer.Exit(uvloop.run(supervisor.run()))


class _Teller:
    """Puts the supervisor's events into words, except reloads, of which the log tells."""

    def __init__(self, path: Path, config: Config) -> None:
        from llmrouter.cli.progress import RunnerProgress

        self._path = path
        self._config = config
        self._progress = RunnerProgress()

    def __call__(self, name: str, facts: dict[str, Any]) -> None:
        if name == "runner":
            self._progress(facts["event"])
        elif name == "listening":
            self._listening(facts["base_url"], facts["admin"])
        elif name == "draining":
            say(f"draining: requests under way have {facts['drain_s']:g} s to finish")
        elif name == "stopped":
            say("stopped")

    def _listening(self, base_url: str, admin: str | None) -> None:
        say(f"base URL   {base_url}")
        say(f"admin      {admin or base_url.removesuffix('/v1')}/v1/admin (with an admin-scoped key)")
        tier = next(iter(self._config.tiers))
        body = f'{{"model": "{tier}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
        say(f"""try        curl {base_url}/chat/completions -H "Authorization: Bearer $KEY" -d '{body}'""")
        say(f"stop with  Ctrl-C or SIGTERM; SIGHUP reads {self._path} again")
        self._warn_without_keys()

    def _warn_without_keys(self) -> None:
        from llmrouter.errors import RouterError
        from llmrouter.shared_store import shared_store
        from llmrouter.tenancy.keys import load_keys

        try:
            keys = load_keys(shared_store(self._config.store))
        except RouterError as error:
            warn(error.message)
            return
        if not keys:
            tenant = next(iter(self._config.tenants), "default")
            warn(
                "no API key exists yet, so every request gets 401; make one with\n"
                f"  llmrouter keys create --tenant {tenant} --config {self._path}"
            )
