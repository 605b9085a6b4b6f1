"""Metrics of all workers of one machine together, through one small file a worker slot.

Slots are numbered, not named after processes: a worker that is started again continues the counters of its slot, so
sums never run backwards and no dead process leaves a file behind.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric

from llmrouter.telemetry.metrics import Metrics, render

__all__ = ["MetricSlots", "clear_slots", "render_slots"]

Gauges = Mapping[str, list[list[Any]]]
"""Gauge name → rows of label values and the value last; empty of a slot whose worker is gone."""

GAUGES = {
    "llmrouter_workers": ("Workers that report.", ()),
    "llmrouter_pool_in_flight": ("Calls under way.", ("pool", "class")),
    "llmrouter_pool_queued": ("Requests waiting for a slot.", ("pool", "class")),
    "llmrouter_replica_up": ("1 healthy, 0 down, 0.5 unknown; worst of all workers' views.", ("pool", "replica")),
    "llmrouter_replica_breaker_open": ("Workers whose breaker for the replica is not closed.", ("pool", "replica")),
    "llmrouter_active_requests": ("Requests under way.", ()),
    "llmrouter_ledger_backlog": ("Entries in this gateway's file that the ledger database may not have yet.", ()),
    "llmrouter_ledger_refused": ("Entries that the ledger database will not hold, of the worker that ships.", ()),
    "llmrouter_samples": ("Calls chosen as samples since the workers started, by what became of them.", ("outcome",)),
    "llmrouter_routing_version": ("The routing version that every worker has reached.", ()),
    "llmrouter_routing_refused": ("1 while the newest routing version cannot be used and an older one serves.", ()),
    "llmrouter_router_drift": (
        "Evidence that a learned tier's requests have drifted, as a part of what is needed to say so; worst worker's.",
        ("tier",),
    ),
    "llmrouter_router_fallback": ("1 for a learned tier that drift has moved to its safe operating point.", ("tier",)),
}
_WORST = frozenset({"llmrouter_replica_up", "llmrouter_routing_version"})
_SAME = frozenset(
    {
        *("llmrouter_ledger_backlog", "llmrouter_routing_refused"),
        *("llmrouter_router_drift", "llmrouter_router_fallback"),
    }
)
"""What all workers see of one thing; the highest counts."""


class MetricSlots:
    """This worker's slot, and a view of all."""

    def __init__(self, folder: Path, slot: int, metrics: Metrics) -> None:
        self._folder = folder
        self._file = folder / f"worker-{slot}.json"
        self._metrics = metrics
        folder.mkdir(parents=True, exist_ok=True)
        previous = _read(self._file)
        if previous is not None:
            metrics.restore(previous["metrics"])

    def publish(self, gauges: Gauges) -> None:
        """Write this worker's values where the others can read them; a full disk costs freshness, not the worker."""
        temporary = self._file.with_suffix(f".{os.getpid()}")
        with contextlib.suppress(OSError):
            temporary.write_text(json.dumps({"metrics": self._metrics.snapshot(), "gauges": gauges}))
            temporary.replace(self._file)

    def render(self, gauges: Gauges) -> bytes:
        """The Prometheus text of all workers, this one's as of now."""
        others = [found for path in _files(self._folder) if path != self._file and (found := _read(path))]
        return _render([{"metrics": self._metrics.snapshot(), "gauges": gauges}, *others])


def clear_slots(folder: Path) -> None:
    """Before the workers of a new gateway start: what an earlier one was doing when it ended is over.

    Its counters stay, also those of slots that are not used any more, so that no sum runs backwards.
    """
    for path in _files(folder):
        found = _read(path)
        with contextlib.suppress(OSError):
            if found is not None:
                path.write_text(json.dumps({**found, "gauges": {}}))


def render_slots(folder: Path) -> bytes:
    """The Prometheus text of all workers as they last wrote it, for a process that is none of them."""
    return _render([found for path in _files(folder) if (found := _read(path))])


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("worker-*.json"))


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return found if found.keys() == {"metrics", "gauges"} else None


def _render(slots: list[dict[str, Any]]) -> bytes:
    return render([slot["metrics"] for slot in slots], _gauges([slot["gauges"] for slot in slots]))


def _merged(name: str, known: float, value: float) -> float:
    if name in _WORST:
        return min(known, value)
    return max(known, value) if name in _SAME else known + value


def _gauges(slots: Iterable[Gauges]) -> list[Metric]:
    values: dict[str, dict[tuple[str, ...], float]] = {name: {} for name in GAUGES}
    for slot in slots:
        told = {**slot, "llmrouter_workers": [[1]]} if slot else slot
        for name, rows in told.items():
            for *labels, value in rows:
                key = tuple(labels)
                known = values[name].get(key)
                if known is None:
                    values[name][key] = value
                else:
                    values[name][key] = _merged(name, known, value)
    families: list[Metric] = []
    for name, (text, label_names) in GAUGES.items():
        family = GaugeMetricFamily(name, text, labels=label_names)
        for label_values, value in sorted(values[name].items()):
            family.add_metric(label_values, value)
        families.append(family)
    return families
