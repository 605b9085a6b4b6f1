"""Puts the gateway of one worker together, and again on every reload."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import random
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmrouter.backends.echo import EchoBackend
from llmrouter.backends.openai import OpenAIBackend
from llmrouter.backends.pool import Pool
from llmrouter.backends.probe import Prober
from llmrouter.config import Config, PoolConfig
from llmrouter.database import change_counters, database_path
from llmrouter.errors import ConfigError, RouterError
from llmrouter.gateway.asgi import App, Gateway
from llmrouter.gateway.attempt import ModelRoute
from llmrouter.gateway.gauges import pool_gauges, store_gauges
from llmrouter.gateway.pipeline import Pipeline
from llmrouter.gateway.state import Keys, State
from llmrouter.gateway.stores import Books, open_books
from llmrouter.gateway.tiers import Tier, tier_models
from llmrouter.gateway.wire import Labeller
from llmrouter.ledger.prices import keep_prices
from llmrouter.pricing.book import PriceBook
from llmrouter.protocols import Backend, Ledger
from llmrouter.quality.samples import SampleBook, SamplePolicy
from llmrouter.registry import strategy_factory
from llmrouter.routing.intent import label
from llmrouter.routing.rules import RuleSet, compile_rules
from llmrouter.routing.versions import RoutingStore
from llmrouter.shared_store import SharedStore, close_store, migrate_store, reading, shared_store
from llmrouter.telemetry.metrics import Metrics
from llmrouter.tenancy.keys import KeyRing, load_keys
from llmrouter.tenancy.limits import LimitBook
from llmrouter.tenancy.pepper import confirm_pepper, load_pepper
from llmrouter.types import Principal, RoutingVersion, Rule

if TYPE_CHECKING:
    from llmrouter.backends.breaker_hints import BreakerHints

__all__ = ["Assembly", "RunnerUrls", "prepare_store", "rules_drift", "seed_rules"]

_log = logging.getLogger("llmrouter.gateway")

_WATCH_S = 0.5
"""How often a worker asks the store for new keys and rules; every worker has them within a second."""
_REPRICE_S = 60.0

RunnerUrls = Mapping[str, tuple[str, ...]]
"""Base addresses of the replicas that runners started, by pool."""


def prepare_store(config: Config) -> Path:
    """Create or migrate the stores, and seed empty ones with the file's rules as version 1; returns the gateway's file.

    Raises:
        ConfigError, StoreUnavailable: the store cannot be used.
        UsageError: a seeded rule is not valid.
    """
    store = migrate_store(config.store)
    confirm_pepper(store, load_pepper(config.store, database_path(config.store.url)))
    rules = seed_rules(config)
    compile_rules(RoutingVersion(1, rules, datetime.now(UTC), author="configuration"), config)
    RoutingStore(store).seed(rules)
    return database_path(config.store.url)


def seed_rules(config: Config) -> tuple[Rule, ...]:
    """The configuration's rules as the router's type."""
    return tuple(Rule(**rule.model_dump()) for rule in config.routing.rules)


def rules_drift(config: Config, store: SharedStore) -> str | None:
    """Says so when the file's rules, which only seeded version 1, are not those that are in force."""
    current = RoutingStore(store).current()
    if not config.routing.rules or _comparable(seed_rules(config)) == _comparable(current.rules):
        return None
    return (
        f"the rules of the file are not in force: the store's routing version {current.version} has others; "
        "publish the file's with `llmrouter rules apply FILE`"
    )


def _comparable(rules: Sequence[Rule]) -> list[tuple[Any, ...]]:
    return sorted(
        (r.rule_id, repr(sorted(r.match.items())), r.model_id, r.tier_role, r.weight, r.priority) for r in rules
    )


class Assembly:
    """The parts of one worker with their life: `start`, any number of `reload`s, `aclose`.

    Args:
        config: checked; `prepare_store` has been called for it.
        runner_urls: addresses of pools that have a runner.
        ledger: the books; None opens the configured store.
    """

    def __init__(
        self, config: Config, *, version: int = 1, runner_urls: RunnerUrls | None = None, ledger: Ledger | None = None
    ) -> None:
        self.metrics = Metrics()
        self.path = database_path(config.store.url)
        self.store = shared_store(config.store, keep=True)
        """Where keys and rules are."""
        self._runner_urls = dict(runner_urls or {})
        self._now = time.monotonic
        self._rng = random.Random()  # noqa: S311 - spreads load, guards nothing
        self._pools: dict[str, Pool] = {}
        self._backends: list[Backend] = []
        self._closing: set[asyncio.Task[None]] = set()
        self._probers: dict[str, Prober] = {}
        self._watcher: asyncio.Task[None] | None = None
        self._counters: dict[str, int] = {}
        self._store_down = False
        self.pepper = load_pepper(config.store, self.path)
        self._keys = Keys(KeyRing(self.pepper))
        self._routing = RoutingStore(self.store)
        self._counters = self._read_store_version()
        self._keys.ring.replace(load_keys(self.store))
        self._books = (
            open_books(config, self.path, self.store, lambda: self.state.config, self.metrics.unlimited)
            if ledger is None
            else Books(ledger)
        )
        self._hints = _hints(config, lambda: self._pools)
        self._samples = SampleBook(self.path, SamplePolicy.of(config))
        self._pipeline = Pipeline(
            self._state(config, version, self._routing.current(), self.priced(config)),
            self._books.ledger,
            self._samples,
            self.metrics,
            now=self._now,
        )

    @property
    def state(self) -> State:
        return self._pipeline.state

    @property
    def pools(self) -> Mapping[str, Pool]:
        return self._pools

    def authenticate(self, authorization: bytes | None) -> Principal:
        """Whose key that is, for the admin plane; raises as `KeyRing.authenticate` does."""
        return self._keys.authenticate(authorization)

    def gateway(self, admin: App | None) -> Gateway:
        """The ASGI app of the data port."""
        return Gateway(self._pipeline, admin=admin, ready=self.not_ready)

    async def start(self) -> None:
        """Start probing the pools and watching the store."""
        self._books.start()
        if self._hints is not None:
            self._hints.start()
        self._sync_probers()
        self._watcher = asyncio.create_task(self._watch(), name="watch store")

    def priced(self, config: Config) -> PriceBook:
        """The prices of a configuration, kept in the store; reads and writes files, so call it in a thread.

        Raises:
            RouterError: a price is not known, or the store cannot be written.
        """
        prices = PriceBook(config, lambda: datetime.now(UTC))
        keep_prices(self.path, prices.prices())
        return prices

    def reload(self, config: Config, version: int, prices: PriceBook | None = None) -> None:
        """Swap in a new configuration; requests under way keep the snapshot they began with.

        `prices` are those of `priced`, where that was called elsewhere.

        Raises:
            RouterError: the new configuration cannot be used; the old one stays in force, whole.
        """
        check_reload(self.state.config, config)
        samples = SamplePolicy.of(config)
        replaced, self._backends = self._backends, []
        try:
            self._pipeline.state = self._state(config, version, self.state.routing, prices or self.priced(config))
        except RouterError:
            self._backends = replaced
            raise
        self._samples.policy = samples
        for gone in self._pools.keys() - config.pools.keys():
            del self._pools[gone]
        if self._watcher is not None:
            self._sync_probers()
        for backend in replaced:
            self._close_later(backend.aclose())

    async def aclose(self) -> None:
        """Stop the background work, flush and close the books, close idle connections."""
        if self._watcher is not None:
            self._watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watcher
        for prober in self._probers.values():
            await prober.aclose()
        if self._hints is not None:
            await self._hints.aclose()
        await self._books.ledger.aclose()
        await self._samples.aclose()
        await asyncio.to_thread(close_store, self.store)
        for backend in self._backends:
            await backend.aclose()
        if self._closing:
            await asyncio.wait(self._closing)

    def gauges(self, active: int) -> dict[str, list[list[str | float]]]:
        """Rows for `/metrics`, with the number of requests under way."""
        return {**pool_gauges(self._pools.values(), active), **store_gauges(self._books, self._samples)}

    def not_ready(self) -> str | None:
        """Why traffic should go elsewhere: a tier none of whose pools has a usable replica."""
        now = self._now()
        for tier_id, tier in self.state.config.tiers.items():
            pools = [self.state.routes[model_id].pool for model_id in tier.roles.values()]
            if not any(replica.usable(now) for pool in pools for replica in pool.replicas):
                return f"no pool of tier {tier_id} has a usable replica"
        return None

    def _state(self, config: Config, version: int, routing: RoutingVersion, prices: PriceBook) -> State:
        """Build a snapshot; all that can fail comes before anything that running requests see."""
        rules = compile_rules(routing, config)
        tiers = self._tiers(config, rules)
        backends = {pool_id: self._open_backends(pool_id, config) for pool_id in config.pools}
        routes = {}
        for pool_id, pool_config in config.pools.items():
            pool = Pool.with_replicas(
                pool_id,
                pool_config,
                backends[pool_id],
                self._pools.get(pool_id),
                now=self._now,
                rng=self._rng,
                classes=config.classes,
            )
            self._pools[pool_id] = pool
            routes[pool_config.model] = ModelRoute(
                model_id=pool_config.model,
                model=config.models[pool_config.model],
                pool_id=pool_id,
                pool=pool,
                timeouts=pool_config.timeouts,
                clamp_output_tokens=config.limits.clamp_output_tokens,
                keep_alive_s=config.server.keepalive_comment_s,
                classes=config.classes,
                send_priority=pool_config.send_priority,
            )
        return State(
            version=version,
            config=config,
            routing=routing,
            keys=self._keys,
            tiers=tiers,
            routes=routes,
            prices=prices,
            reference_model=config.reference_model,
            limits=LimitBook(config),
            label=_labeller(routing),
            salt_secret=self.pepper,
        )

    def _tiers(self, config: Config, rules: RuleSet) -> dict[str, Tier]:
        clamp = config.limits.clamp_output_tokens
        return {
            tier_id: Tier(
                tier_id,
                tier_models(config, tier_id),
                strategy_factory(tier.strategy)(tier_id, config, rules),
                clamp=clamp,
            )
            for tier_id, tier in config.tiers.items()
        }

    def _open_backends(self, pool_id: str, config: Config) -> list[tuple[Backend, str | None]]:
        pool = config.pools[pool_id]
        if pool.api == "echo":
            return [(EchoBackend(name=f"{pool_id}/0", model=pool.model), None)]
        urls = self._runner_urls.get(pool_id) if pool.runner is not None else pool.urls
        if urls is None:
            raise ConfigError(f"pools.{pool_id}: its runner has not been started; restart the gateway to add it")
        opened: list[tuple[Backend, str | None]] = [
            (_open(f"{pool_id}/{position}", url, pool, config), url) for position, url in enumerate(urls)
        ]
        self._backends += [backend for backend, _ in opened]
        return opened

    def _close_later(self, closing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(closing)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _sync_probers(self) -> None:
        for gone in self._probers.keys() - self._pools.keys():
            self._close_later(self._probers.pop(gone).aclose())
        for pool_id, pool in self._pools.items():
            if pool_id not in self._probers:
                self._probers[pool_id] = Prober(pool, rng=self._rng)
                self._probers[pool_id].start()

    async def _watch(self) -> None:
        """Follow keys and rules in the store, and prices on the clock."""
        repriced = self._now()
        while True:
            await asyncio.sleep(_WATCH_S)
            try:
                await self.follow_store()
                if self._now() - repriced >= _REPRICE_S:
                    repriced = self._now()
                    await asyncio.to_thread(self._reprice, self.state.prices)
                if self._store_down:
                    _log.warning("the store answers again")
                self._store_down = False
            except RouterError as error:
                # Keys and rules stay as they were last seen; a store that is down is never a reason for a 401.
                if not self._store_down:
                    _log.error("the store cannot be read, keys and rules stay as they are: %s", error.message)
                self._store_down = True

    async def follow_store(self) -> None:
        """Take over keys and rules that have changed; raises `StoreUnavailable`."""
        counters = await asyncio.to_thread(self._read_store_version)
        if counters == self._counters:
            return
        keys = await asyncio.to_thread(load_keys, self.store)
        routing = await asyncio.to_thread(self._routing.current)
        self._keys.ring.replace(keys)
        if routing.version != self.state.routing.version:
            rules = compile_rules(routing, self.state.config)
            self._pipeline.state = dataclasses.replace(
                self.state,
                routing=routing,
                tiers=self._tiers(self.state.config, rules),
                label=_labeller(routing),
            )
            _log.info("routing version %d is in force", routing.version)
        self._counters = counters

    def _reprice(self, prices: PriceBook) -> None:
        changed = prices.refresh()
        if changed:
            keep_prices(self.path, prices.prices())
            _log.info("new prices are in force for %s", ", ".join(changed))

    def _read_store_version(self) -> dict[str, int]:
        with reading(self.store) as connection:
            return change_counters(connection)


def check_reload(old: Config, new: Config) -> None:
    """Raises `ConfigError` for changes that only a restart can make."""
    fixed = {
        "server.listen": (old.server.listen, new.server.listen),
        "server.workers": (old.server.workers, new.server.workers),
        "admin.listen": (old.admin.listen, new.admin.listen),
        "store": (old.store, new.store),
    }
    runners_old = {pool_id: pool.runner for pool_id, pool in old.pools.items() if pool.runner is not None}
    runners_new = {pool_id: pool.runner for pool_id, pool in new.pools.items() if pool.runner is not None}
    changed = [name for name, (was, is_now) in fixed.items() if was != is_now]
    changed += [
        f"pools.{pool_id}.runner" for pool_id in runners_new if runners_new[pool_id] != runners_old.get(pool_id)
    ]
    if changed:
        raise ConfigError(f"a reload cannot change {', '.join(changed)}; restart the gateway")


def _open(name: str, url: str, pool: PoolConfig, config: Config) -> OpenAIBackend:
    return OpenAIBackend(
        name=name,
        base_url=url,
        engine=pool.engine,
        model=pool.upstream_model or pool.model,
        cap_field=pool.max_tokens_field,
        api_key=pool.api_key.get_secret_value() if pool.api_key is not None else None,
        headers={name: value.get_secret_value() for name, value in pool.headers.items()},
        idle_s=pool.idle_connection_s,
        max_body_bytes=config.limits.max_answer_bytes,
    )


def _hints(config: Config, pools: Callable[[], Mapping[str, Pool]]) -> BreakerHints | None:
    """Warnings between the breakers of several gateways, where they share a store for them."""
    url = config.store.limits_url
    if url is None:
        return None
    from llmrouter.backends.breaker_hints import BreakerHints, RedisHints

    return BreakerHints(RedisHints(url.get_secret_value()), pools)


def _labeller(routing: RoutingVersion) -> Labeller | None:
    """The built-in labeller, where a rule wants to know the intent."""
    if not any("intent" in rule.match for rule in routing.rules):
        return None
    return lambda text, has_tools: label(text, has_tools=has_tools)
