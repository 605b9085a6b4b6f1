"""What runners tell the person who waits for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

__all__ = ["EventKind", "OnEvent", "RunnerEvent"]

EventKind = Literal["downloading", "starting", "ready", "exited", "restarting", "stopped"]


@dataclass(frozen=True, slots=True)
class RunnerEvent:
    """One step in the life of a runner, in words for a terminal and in figures for a progress bar."""

    kind: EventKind
    pool_id: str
    replica: str
    """`POOL/NUMBER`; the pool's id alone for a download, which all its replicas share."""
    message: str
    seconds: float | None = None
    """`ready`: how long the start took; `restarting`: the pause before the next start."""
    done_bytes: int = 0
    total_bytes: int = 0


OnEvent = Callable[[RunnerEvent], None]
"""Called in the event loop's thread; must not block."""
