"""The state of pools, replicas and stores as gauge rows."""

from __future__ import annotations

from collections.abc import Iterable

from llmrouter.backends.breaker import BreakerState
from llmrouter.backends.pool import Health, Pool
from llmrouter.gateway.state import State
from llmrouter.gateway.stores import Books
from llmrouter.quality.samples import SampleBook

__all__ = ["pool_gauges", "routing_gauges", "store_gauges"]

_UP = {Health.UP: 1.0, Health.UNKNOWN: 0.5, Health.DOWN: 0.0}


def store_gauges(books: Books, samples: SampleBook) -> dict[str, list[list[str | float]]]:
    """Rows for `llmrouter.gateway.slots.GAUGES`: what is not yet where it belongs."""
    rows: dict[str, list[list[str | float]]] = {
        "llmrouter_samples": [[outcome, count] for outcome, count in samples.counts().items()]
    }
    if books.shipper is not None:
        shipping = books.shipper.status
        rows["llmrouter_ledger_backlog"] = [[shipping.backlog]]
        rows["llmrouter_ledger_refused"] = [[shipping.refused]]
    return rows


def routing_gauges(state: State, *, refused: bool) -> dict[str, list[list[str | float]]]:
    """Rows for `llmrouter.gateway.slots.GAUGES`: what this worker goes by."""
    return {
        "llmrouter_routing_version": [[state.routing.version]],
        "llmrouter_routing_refused": [[float(refused)]],
        "llmrouter_router_drift": [[tier_id, watch.level] for tier_id, watch in state.watches.items()],
        "llmrouter_router_fallback": [
            [tier_id, float(taken.fallback is not None)] for tier_id, taken in state.learned.items()
        ],
    }


def pool_gauges(pools: Iterable[Pool], active: int) -> dict[str, list[list[str | float]]]:
    """Rows for `llmrouter.gateway.slots.GAUGES`."""
    rows: dict[str, list[list[str | float]]] = {
        "llmrouter_pool_in_flight": [],
        "llmrouter_pool_queued": [],
        "llmrouter_replica_up": [],
        "llmrouter_replica_breaker_open": [],
        "llmrouter_active_requests": [[active]],
    }
    for status in (pool.status() for pool in pools):
        for latency_class, in_flight in status.in_flight_by_class.items():
            rows["llmrouter_pool_in_flight"].append([status.pool_id, latency_class, in_flight])
        for latency_class, queued in status.queued_by_class.items():
            rows["llmrouter_pool_queued"].append([status.pool_id, latency_class, queued])
        for replica in status.replicas:
            labels: list[str | float] = [status.pool_id, replica.name]
            rows["llmrouter_replica_up"].append([*labels, _UP[replica.health]])
            is_open = float(replica.breaker is not BreakerState.CLOSED)
            rows["llmrouter_replica_breaker_open"].append([*labels, is_open])
    return rows
