"""Counters and histograms of one worker, cheap to feed on the hot path and mergeable over workers.

Tenants are not a label: exact figures by tenant come from the ledger, which has no cardinality limit.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from llmrouter.types import Attempt, LedgerEntry, Reservation

__all__ = ["Metrics", "render"]

_BUCKETS_S = (0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0, 6.0, 12.0, 24.0, 48.0, 96.0)
"""Edges of every time histogram; 0.8 and 1.5 s are there because the SLO is read from them."""

_COUNTERS = {
    "llmrouter_requests": ("Calls in the books.", ("tier", "model", "status")),
    "llmrouter_refused": ("Requests turned away before any attempt.", ("status", "code")),
    "llmrouter_attempts": ("Calls of replicas.", ("model", "outcome")),
    "llmrouter_fallbacks": ("Calls answered by another model because the first one tried failed.", ("tier",)),
    "llmrouter_escalations": ("Calls whose first answer a check turned down for a better model's.", ("tier", "reason")),
    "llmrouter_checks": ("Checked calls, by what was done with the first answer.", ("tier", "check", "outcome")),
    "llmrouter_extra_calls": ("Answered calls of replicas whose answer the client did not get.", ("tier", "role")),
    "llmrouter_tokens": ("Tokens of all attempts.", ("model", "kind")),
    "llmrouter_cost_usd": ("Dollars of all attempts.", ("model",)),
    "llmrouter_reference_cost_usd": ("Dollars that the answers would have cost on the reference model.", ("model",)),
    "llmrouter_usage_alerts": ("Usage objects of engines that do not add up.", ("kind",)),
    "llmrouter_ledger_lost": ("Calls that could not be booked; their answers were withheld.", ("code",)),
    "llmrouter_unlimited": ("Calls served without their limits, whose store could not be reached.", ("tier",)),
    "llmrouter_client_aborts": ("Clients that left before the end.", ("tier",)),
}
_MOST_REASONS = 32
_LONGEST_REASON = 48
_CHECKS = frozenset({"agreement", "self_check", "logprobs", "verifier", "format", "none"})
"""What the first word of `LedgerEntry.checks` may be and is counted by name."""
_HISTOGRAMS = {
    "llmrouter_ttft_seconds": ("Time to the first output of a stream.", ("tier", "model")),
    "llmrouter_request_seconds": ("Time of a whole call.", ("tier", "model")),
    "llmrouter_queue_seconds": ("Time waiting for a slot.", ("tier", "model")),
}


class Metrics:
    """What one worker has counted since it started."""

    def __init__(self) -> None:
        self._counters: dict[str, defaultdict[tuple[str, ...], float]] = {n: defaultdict(float) for n in _COUNTERS}
        self._histograms: dict[str, dict[tuple[str, ...], list[float]]] = {name: {} for name in _HISTOGRAMS}
        self._reasons: set[str] = set()
        """Reasons of escalations that have been counted by name."""

    def observe(self, entry: LedgerEntry, alerts: Iterable[str] = ()) -> None:
        """Count one finished call."""
        count = self._counters
        tier, model = entry.tier, entry.model_id or "none"
        count["llmrouter_requests"][tier, model, str(entry.status)] += 1
        for attempt in entry.attempts:
            count["llmrouter_attempts"][attempt.model_id, attempt.outcome] += 1
            count["llmrouter_tokens"][attempt.model_id, "input"] += attempt.usage.input_tokens
            count["llmrouter_tokens"][attempt.model_id, "output"] += attempt.usage.output_tokens
            count["llmrouter_cost_usd"][attempt.model_id,] += float(attempt.cost_usd)
        if entry.model_id is not None and len(entry.attempts) > 1:
            self._several(entry)
        if entry.checks:
            check = entry.checks.partition(" ")[0]
            count["llmrouter_checks"][tier, check if check in _CHECKS else "other", _outcome(entry)] += 1
        if entry.reference_cost_usd is not None and entry.reference_model_id is not None:
            cost = float(entry.reference_cost_usd)
            count["llmrouter_reference_cost_usd"][entry.reference_model_id,] += cost
        if entry.aborted:
            count["llmrouter_client_aborts"][tier,] += 1
        for alert in alerts:
            count["llmrouter_usage_alerts"][alert,] += 1
        if entry.ttft_s is not None:
            self._time("llmrouter_ttft_seconds", (tier, model), entry.ttft_s)
        self._time("llmrouter_request_seconds", (tier, model), entry.total_s)
        self._time("llmrouter_queue_seconds", (tier, model), entry.queue_s)

    def _several(self, entry: LedgerEntry) -> None:
        """Count what an answered call of several attempts was: a fallback, an escalation, one with extra calls."""
        tier, first, count = entry.tier, entry.attempts[0], self._counters
        given = next((attempt for attempt in entry.attempts if attempt.committed), first)
        for attempt in entry.attempts:
            if attempt is not given and attempt.outcome == "ok":
                count["llmrouter_extra_calls"][tier, _role(attempt)] += 1
        if first.outcome != "ok":
            if first.model_id != entry.model_id:
                count["llmrouter_fallbacks"][tier,] += 1
            return
        if _escalated(first, given):
            count["llmrouter_escalations"][tier, self._bounded(given.reason)] += 1

    def _bounded(self, reason: str) -> str:
        """A reason as a label: what is behind a space may be a figure, and a strategy may invent words."""
        word = reason.partition(" ")[0][:_LONGEST_REASON]
        if word not in self._reasons and len(self._reasons) == _MOST_REASONS:
            return "other"
        self._reasons.add(word)
        return word

    def refused(self, status: int, code: str) -> None:
        """Count a request that was turned away."""
        self._counters["llmrouter_refused"][str(status), code] += 1

    def unlimited(self, reservation: Reservation) -> None:
        """Count a call that was served although its limits could not be asked."""
        self._counters["llmrouter_unlimited"][reservation.tier,] += 1

    def lost(self, code: str) -> None:
        """Count a call that the ledger did not take."""
        self._counters["llmrouter_ledger_lost"][code,] += 1

    def snapshot(self) -> dict[str, Any]:
        """All values as plain JSON, for `render`."""
        return {
            "counters": {name: [[*labels, n] for labels, n in c.items()] for name, c in self._counters.items()},
            "histograms": {
                name: [[*labels, cells] for labels, cells in rows.items()] for name, rows in self._histograms.items()
            },
        }

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Continue from an earlier `snapshot`; families that no longer exist are left out."""
        for name, rows in snapshot["counters"].items():
            if name in self._counters:
                self._counters[name].update({tuple(labels): value for *labels, value in rows})
        for name, rows in snapshot["histograms"].items():
            cells = len(_BUCKETS_S) + 2
            if name in self._histograms:
                self._histograms[name].update({tuple(labels): row for *labels, row in rows if len(row) == cells})

    def _time(self, name: str, labels: tuple[str, ...], seconds: float) -> None:
        cells = self._histograms[name].get(labels)
        if cells is None:
            cells = self._histograms[name][labels] = [0.0] * (len(_BUCKETS_S) + 2)
        cells[bisect.bisect_left(_BUCKETS_S, seconds)] += 1
        cells[-1] += seconds


def _escalated(first: Attempt, given: Attempt) -> bool:
    """Whether a better model's answer was given although the first model had answered."""
    return first.outcome == "ok" and given.role != first.role and _role(given) != "peer"


def _outcome(entry: LedgerEntry) -> str:
    """What a check led to."""
    given = next((attempt for attempt in entry.attempts if attempt.committed), None)
    if given is None:
        return "unanswered"
    return "escalated" if _escalated(entry.attempts[0], given) else "accepted"


def _role(attempt: Attempt) -> str:
    return "peer" if attempt.role.startswith("peer") else attempt.role


def render(snapshots: Iterable[Mapping[str, Any]], gauges: Iterable[Metric] = ()) -> bytes:
    """The Prometheus text of all workers together, of which one may be of a release that counted less.

    Args:
        gauges: further families, already built.
    """
    registry = CollectorRegistry()
    registry.register(_Families(list(snapshots), list(gauges)))
    return bytes(generate_latest(registry))


class _Families(Collector):
    def __init__(self, snapshots: list[Mapping[str, Any]], gauges: list[Metric]) -> None:
        self._snapshots = snapshots
        self._gauges = gauges

    def collect(self) -> Iterable[Metric]:
        for name, (text, labels) in _COUNTERS.items():
            total: defaultdict[tuple[str, ...], float] = defaultdict(float)
            for snapshot in self._snapshots:
                for *key, value in snapshot["counters"].get(name, ()):
                    total[tuple(key)] += value
            counter = CounterMetricFamily(name, text, labels=labels)
            for label_values, value in sorted(total.items()):
                counter.add_metric(label_values, value)
            yield counter
        for name, (text, labels) in _HISTOGRAMS.items():
            yield _histogram(name, text, labels, [snapshot["histograms"].get(name, []) for snapshot in self._snapshots])
        yield from self._gauges


def _histogram(name: str, text: str, labels: tuple[str, ...], workers: list[list[list[Any]]]) -> HistogramMetricFamily:
    total: dict[tuple[str, ...], list[float]] = {}
    for rows in workers:
        for *key, cells in rows:
            known = total.setdefault(tuple(key), [0.0] * len(cells))
            for position, value in enumerate(cells):
                known[position] += value
    family = HistogramMetricFamily(name, text, labels=labels)
    for label_values, cells in sorted(total.items()):
        running, buckets = 0.0, []
        for edge, value in zip((*map(str, _BUCKETS_S), "+Inf"), cells[:-1], strict=True):
            running += value
            buckets.append((edge, running))
        family.add_metric(label_values, buckets, cells[-1])
    return family
