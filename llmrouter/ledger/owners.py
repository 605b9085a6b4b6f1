"""Who holds reservations, and whether that process still lives: a lock on a file, which the kernel drops at its death.

The file of an owner lies in `DATABASE.owners/`. It is made and locked before the owner's row is written, and goes after
the row has gone. So an owner in the table whose file is missing or not locked is dead.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from llmrouter.database import to_instant

__all__ = ["OwnerLock", "dead_owner", "lock_folder", "others", "register", "sweep", "unregister"]


def lock_folder(database: Path) -> Path:
    """Where the lock files of a database's owners lie: beside the file itself, by whichever link it is named."""
    real = database.resolve()
    return real.with_name(f"{real.name}.owners")


class OwnerLock:
    """Says that this process lives, from `acquire` until `release` or its death."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / name
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        return self._descriptor is not None

    def acquire(self) -> None:
        """Make the file and lock it. Raises `OSError` where that is not possible.

        Repeat it now and then: it makes a file anew that somebody has deleted, before the others take us for dead.
        """
        if self._descriptor is not None:
            if _is_file(self._descriptor, self._path):
                return
            self.abandon()
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        while self._descriptor is None:
            descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            if _lock(descriptor) and _is_file(descriptor, self._path):
                self._descriptor = descriptor
            else:  # somebody who swept the folder was faster, and has taken the file away
                os.close(descriptor)

    def release(self) -> None:
        """Take the file away and unlock; harmless when repeated."""
        if self._descriptor is not None:
            self._path.unlink(missing_ok=True)
            self.abandon()

    def abandon(self) -> None:
        """Unlock but leave the file: others find a dead owner, and end what it held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


@contextmanager
def dead_owner(folder: Path, name: str) -> Iterator[bool]:
    """Whether an owner of the table is dead; nobody can come to life under its name within the block.

    If the block ends well for a dead one, its file goes.
    """
    path = folder / name
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        yield True
        return
    except PermissionError:  # another user's process: he will see to it
        yield False
        return
    try:
        dead = _lock(descriptor)
        yield dead
        if dead:
            path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def sweep(folder: Path, known: set[str]) -> list[str]:
    """Take away the files of dead owners that the table does not know; returns their names."""
    swept = []
    with contextlib.suppress(FileNotFoundError):
        for path in list(folder.iterdir()):
            if path.name not in known:
                with dead_owner(folder, path.name) as dead:
                    if dead:
                        swept.append(path.name)
    return swept


def register(connection: sqlite3.Connection, name: str, now: datetime) -> int:
    """The number of an owner in the table; a new one joins it. The caller has begun a transaction."""
    row = connection.execute("SELECT id FROM owners WHERE name = ?", (name,)).fetchone()
    if row is None:
        given = (name, to_instant(now))
        row = connection.execute("INSERT INTO owners (name, started_at) VALUES (?, ?) RETURNING id", given).fetchone()
    return int(row[0])


def unregister(connection: sqlite3.Connection, name: str) -> bool:
    """Take an owner out of the table; False if it holds reservations and has to stay."""
    gone = connection.execute(
        "DELETE FROM owners WHERE name = ? AND NOT EXISTS (SELECT 1 FROM reservations WHERE owner = owners.id)", (name,)
    )
    known = "SELECT 1 FROM owners WHERE name = ?"
    return gone.rowcount == 1 or connection.execute(known, (name,)).fetchone() is None


def others(connection: sqlite3.Connection, name: str) -> list[tuple[int, str]]:
    """Number and name of all owners but one."""
    return connection.execute("SELECT id, name FROM owners WHERE name <> ? ORDER BY id", (name,)).fetchall()


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise
    return True


def _is_file(descriptor: int, path: Path) -> bool:
    """Whether the path still names the file that is open."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
