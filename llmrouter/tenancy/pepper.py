"""The pepper: the secret that key hashes need besides the database."""

from __future__ import annotations

import hmac
import os
import secrets
from contextlib import suppress
from pathlib import Path

from llmrouter.config import StoreConfig
from llmrouter.database import reading
from llmrouter.errors import ConfigError
from llmrouter.shared_store import SharedStore, writing

__all__ = ["confirm_pepper", "load_pepper"]

_SHORTEST_PEPPER = 16


def load_pepper(config: StoreConfig, database: Path) -> bytes:
    """The secret of the key hashes: `store.secret`, else the file `<database>.secret`, made at first use.

    The file appears with its content or not at all, so several processes that start at once agree on one secret.

    Raises:
        ConfigError: the secret is too short, its file can be read by others, or it is gone although keys exist; or
            several gateways share their keys and the configuration sets no secret.
    """
    if config.secret is not None:
        pepper = config.secret.get_secret_value().encode()
        if len(pepper) < _SHORTEST_PEPPER:
            raise ConfigError(f"store.secret: too short; use at least {_SHORTEST_PEPPER} random characters")
        return pepper
    if config.ledger_url is not None:
        raise ConfigError(
            "store.secret: not set, but gateways that share their keys in store.ledger_url need one secret; set it to "
            f"the same ${{VAR}} on all of them, at least {_SHORTEST_PEPPER} random characters (a gateway that has made "
            "keys already has it in its file <database>.secret)"
        )
    file = database.with_name(f"{database.name}.secret")
    try:
        if not file.exists():
            _refuse_if_keys_exist(database, file)
            _create_pepper(file)
        return _read_pepper(file)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be used: {error.strerror}; or set store.secret") from error


def confirm_pepper(store: SharedStore, pepper: bytes) -> None:
    """Make sure that the keys of a store were made with this secret; an empty store takes it for its own.

    Raises:
        ConfigError: with another one, so that every key would be refused.
        StoreUnavailable: the store cannot be used.
    """
    digest = hmac.new(pepper, b"llmrouter pepper", "sha256").hexdigest()
    with writing(store) as connection:
        row = connection.execute("SELECT value FROM marks WHERE name = 'pepper'").fetchone()
        if row is not None and hmac.compare_digest(row[0], digest):
            return
        (keys,) = connection.execute("SELECT count(*) FROM api_keys WHERE revoked_at IS NULL").fetchone()
        if row is not None and keys:
            raise ConfigError(
                f"store.secret: the {keys} API keys of this store were made with another secret, so none of them would "
                "work; set the one that they were made with (a gateway that had no store.secret keeps it in "
                "<database>.secret), or revoke them first"
            )
        connection.execute("DELETE FROM marks WHERE name = 'pepper'")
        connection.execute("INSERT INTO marks (name, value) VALUES ('pepper', ?)", (digest,))


def _refuse_if_keys_exist(database: Path, file: Path) -> None:
    if not database.exists():
        return
    with reading(database) as connection:
        tables = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'api_keys'").fetchone()[0]
        keys = connection.execute("SELECT count(*) FROM api_keys").fetchone()[0] if tables else 0
    if keys and not file.exists():  # asked again: another process may just have made both
        raise ConfigError(
            f"{file} is missing but {database.name} holds {keys} keys that only work with it; "
            "restore the file, or set store.secret to its content"
        )


def _create_pepper(file: Path) -> None:
    draft = file.with_name(f"{file.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w") as out:
            out.write(secrets.token_hex(32))
        # A link appears at once and never replaces another process's file, unlike a rename.
        with suppress(FileExistsError):
            os.link(draft, file)
    finally:
        draft.unlink()


def _read_pepper(file: Path) -> bytes:
    with file.open("rb") as opened:
        if os.fstat(opened.fileno()).st_mode & 0o077:
            raise ConfigError(f"{file}: other users may read it; run `chmod 600 {file}`")
        pepper = opened.read().strip()
    if len(pepper) < _SHORTEST_PEPPER:
        raise ConfigError(f"{file}: too short to be the secret; restore it, or set store.secret")
    return pepper
