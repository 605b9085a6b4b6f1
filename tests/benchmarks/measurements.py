"""Measurements as a run would keep them, without running anything."""

from __future__ import annotations

from typing import Any

from benchmarks.gateway.measure import Measured

__all__ = ["client", "measured"]


def times(ms: float) -> dict[str, float]:
    return dict.fromkeys(("n", "mean", "min", "max", "p50", "p90", "p95", "p99", "p999"), ms)


def client(**changes: Any) -> dict[str, Any]:
    """What the client reports of 1,000 good answers."""
    report = {
        **{f"{name}_ms": times(1.0) for name in ("answer", "ttft", "first_delay", "delay", "gap", "lateness")},
        **dict.fromkeys(("unreachable", "refused", "broken", "wrong", "late", "unfinished", "retried"), 0),
        "issued": 1000,
        "good": 1000,
        "seconds": 2.0,
        "client_cpu_s": 0.1,
    }
    return {**report, **changes}


def measured(case: str = "json-16", target: str = "gateway", **changes: Any) -> Measured:
    """One case against one target that used half a CPU second."""
    values = {
        "round": 1,
        "client": client(),
        "cpu_s": 0.5,
        "root_cpu_s": 0.01,
        "wall_s": 2.0,
        "instruments_cpu_s": 0.4,
        "others_cpu_s": 0.02,
        "stolen_s": 0.0,
        "load": 0.1,
    }
    return Measured(case=case, target=target, **{**values, **changes})
