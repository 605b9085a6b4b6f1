"""Settings that are each valid and together make no sense, found before anything starts.

A contradiction is a setting written in the file that cannot do what it says because of another one, also where that
other one is only a default: somebody would rely on it in vain. An oddity loses nobody anything, but was probably not
meant. Defaults alone are never either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from urllib.parse import urlsplit

from pydantic import BaseModel

from llmrouter.backends.runners.llama_cpp import check_window
from llmrouter.config import Config, LlamaCppRunner, ModelConfig, PoolConfig, TierConfig, VllmRunner
from llmrouter.errors import ConfigError
from llmrouter.tenancy_checks import tenancy_contradictions, tenancy_oddities

__all__ = ["contradictions", "oddities", "refuse_contradictions"]


def refuse_contradictions(config: Config, source: str = "configuration") -> None:
    """Raises `ConfigError` naming every contradiction; `source` is the file, for the message."""
    found = contradictions(config)
    if found:
        raise ConfigError("\n".join(f"{source}: {line}" for line in found))


def contradictions(config: Config) -> list[str]:
    """One line each, beginning with the key at fault; empty when there are none."""
    found = [*_same_port(config), *_shared_without_a_secret(config)]
    for model_id, model in config.models.items():
        found += _output_past_window(f"models.{model_id}", model)
    for pool_id, pool in config.pools.items():
        at = f"pools.{pool_id}"
        found += [*_longer_than_a_request(at, pool, config), *_breaker_pauses(at, pool), *_two_credentials(at, pool)]
        found += [*_repeated_urls(at, pool), *_hosted_here(at, pool), *_runner_and_model(at, pool, config)]
    for tier_id, tier in config.tiers.items():
        at = f"tiers.{tier_id}"
        found += [*_missing_fallback(at, tier), *_longer_wait(at, tier, config)]
        if tier.is_learned:
            found += [*_unlisted_checks(at, tier), *_idle_checks(f"{at}.cascade", tier, config)]
    return [*found, *tenancy_contradictions(config)]


def oddities(config: Config) -> list[str]:
    """One line each, beginning with the key; empty when there are none."""
    return [
        *_late_drain(config),
        *_idle_queues(config),
        *_idle_models(config),
        *_idle_peers(config),
        *_idle_learning(config),
        *_idle_retries(config),
        *_odd_paths(config),
        *tenancy_oddities(config),
    ]


def _shared_without_a_secret(config: Config) -> Iterator[str]:
    if config.store.ledger_url is not None and config.store.secret is None:
        yield (
            "store.secret: not set, but gateways that share their keys in store.ledger_url need one secret, the same "
            "${VAR} on all of them"
        )


def _written(section: BaseModel, *names: str) -> list[str]:
    return [name for name in names if name in section.model_fields_set]


def _same_port(config: Config) -> Iterator[str]:
    # Port 0 asks for any free port, so twice the same text is two ports.
    if config.admin.listen == config.server.listen and not config.server.listen.endswith(":0"):
        yield "admin.listen: is the address of server.listen; leave it out to have admin routes on that port"


def _output_past_window(at: str, model: ModelConfig) -> Iterator[str]:
    most, window = model.max_output_tokens, model.context_window
    if most is not None and window is not None and most >= window:
        yield f"{at}.max_output_tokens: {most} leaves no room for a prompt in the context_window of {window}"


def _longer_than_a_request(at: str, pool: PoolConfig, config: Config) -> Iterator[str]:
    whole_s = config.server.request_timeout_s
    given = [(f"{at}.{name}", getattr(pool, name)) for name in _written(pool, "queue_timeout_s")]
    waits = _written(pool.timeouts, "connect_s", "first_byte_s", "between_chunks_s")
    given += [(f"{at}.timeouts.{name}", getattr(pool.timeouts, name)) for name in waits]
    for key, seconds in given:
        if seconds > whole_s:
            yield f"{key}: {seconds:g} s is longer than a request may take, server.request_timeout_s = {whole_s:g} s"


def _longer_wait(at: str, tier: TierConfig, config: Config) -> Iterator[str]:
    whole_s = config.server.request_timeout_s
    if _written(tier, "max_wait_s"):
        if tier.max_wait_s > whole_s:
            yield f"{at}.max_wait_s: {tier.max_wait_s:g} s is longer than server.request_timeout_s, {whole_s:g} s"
        if tier.max_wait_s > 0 and tier.retries == 0:
            yield f"{at}.max_wait_s: retries = 0 allows no call after a wait; set retries, or max_wait_s = 0"


def _breaker_pauses(at: str, pool: PoolConfig) -> Iterator[str]:
    rules = pool.breaker
    if _written(rules, "open_s", "max_open_s") and rules.open_s > rules.max_open_s:
        yield f"{at}.breaker: open_s = {rules.open_s:g} is longer than max_open_s = {rules.max_open_s:g}"


def _two_credentials(at: str, pool: PoolConfig) -> Iterator[str]:
    if pool.api_key is not None and any(name.lower() == "authorization" for name in pool.headers):
        yield f"{at}.headers: holds an authorization header although api_key makes one; keep one of them"


def _repeated_urls(at: str, pool: PoolConfig) -> Iterator[str]:
    plain = [url.rstrip("/") for url in pool.urls]
    for url in sorted({url for url in plain if plain.count(url) > 1}):
        yield f"{at}.urls: {url} is listed more than once and would count as several replicas"


def _hosted_here(at: str, pool: PoolConfig) -> Iterator[str]:
    if pool.hosted and (pool.runner is not None or pool.api == "echo"):
        yield f"{at}.hosted: this gateway itself starts the pool, so it is not somebody else's"


def _runner_and_model(at: str, pool: PoolConfig, config: Config) -> Iterator[str]:
    window = config.models[pool.model].context_window
    if isinstance(pool.runner, LlamaCppRunner):
        try:
            check_window(pool.runner, at.removeprefix("pools."), pool.model, window)
        except ConfigError as error:
            yield error.message
    elif isinstance(pool.runner, VllmRunner):
        yield from _tool_parser(at, pool, pool.runner, config)
        most = pool.runner.max_model_len
        if most is not None and window is not None and window > most:
            yield f"models.{pool.model}.context_window: {window} is more than {at}.runner.max_model_len = {most}"


def _tool_parser(at: str, pool: PoolConfig, runner: VllmRunner, config: Config) -> Iterator[str]:
    able = "tools" in config.capabilities_of(pool.model)
    if runner.tool_parser is not None and not able:
        yield (
            f"{at}.runner.tool_parser: no request with tools comes here, "
            f'because models.{pool.model}.capabilities does not list "tools"'
        )
    if able and runner.tool_parser is None and "--tool-call-parser" not in " ".join(runner.extra_args):
        yield (
            f'models.{pool.model}.capabilities: lists "tools", which vLLM refuses without a tool parser; '
            f"set {at}.runner.tool_parser"
        )


def _missing_fallback(at: str, tier: TierConfig) -> Iterator[str]:
    if _written(tier, "fallback"):
        for role in tier.fallback:
            if role not in tier.roles:
                yield f"{at}.fallback: names {role}, but the tier has no {role} model"


def _idle_checks(at: str, tier: TierConfig, config: Config) -> Iterator[str]:
    """Checks that a cascade could never run, or not in time."""
    cascade, small = tier.cascade, tier.small or ""
    silence_s = config.server.keepalive_comment_s
    if cascade.hold_back_s >= silence_s:
        yield (
            f"{at}.hold_back_s: {cascade.hold_back_s:g} s is not shorter than server.keepalive_comment_s = "
            f"{silence_s:g} s, and nothing may be sent before a beginning has been judged"
        )
    if not _written(cascade, "checks"):
        return
    for name in cascade.checks:
        if name in ("logprobs", "self_check") and "logprobs" not in config.capabilities_of(small):
            yield f'{at}.checks: {name} needs log-probabilities, and models.{small}.capabilities lists no "logprobs"'
    if "agreement" in cascade.checks and cascade.samples < 2 and not (tier.peers and cascade.max_peers):
        yield f"{at}.checks: agreement needs a second answer; give the tier peers, or samples of at least 2"
    if "verifier" in cascade.checks and cascade.verifier is None:
        yield f"{at}.checks: verifier is listed, but no verifier is named"


def _unlisted_checks(at: str, tier: TierConfig) -> Iterator[str]:
    cascade = tier.cascade
    if cascade.verifier is not None and "verifier" not in cascade.checks:
        yield f'{at}.cascade.verifier: checks does not list "verifier"'
    if _written(cascade, "samples") and cascade.samples > 1 and "agreement" not in cascade.checks:
        yield f'{at}.cascade.samples: checks does not list "agreement", which compares them'
    if _written(cascade, "max_peers") and cascade.max_peers > len(tier.peers):
        yield f"{at}.cascade.max_peers: {cascade.max_peers}, but the tier has {len(tier.peers)} peers"


def _late_drain(config: Config) -> Iterator[str]:
    server = config.server
    if _written(server, "drain_s") and server.drain_s > server.request_timeout_s:
        yield f"server.drain_s: no request lives longer than request_timeout_s = {server.request_timeout_s:g} s"


def _idle_queues(config: Config) -> Iterator[str]:
    for pool_id, pool in config.pools.items():
        if pool.max_concurrency is None:
            for name in _written(pool, "max_queue", "queue_timeout_s"):
                yield f"pools.{pool_id}.{name}: without max_concurrency no request ever waits in this queue"


def _idle_models(config: Config) -> Iterator[str]:
    pooled = {pool.model for pool in config.pools.values()}
    used = set(_models_of(config.tiers.values()))
    for model_id in config.models:
        if model_id not in pooled and model_id != config.reference_model:
            yield f"models.{model_id}: has no pool, so nothing can be sent to it"
        elif model_id in pooled and model_id not in used:
            yield f"models.{model_id}: plays no role in any tier, so its pool gets no request"


def _odd_paths(config: Config) -> Iterator[str]:
    for pool_id, pool in config.pools.items():
        for url in pool.urls:
            path = urlsplit(url).path.rstrip("/")
            if path.endswith(("/completions", "/embeddings")):
                yield f"pools.{pool_id}.urls: {url} names an endpoint; give the address up to and including /v1"
            elif not path:
                yield f"pools.{pool_id}.urls: {url} has no path; most servers answer under /v1"


def _idle_peers(config: Config) -> Iterator[str]:
    for tier_id, tier in config.tiers.items():
        if tier.peers and tier.strategy != "cascade":
            yield f'tiers.{tier_id}.peers: the strategy "{tier.strategy}" asks no peers'


def _idle_learning(config: Config) -> Iterator[str]:
    for tier_id, tier in config.tiers.items():
        if tier.strategy != "cascade":
            for name in _written(tier, "cascade"):
                yield f'tiers.{tier_id}.{name}: the strategy "{tier.strategy}" checks no answers'
        if not tier.is_learned:
            for name in _written(tier, "artefact", "escalation_share", "sticky_saving"):
                yield f'tiers.{tier_id}.{name}: the strategy "rules" has learned nothing; "router" or "cascade" has'
    if not any(tier.is_learned for tier in config.tiers.values()) and _written(config.routing, "drift"):
        yield "routing.drift: no tier has a learned strategy, so nothing is watched"


def _idle_retries(config: Config) -> Iterator[str]:
    for tier_id, tier in config.tiers.items():
        for model_id in tier.roles.values() if _written(tier, "retries") else ():
            pool_id = config.pool_of(model_id)
            pool = config.pools[pool_id]
            most = pool.breaker.failures * _replicas(pool)
            if 1 + tier.retries > most:
                yield (
                    f"tiers.{tier_id}.retries: while pool {pool_id} is down, its breaker stops the calls after {most}, "
                    f"before all {tier.retries} retries are made"
                )


def _replicas(pool: PoolConfig) -> int:
    return pool.runner.replicas if pool.runner is not None else max(len(pool.urls), 1)


def _models_of(tiers: Iterable[TierConfig]) -> Iterator[str]:
    for tier in tiers:
        yield from tier.roles.values()
        yield from tier.peers
