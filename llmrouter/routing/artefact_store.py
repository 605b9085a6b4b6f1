"""Artefacts in the store: signed when they come in, verified whenever they are read, gone only when nobody uses them.

Whoever can write to the store but does not know its secret can put no artefact in force and change none unnoticed.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from llmrouter.database import SharedConnection, from_instant, to_instant
from llmrouter.errors import ArtefactError, NotFound
from llmrouter.shared_store import SharedStore, reading, writing
from llmrouter.types import value

__all__ = ["ArtefactRefused", "ArtefactStore", "KeptArtefact"]

_UNUSED_FOR = timedelta(days=1)
"""After which an artefact that no version refers to is dropped: somebody uploaded it and did not publish."""


class ArtefactRefused(ArtefactError):
    """An artefact in the store is not what was put there, or was put there by somebody with another secret."""


@value
class KeptArtefact:
    """What lists show of an artefact, without its content."""

    digest: str
    about: Mapping[str, Any]
    """The part of its manifest that was kept beside it."""
    created_at: datetime


class ArtefactStore:
    """The artefacts of a migrated store; each call is one transaction of its own.

    Args:
        secret: signs; everybody who reads must have the same one.
    """

    def __init__(
        self, store: SharedStore, secret: bytes, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._store = store
        self._secret = secret
        self._now = now

    def put(self, digest: str, content: bytes, about: Mapping[str, Any]) -> None:
        """Keep an artefact and sign it; one that is there already stays as it is, if it is what it was.

        Artefacts that no version has referred to for a day go.

        Raises:
            ArtefactRefused: what is kept under that digest has been tampered with.
        """
        told = orjson.dumps(dict(about), option=orjson.OPT_SORT_KEYS).decode()
        oldest = to_instant(self._now() - _UNUSED_FOR)
        with writing(self._store) as connection:
            connection.execute(
                "DELETE FROM artefacts WHERE created_at < ? AND digest <> ? AND digest NOT IN"
                " (SELECT artefact_digest FROM routing_versions WHERE artefact_digest IS NOT NULL)",
                (oldest, digest),
            )
            if _row(connection, digest) is not None:
                self._verified(connection, digest)
                return
            signature = _signature(self._secret, digest, content, told)
            connection.execute(
                "INSERT INTO artefacts (digest, content, about, signature, created_at) VALUES (?, ?, ?, ?, ?)",
                (digest, content, told, signature, to_instant(self._now())),
            )

    def content(self, digest: str) -> bytes:
        """An artefact's content, exactly as it was put.

        Raises:
            NotFound: there is none of that digest.
            ArtefactRefused: it is not what was put there.
        """
        with reading(self._store) as connection:
            return self._verified(connection, digest)

    def about(self, digest: str) -> KeptArtefact:
        """What is known of an artefact; raises as `content` does."""
        with reading(self._store) as connection:
            self._verified(connection, digest)
            return _kept(connection, digest)

    def list(self) -> list[KeptArtefact]:
        """All of them, the newest first; what is told of them has not been verified."""
        with reading(self._store) as connection:
            rows = connection.execute(
                "SELECT digest, about, created_at FROM artefacts ORDER BY created_at DESC, digest"
            )
            return [KeptArtefact(digest, orjson.loads(about), from_instant(at)) for digest, about, at in rows]

    def _verified(self, connection: SharedConnection, digest: str) -> bytes:
        row = _row(connection, digest)
        if row is None:
            raise NotFound(f"the store has no artefact {digest[:64]!r}", param="artefact.digest")
        content, about, signature = row
        if not hmac.compare_digest(signature, _signature(self._secret, digest, content, about)):
            raise ArtefactRefused(
                f"the artefact {digest[:12]} in the store does not bear the signature of this store's secret: it has "
                "been changed, or the secret has; publish it again from its folder, or roll back to another version"
            )
        return bytes(content)


def _row(connection: SharedConnection, digest: str) -> tuple[bytes, str, str] | None:
    row = connection.execute("SELECT content, about, signature FROM artefacts WHERE digest = ?", (digest,)).fetchone()
    return None if row is None else (row[0], row[1], row[2])


def _kept(connection: SharedConnection, digest: str) -> KeptArtefact:
    about, at = connection.execute("SELECT about, created_at FROM artefacts WHERE digest = ?", (digest,)).fetchone()
    return KeptArtefact(digest, orjson.loads(about), from_instant(at))


def _signature(secret: bytes, digest: str, content: bytes, about: str) -> str:
    parts = (digest.encode(), hashlib.sha256(content).digest(), hashlib.sha256(about.encode()).digest())
    return hmac.new(secret, b"llmrouter artefact\0" + b"".join(parts), hashlib.sha256).hexdigest()
