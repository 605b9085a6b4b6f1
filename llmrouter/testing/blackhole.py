"""An address where connecting neither works nor fails."""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Self

__all__ = ["BlackHole"]


class BlackHole:
    """Listens with a full queue, so that Linux leaves every further connect unanswered; for tests of time-outs.

    `with BlackHole() as hole:` and connect to `hole.url`.
    """

    def __enter__(self) -> Self:
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))
        # Zero means a queue of one, which this filler takes.
        self._listener.listen(0)
        self._filler = socket.create_connection(self._listener.getsockname())
        return self

    @property
    def url(self) -> str:
        """A base URL ending in `/v1`."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._filler.close()
        self._listener.close()
