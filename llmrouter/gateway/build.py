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
from llmrouter.errors import ConfigError, RouterError, StoreUnavailable
from llmrouter.gateway.artefacts import ArtefactShelf, InForce, newest_usable
from llmrouter.gateway.asgi import App, Gateway
from llmrouter.gateway.attempt import ModelRoute
from llmrouter.gateway.drift_watch import DriftWatch, watches_of
from llmrouter.gateway.gauges import pool_gauges, routing_gauges, store_gauges
from llmrouter.gateway.pipeline import Pipeline
from llmrouter.gateway.state import Keys, State
from llmrouter.gateway.stores import Books, open_books
from llmrouter.gateway.tiers import Tier, tier_models
from llmrouter.gateway.verifiers import Verifiers
from llmrouter.gateway.wire import Labeller
from llmrouter.ledger.prices import keep_prices
from llmrouter.pricing.book import PriceBook
from llmrouter.protocols import Backend, Ledger
from llmrouter.quality.samples import SampleBook, SamplePolicy
from llmrouter.registry import LearnedParts, build_strategy
from llmrouter.routing.artefact_store import ArtefactStore
from llmrouter.routing.intent import label
from llmrouter.routing.rules import RuleSet, compile_rules
from llmrouter.routing.versions import Fallback, RoutingStore
from llmrouter.shared_store import SharedStore, close_store, migrate_store, reading, shared_store
from llmrouter.telemetry.metrics import Metrics
from llmrouter.tenancy.keys import KeyRing, load_keys
from llmrouter.tenancy.limits import LimitBook
from llmrouter.tenancy.pepper import confirm_pepper, load_pepper
from llmrouter.types import Principal, RoutingVersion, Rule

if TYPE_CHECKING:
    from llmrouter.backends.breaker_hints import BreakerHints

__all__ = ["Assembly", "Prepared", "RunnerUrls", "prepare_store", "rules_drift", "seed_rules"]

_log = logging.getLogger("llmrouter.gateway")

_WATCH_S = 0.5
"""How often a worker asks the store for new keys and rules; every worker has them within a second."""
_LOOK_S = 5.0
_REPRICE_S = 60.0

RunnerUrls = Mapping[str, tuple[str, ...]]
"""Base addresses of the replicas that runners started, by pool."""


@dataclasses.dataclass(frozen=True)
class Prepared:
    """What a configuration needs from files and the store before it can serve."""

    prices: PriceBook
    learned: Mapping[str, InForce]


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
        self._verifiers = Verifiers()
        self._backends: list[Backend] = []
        self._closing: set[asyncio.Task[None]] = set()
        self._probers: dict[str, Prober] = {}
        self._watcher: asyncio.Task[None] | None = None
        self._counters: dict[str, int] = {}
        self._store_down = False
        self.pepper = load_pepper(config.store, self.path)
        self._keys = Keys(KeyRing(self.pepper))
        self._routing = RoutingStore(self.store)
        self._shelf = ArtefactShelf(ArtefactStore(self.store, self.pepper))
        self._memory: dict[str, dict[str, Any]] = {}
        self._refused: str | None = None
        """Why the newest routing version is not the one in force."""
        self._counters = self._read_store_version()
        self._keys.ring.replace(load_keys(self.store))
        self._books = (
            open_books(config, self.path, self.store, lambda: self.state.config, self.metrics.unlimited)
            if ledger is None
            else Books(ledger)
        )
        self._hints = _hints(config, lambda: self._pools)
        self._samples = SampleBook(self.path, SamplePolicy.of(config))
        routing, learned, why_not = newest_usable(config, self._routing, self._shelf)
        self._note_refused(routing, why_not)
        self._pipeline = Pipeline(
            self._state(config, version, routing, Prepared(self._priced(config), learned), {}),
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

    def prepare(self, config: Config) -> Prepared:
        """What `reload` needs of a configuration; reads and writes files and the store, so call it in a thread.

        Raises:
            RouterError: a price is not known, an artefact cannot be used, or the store cannot be written.
        """
        routing = self.state.routing
        self._shelf.forget_folders()
        learned = self._shelf.in_force(config, routing, self._routing.fallbacks(routing.version))
        return Prepared(self._priced(config), learned)

    def reload(self, config: Config, version: int, prepared: Prepared | None = None) -> None:
        """Swap in a new configuration; requests under way keep the snapshot they began with.

        `prepared` is what `prepare` made, where that was called elsewhere.

        Raises:
            RouterError: the new configuration cannot be used; the old one stays in force, whole.
        """
        check_reload(self.state.config, config)
        samples = SamplePolicy.of(config)
        replaced, self._backends = self._backends, []
        try:
            now = self.state
            ready = prepared or self.prepare(config)
            self._pipeline.state = self._state(config, version, now.routing, ready, now.watches)
        except RouterError:
            self._backends = replaced
            raise
        self._samples.policy = samples
        if self._refused is not None:
            self._counters = {}  # With this configuration the newest routing version may be usable.
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
        return {
            **pool_gauges(self._pools.values(), active),
            **store_gauges(self._books, self._samples),
            **routing_gauges(self.state, refused=self._refused is not None),
        }

    def not_ready(self) -> str | None:
        """Why traffic should go elsewhere: a tier none of whose pools has a usable replica."""
        now = self._now()
        for tier_id, tier in self.state.config.tiers.items():
            pools = [self.state.routes[model_id].pool for model_id in tier.roles.values()]
            if not any(replica.usable(now) for pool in pools for replica in pool.replicas):
                return f"no pool of tier {tier_id} has a usable replica"
        return None

    def _priced(self, config: Config) -> PriceBook:
        """The prices of a configuration, kept in the store."""
        prices = PriceBook(config, lambda: datetime.now(UTC))
        keep_prices(self.path, prices.prices())
        return prices

    def _state(
        self,
        config: Config,
        version: int,
        routing: RoutingVersion,
        prepared: Prepared,
        watches: Mapping[str, DriftWatch],
    ) -> State:
        """Build a snapshot; all that can fail comes before anything that running requests see."""
        rules = compile_rules(routing, config)
        watches = watches_of(config, routing, prepared.learned, watches)
        tiers = self._tiers(config, rules, prepared, watches)
        verifiers = self._verifiers.of(config)
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
            prices=prepared.prices,
            reference_model=config.reference_model,
            limits=LimitBook(config),
            label=_labeller(routing),
            learned=prepared.learned,
            watches=watches,
            salt_secret=self.pepper,
            verifiers=verifiers,
        )

    def _tiers(
        self, config: Config, rules: RuleSet, prepared: Prepared, watches: Mapping[str, DriftWatch]
    ) -> dict[str, Tier]:
        clamp = config.limits.clamp_output_tokens
        return {
            tier_id: Tier(
                tier_id,
                tier_models(config, tier_id),
                build_strategy(tier_id, config, rules, self._parts(tier_id, prepared, watches.get(tier_id))),
                clamp=clamp,
            )
            for tier_id in config.tiers
        }

    def _parts(self, tier_id: str, prepared: Prepared, watch: DriftWatch | None) -> LearnedParts | None:
        taken = prepared.learned.get(tier_id)
        if taken is None:
            return None
        return LearnedParts(
            artefact=taken.artefact,
            point=taken.point,
            price=prepared.prices.price,
            memory=self._memory.setdefault(tier_id, {}),
            observed=_unwatched if watch is None else watch.observe,
        )

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
        repriced = looked = self._now()
        while True:
            await asyncio.sleep(_WATCH_S)
            try:
                await self.follow_store()
                if self._now() - looked >= _LOOK_S:
                    looked = self._now()
                    await self.look_for_drift()
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
        """Take over keys and the routing version where they have changed; raises `StoreUnavailable`.

        A version that cannot be used, e.g. because its artefact was tampered with, leaves the one that is in force.
        """
        counters = await asyncio.to_thread(self._read_store_version)
        if counters == self._counters:
            return
        self._keys.ring.replace(await asyncio.to_thread(load_keys, self.store))
        await self._follow_routing()
        self._counters = counters

    async def _follow_routing(self) -> None:
        seen = self.state
        newer = await asyncio.to_thread(self._newer, seen)
        while self.state is not seen:  # a reload has come between
            seen = self.state
            newer = await asyncio.to_thread(self._newer, seen)
        if newer is None:
            return
        self._pipeline.state = newer
        _log.info("routing version %d is in force", newer.routing.version)
        for tier_id, taken in newer.learned.items():
            if taken.fallback is not None:
                _log.warning("tiers.%s is at its safe operating point: %s", tier_id, taken.fallback.reason)

    def _newer(self, state: State) -> State | None:
        """The snapshot with the newest routing version; None when that is in force already, or cannot be used."""
        routing = self._routing.current()
        fallbacks = self._routing.fallbacks(routing.version)
        if routing.version == state.routing.version and not _moved(state.learned, fallbacks):
            self._note_refused(routing, None)
            return None
        try:
            rules = compile_rules(routing, state.config)
            learned = self._shelf.in_force(state.config, routing, fallbacks)
            watches = watches_of(state.config, routing, learned, state.watches)
            tiers = self._tiers(state.config, rules, Prepared(state.prices, learned), watches)
        except StoreUnavailable:
            raise
        except RouterError as error:
            self._note_refused(state.routing, error.message)
            return None
        self._note_refused(routing, None)
        return dataclasses.replace(
            state, routing=routing, tiers=tiers, label=_labeller(routing), learned=learned, watches=watches
        )

    def _note_refused(self, in_force: RoutingVersion, why: str | None) -> None:
        if why is not None and why != self._refused:
            _log.error(
                "the newest routing version cannot be used, version %d stays in force: %s", in_force.version, why
            )
        self._refused = why

    async def look_for_drift(self) -> None:
        """Judge what the drift monitors have counted; what they find is logged once, and moves the tier where it may.

        Raises:
            StoreUnavailable: it could not be noted; the next look does it.
        """
        state = self.state
        for tier_id, watch in state.watches.items():
            what = watch.look()
            if not what or watch.noted:
                continue
            _log.warning("tiers.%s: requests are no longer like those it was calibrated on: %s", tier_id, what)
            if state.config.routing.drift.fall_back:
                await asyncio.to_thread(self._routing.fall_back, state.routing.version, tier_id, what)
            watch.noted = True

    def _reprice(self, prices: PriceBook) -> None:
        changed = prices.refresh()
        if changed:
            keep_prices(self.path, prices.prices())
            _log.info("new prices are in force for %s", ", ".join(changed))

    def _read_store_version(self) -> dict[str, int]:
        with reading(self.store) as connection:
            return change_counters(connection)


def _unwatched(_prediction: object, _move: object) -> None:
    """The ear of a tier whose requests nobody compares."""


def _moved(learned: Mapping[str, InForce], fallbacks: Mapping[str, Fallback]) -> bool:
    """Whether a tier has gone to its safe operating point since."""
    return any(taken.fallback != fallbacks.get(tier_id) for tier_id, taken in learned.items())


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
