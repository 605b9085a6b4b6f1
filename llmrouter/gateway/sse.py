"""Framing of server-sent events on bytes: any cut, any line end, never a decoded half character."""

from __future__ import annotations

__all__ = ["EventFramer", "payload"]


class EventFramer:
    """Collects blocks of bytes and gives back the data payloads of complete events.

    Understands LF, CR and CRLF, comments, several `data:` lines an event, and drops `id:`, `event:` and `retry:` lines,
    which break OpenAI clients. Reference: WHATWG HTML, "Server-sent events", parsing an event stream.
    """

    __slots__ = ("_pending_cr", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._pending_cr = False

    def events(self, block: bytes) -> list[bytes]:
        """The events that this block completes, as they came, with LF line ends and without the blank line."""
        data = self._unify(block)
        if self._rest:
            data = self._rest + data
        *whole, self._rest = data.split(b"\n\n")
        return whole

    def push(self, block: bytes) -> list[bytes]:
        """The payloads of the events that this block completes."""
        return [data for event in self.events(block) if (data := payload(event)) is not None]

    def flush(self) -> list[bytes]:
        """The last event, when the stream ended without a blank line."""
        rest, self._rest = self._rest.rstrip(b"\n"), b""
        data = payload(rest)
        return [] if data is None else [data]

    def _unify(self, block: bytes) -> bytes:
        if self._pending_cr:
            # A CR that ended the last block: with an LF now it was one line end, else it was one by itself.
            block = b"\n" + block.removeprefix(b"\n")
            self._pending_cr = False
        if b"\r" not in block:
            return block
        if block.endswith(b"\r"):
            self._pending_cr = True
            block = block[:-1]
        return block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def payload(event: bytes) -> bytes | None:
    """The data of an event, or None when it has none."""
    if event.startswith(b"data: ") and b"\n" not in event:
        return event[6:]
    lines = []
    for line in event.split(b"\n"):
        if line.startswith(b"data:"):
            value = line[5:]
            lines.append(value.removeprefix(b" "))
    return b"\n".join(lines) if lines else None
