"""Framing of server-sent events on bytes: any cut, any line end, never a decoded half character."""

from __future__ import annotations

__all__ = ["EventFramer", "payload"]

_BOM = b"\xef\xbb\xbf"


class EventFramer:
    """Collects blocks of bytes and gives back whole events, whose lines then end in LF.

    Each byte is looked at and copied a bounded number of times, however the blocks are cut. Reference: WHATWG HTML,
    "Server-sent events", parsing an event stream.
    """

    __slots__ = ("_after_cr", "_rest")

    def __init__(self) -> None:
        self._rest = bytearray()
        self._after_cr = False

    @property
    def pending(self) -> int:
        """Bytes of an event that has not ended."""
        return len(self._rest)

    def push(self, block: bytes) -> bytes:
        """The events that this block completes, each with its blank line; `b""` when there is none."""
        if self._after_cr or b"\r" in block:
            block = self._unify(block)
        rest = self._rest
        if rest:
            searched = len(rest) - 1
            rest += block
            end = rest.rfind(b"\n\n", searched) + 2
            if end == 1:
                return b""
            events = bytes(rest[:end])
            del rest[:end]
            return events
        if block.endswith(b"\n\n"):
            return block
        end = block.rfind(b"\n\n") + 2
        if end == 1:
            rest += block
            return b""
        rest += block[end:]
        return block[:end]

    def flush(self) -> bytes:
        """The last event, when the stream ended without its blank line."""
        rest = bytes(self._rest)
        self._rest.clear()
        return rest + b"\n\n" if rest else b""

    def _unify(self, block: bytes) -> bytes:
        """The block with LF alone for line ends; a CR counts at once, and an LF in the next block belongs to it."""
        if self._after_cr and block:
            block = block.removeprefix(b"\n")
            self._after_cr = False
        if b"\r" not in block:
            return block
        self._after_cr = block.endswith(b"\r")
        return block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def payload(event: bytes) -> bytes | None:
    """The data of one event, its lines joined; None when it has none.

    Comments are dropped, and so are `id:`, `event:` and `retry:`, which break OpenAI clients.
    """
    if event.startswith(b"data: ") and b"\n" not in event:
        return event[6:] or None
    lines = event.removeprefix(_BOM).split(b"\n")
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:")) or None
