"""The table of samples: added to in one go, read whole or in bounded parts, and deleted for good.

Deleted rows are overwritten in the file (`secure_delete`), and with them goes what labels quote of them. The
write-ahead log holds them until its pages are used again, which may take long; `erase_log` empties it.
"""

from __future__ import annotations

import hashlib
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson

from llmrouter.database import from_instant, open_database, reading, store_errors, to_instant, writing
from llmrouter.errors import UsageError
from llmrouter.quality.encryption import CannotOpen, Vault
from llmrouter.types import value

__all__ = [
    "NewSample",
    "Sample",
    "SampleInfo",
    "Selection",
    "add_samples",
    "count_samples",
    "delete_samples",
    "erase_log",
    "list_samples",
    "purge_expired",
    "read_sample",
    "read_samples",
    "user_digest",
]


@value
class SampleInfo:
    """What is known of a sample without looking into it."""

    request_id: str
    ts: datetime
    tenant_id: str
    key_id: str
    endpoint: str
    tier: str
    model_id: str
    routing_version: int
    config_version: int
    redacted: Mapping[str, int]
    """How often something was masked, by kind."""
    sealed_by: str | None
    """The id of the key that it is encrypted under."""
    inclusion_probability: float
    expires_at: datetime


@value
class NewSample:
    """A sample as it is written: its contents are JSON, or sealed."""

    info: SampleInfo
    user_digest: str | None
    request: str | bytes
    answer: str | bytes | None


@value
class Sample:
    """A sample that can be read."""

    info: SampleInfo
    request: Any
    """The client's JSON object, masked."""
    choices: Any
    """The choices of the answer, masked; None where the answer was not kept."""

    def content(self) -> Mapping[str, Any] | None:
        """The prompt as items of labels have it: `messages` or `prompt`; None where it is neither."""
        for name, kind in (("messages", list), ("prompt", str)):
            if isinstance(self.request.get(name), kind):
                return {name: self.request[name]}
        return None


@value
class Selection:
    """Which samples are meant; what is None does not matter."""

    tenant_id: str | None = None
    request_id: str | None = None
    user_id: str | None = None
    """An end user of the tenant, which has to be given as well."""
    alive_at: datetime | None = None
    """Leave out those that have expired by then."""
    after_id: int = 0

    def where(self) -> tuple[str, list[Any]]:
        """The condition in SQL and its values."""
        if self.user_id is not None and self.tenant_id is None:
            raise UsageError("a user is known within a tenant only; name the tenant too")
        user = None if self.user_id is None else user_digest(self.tenant_id or "", self.user_id)
        alive = None if self.alive_at is None else to_instant(self.alive_at)
        wanted = [
            ("tenant_id = ?", self.tenant_id),
            ("request_id = ?", self.request_id),
            ("user_digest = ?", user),
            ("expires_at > ?", alive),
        ]
        given = [(sql, each) for sql, each in wanted if each is not None]
        return " AND ".join(["id > ?", *(sql for sql, _ in given)]), [self.after_id, *(each for _, each in given)]


def user_digest(tenant_id: str, user_id: str) -> str:
    """What stands for an end user: the same for the same one, so that his samples can be found; not his name."""
    return hashlib.sha256(f"llmrouter user\0{tenant_id}\0{user_id}".encode()).hexdigest()[:32]


_INFO = (
    "request_id, ts, tenant_id, key_id, endpoint, tier, model_id, routing_version, config_version, redacted, sealed_by,"
    " inclusion_probability, expires_at"
)
_INSERT = f"""
    INSERT INTO samples ({_INFO}, user_digest, request, answer) VALUES ({", ".join("?" * 16)})
    ON CONFLICT (request_id) DO NOTHING
"""  # noqa: S608 - the names above


def add_samples(connection: sqlite3.Connection, samples: Iterable[NewSample]) -> int:
    """Write samples in one transaction; returns how many were new. One that is there already stays as it is."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        written = sum(connection.execute(_INSERT, _row(sample)).rowcount for sample in samples)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return written


def _row(sample: NewSample) -> tuple[Any, ...]:
    info = sample.info
    return (
        info.request_id,
        to_instant(info.ts),
        info.tenant_id,
        info.key_id,
        info.endpoint,
        info.tier,
        info.model_id,
        info.routing_version,
        info.config_version,
        orjson.dumps(dict(info.redacted)).decode(),
        info.sealed_by,
        info.inclusion_probability,
        to_instant(info.expires_at),
        sample.user_digest,
        sample.request,
        sample.answer,
    )


def list_samples(path: Path, selection: Selection, limit: int) -> list[SampleInfo]:
    """The newest samples first, without their contents."""
    where, values = selection.where()
    with reading(path) as connection:
        rows = connection.execute(
            f"SELECT {_INFO} FROM samples WHERE {where} ORDER BY id DESC LIMIT ?",  # noqa: S608 - fixed conditions
            (*values, limit),
        ).fetchall()
    return [_info(row) for row in rows]


def count_samples(path: Path, selection: Selection) -> int:
    where, values = selection.where()
    with reading(path) as connection:
        (count,) = connection.execute(f"SELECT count(*) FROM samples WHERE {where}", values).fetchone()  # noqa: S608
    return int(count)


def read_sample(path: Path, request_id: str, vault: Vault | None) -> Sample | None:
    """One sample with its contents; None when there is none.

    Raises:
        CannotOpen: it is sealed, and not under a key of the vault.
    """
    return next(read_samples(path, Selection(request_id=request_id), vault), None)


def read_samples(path: Path, selection: Selection, vault: Vault | None, *, at_once: int = 64) -> Iterator[Sample]:
    """Samples with their contents, oldest first, `at_once` in memory; raises as `read_sample`."""
    where, values = selection.where()
    query = f"SELECT id, {_INFO}, request, answer FROM samples WHERE {where} ORDER BY id LIMIT ?"  # noqa: S608
    while True:
        with reading(path) as connection:
            rows = connection.execute(query, (*values, at_once)).fetchall()
        for row in rows:
            info = _info(row[1:-2])
            yield Sample(info, _opened(row[-2], "request", info, vault), _opened(row[-1], "answer", info, vault))
        if len(rows) < at_once:
            return
        values[0] = rows[-1][0]


def delete_samples(path: Path, selection: Selection, *, at_once: int = 200) -> int:
    """Delete for good, in transactions of `at_once` rows, so that nobody waits long; returns how many went."""
    where, values = selection.where()
    return _delete(path, where, values, at_once)


def purge_expired(path: Path, now: datetime, *, at_once: int = 200) -> int:
    """Delete the samples whose time is over, as `delete_samples` does; returns how many went. Call it now and then."""
    with reading(path) as connection:
        due = connection.execute("SELECT 1 FROM samples WHERE expires_at <= ? LIMIT 1", (to_instant(now),)).fetchone()
    return _delete(path, "expires_at <= ?", [to_instant(now)], at_once) if due is not None else 0


def _delete(path: Path, where: str, values: list[Any], at_once: int) -> int:
    statement = f"DELETE FROM samples WHERE id IN (SELECT id FROM samples WHERE {where} LIMIT ?)"  # noqa: S608
    gone = 0
    while True:
        with writing(path) as connection:
            connection.execute("PRAGMA secure_delete = ON")
            count = connection.execute(statement, (*values, at_once)).rowcount
        gone += count
        if count < at_once:
            return gone


def erase_log(path: Path, *, patience_s: float = 3.0) -> bool:
    """Bring the write-ahead log into the file and empty it; False where others read or write all the time.

    Each try holds up those who book calls for milliseconds only.
    """
    give_up = time.monotonic() + patience_s
    with store_errors(path), closing(open_database(path)) as connection:
        connection.execute("PRAGMA busy_timeout = 50")
        while connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
            if time.monotonic() > give_up:
                return False
            time.sleep(0.02)
    return True


def _info(row: tuple[Any, ...]) -> SampleInfo:
    return SampleInfo(
        request_id=row[0],
        ts=from_instant(row[1]),
        tenant_id=row[2],
        key_id=row[3],
        endpoint=row[4],
        tier=row[5],
        model_id=row[6],
        routing_version=row[7],
        config_version=row[8],
        redacted=orjson.loads(row[9]),
        sealed_by=row[10],
        inclusion_probability=row[11],
        expires_at=from_instant(row[12]),
    )


def _opened(stored: str | bytes | None, part: str, info: SampleInfo, vault: Vault | None) -> Any:
    if stored is None:
        return None
    if isinstance(stored, str):
        return orjson.loads(stored)
    assert info.sealed_by is not None
    if vault is None:
        raise CannotOpen(
            f"sample {info.request_id} is sealed under key {info.sealed_by}; set samples.key to that key to read it"
        )
    return orjson.loads(vault.open(stored, sealed_by=info.sealed_by, request_id=info.request_id, part=part))
