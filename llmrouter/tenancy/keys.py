"""API keys: made, listed and revoked in the store; checked on the way of a request against a snapshot in memory.

A key reads `lr-<key_id>-<secret>`. The store holds an HMAC-SHA256 of the whole text under the pepper, a secret that is
not in the database, so a copy of the database opens nothing. Scopes are fixed when a key is made.
"""

from __future__ import annotations

import difflib
import hmac
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from math import inf
from typing import Any

import orjson

from llmrouter.config import LimitSet
from llmrouter.database import SharedConnection, from_instant, to_instant
from llmrouter.errors import AuthenticationFailed, PermissionDenied, StoreUnavailable, UsageError
from llmrouter.shared_store import SharedStore, reading, writing
from llmrouter.tenancy.pepper import load_pepper
from llmrouter.tenancy.policy import KeyPolicy, make_policy, refuse_wider_policy
from llmrouter.types import Principal

__all__ = [
    "ActiveKey",
    "KeyInfo",
    "KeyRing",
    "KeyStore",
    "key_as_json",
    "load_keys",
    "load_pepper",
    "principal_of",
]


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """What may be shown of a key; its secret is not kept anywhere."""

    key_id: str
    tenant_id: str
    tiers: frozenset[str] | None
    admin: bool
    acl: frozenset[str]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    note: str
    created_by: str | None
    """Id of the key that made this one; None for the command line."""
    policy: KeyPolicy = field(default_factory=KeyPolicy)


@dataclass(frozen=True, slots=True)
class ActiveKey:
    """A key that is not revoked, with what recognises it."""

    info: KeyInfo
    digest: bytes = field(repr=False)


def principal_of(info: KeyInfo) -> Principal:
    """Who the holder of a key is."""
    policy = info.policy
    return Principal(
        info.tenant_id,
        info.key_id,
        tiers=info.tiers,
        admin=info.admin,
        acl=info.acl,
        limits=policy.limits_of(info.key_id),
        classes=policy.classes,
        latency_class=policy.latency_class,
        user_id=policy.user_id,
    )


def key_as_json(info: KeyInfo) -> dict[str, Any]:
    """A key as the API and `--json` show it, its policy in the same names as when it was made."""
    shown = {name: sorted(given) if isinstance(given, frozenset) else given for name, given in asdict(info).items()}
    del shown["policy"]
    return {**shown, **info.policy.as_json()}


def load_keys(store: SharedStore) -> list[ActiveKey]:
    """All keys that are not revoked, expired ones included.

    Raises:
        StoreUnavailable: the store cannot be read.
    """
    query = f"SELECT {_COLUMNS}, digest FROM api_keys WHERE revoked_at IS NULL"  # noqa: S608 - own text
    with reading(store) as connection:
        return [ActiveKey(_info(row[:-1]), row[-1]) for row in connection.execute(query)]


class KeyStore:
    """The keys in a migrated store; each call is one transaction of its own."""

    def __init__(
        self, store: SharedStore, pepper: bytes, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._store = store
        self._pepper = pepper
        self._now = now

    def create(
        self,
        tenant_id: str,
        *,
        tiers: Collection[str] | None = None,
        admin: bool = False,
        acl: Collection[str] = (),
        expires_at: datetime | None = None,
        note: str = "",
        limits: LimitSet | Mapping[str, Any] | None = None,
        classes: Collection[str] | None = None,
        latency_class: str | None = None,
        user_id: str | None = None,
        parent: Principal | None = None,
    ) -> tuple[str, KeyInfo]:
        """Make a key; its text is returned this once and cannot be shown again. `tiers=None` allows all tiers.

        `limits` are the key's own, by the names of the configuration, instead of its tenant's `key_limits`; `classes`
        and `latency_class` are those it may ask for and that it gets; `user_id` is the one end user it stands for.

        With a `parent` the key may do no more than that key: its tiers, ACL labels and classes are a subset, it is an
        admin only if the parent is, belongs to the parent's tenant unless the parent is an admin, does not outlive it,
        and has each limit that the parent has, at most as high.

        Raises:
            PermissionDenied: the key would do more than its parent.
            UsageError: there is no tenant id, the key would have expired already, or its policy is none.
        """
        info = KeyInfo(
            key_id=secrets.token_hex(6),
            tenant_id=tenant_id,
            tiers=None if tiers is None else frozenset(tiers),
            admin=admin,
            acl=frozenset(acl),
            created_at=self._now(),
            expires_at=expires_at,
            revoked_at=None,
            note=note,
            created_by=None if parent is None else parent.key_id,
            policy=make_policy(limits, classes, latency_class, user_id),
        )
        if not tenant_id:
            raise UsageError("a key needs a tenant")
        if expires_at is not None and expires_at <= info.created_at:
            raise UsageError(f"the key would have expired already, at {expires_at.isoformat()}")
        text = f"lr-{info.key_id}-{secrets.token_urlsafe(32)}"
        with writing(self._store) as connection:
            if parent is not None:
                _refuse_wider(info, parent)
                _refuse_outliving(connection, info, parent)
            _insert(connection, info, _digest(self._pepper, text.encode()))
        return text, info

    def list(self) -> Sequence[KeyInfo]:
        """All keys, revoked and expired ones too, oldest first."""
        query = f"SELECT {_COLUMNS} FROM api_keys ORDER BY created_at, key_id"  # noqa: S608 - own text
        with reading(self._store) as connection:
            return [_info(row) for row in connection.execute(query)]

    def revoke(self, key_id: str) -> KeyInfo:
        """Revoke a key for good, named by its id or its whole text; harmless when repeated.

        Raises:
            UsageError: there is no such key; the message names the closest ids.
        """
        if key_id.startswith("lr-"):
            key_id = key_id.split("-")[1]
        with writing(self._store) as connection:
            if _find(connection, key_id) is None:
                raise UsageError(f"no key {key_id!r}{_suggest(connection, key_id)}; `llmrouter keys list` shows all")
            connection.execute(
                "UPDATE api_keys SET revoked_at = ? WHERE key_id = ? AND revoked_at IS NULL",
                (to_instant(self._now()), key_id),
            )
            revoked = _find(connection, key_id)
        assert revoked is not None
        return revoked


class KeyRing:
    """The keys that a worker knows, in memory. `authenticate` touches no store, so a store that is down locks nobody
    out: the last snapshot goes on to hold.
    """

    def __init__(self, pepper: bytes) -> None:
        self._pepper = pepper
        self._known: dict[bytes, _Known] | None = None

    def replace(self, keys: Iterable[ActiveKey]) -> None:
        """Swap in a new snapshot, whole; requests see the old one or the new one."""
        self._known = {key.digest: _known(key) for key in keys if key.info.revoked_at is None}

    def authenticate(self, authorization: bytes | None, now: float) -> Principal:
        """Who sent this `Authorization` header, at `now` seconds since the epoch.

        The scheme is written `Bearer`, exactly. Takes some microseconds whatever it is given.

        Raises:
            AuthenticationFailed: anything at all is wrong with the key; there is no anonymous principal.
            StoreUnavailable: no snapshot has been loaded, so nothing can be said of a key that looks like one.
        """
        if authorization is None:
            raise AuthenticationFailed("no API key; send it as `Authorization: Bearer KEY`")
        if not authorization.startswith(b"Bearer lr-") or len(authorization) > _LONGEST_HEADER:
            raise AuthenticationFailed("incorrect API key; send it as `Authorization: Bearer KEY`")
        if self._known is None:
            raise StoreUnavailable("API keys have not been loaded yet")
        digest = _digest(self._pepper, authorization[7:])
        known = self._known.get(digest)
        if known is None or not hmac.compare_digest(known.digest, digest):
            raise AuthenticationFailed("incorrect API key")
        if now >= known.expires_at:
            raise AuthenticationFailed("this API key has expired")
        return known.principal


_LONGEST_HEADER = 256


@dataclass(frozen=True, slots=True)
class _Known:
    digest: bytes
    principal: Principal
    expires_at: float


def _known(key: ActiveKey) -> _Known:
    info = key.info
    return _Known(key.digest, principal_of(info), inf if info.expires_at is None else info.expires_at.timestamp())


def _digest(pepper: bytes, text: bytes) -> bytes:
    return hmac.digest(pepper, text, "sha256")


_COLUMNS = "key_id, tenant_id, tiers, admin, acl, created_at, expires_at, revoked_at, note, created_by, policy"


def _info(row: Sequence[Any]) -> KeyInfo:
    key_id, tenant_id, tiers, admin, acl, created_at, expires_at, revoked_at, note, created_by, policy = row
    return KeyInfo(
        key_id=key_id,
        tenant_id=tenant_id,
        tiers=None if tiers is None else frozenset(orjson.loads(tiers)),
        admin=bool(admin),
        acl=frozenset(orjson.loads(acl)),
        created_at=from_instant(created_at),
        expires_at=None if expires_at is None else from_instant(expires_at),
        revoked_at=None if revoked_at is None else from_instant(revoked_at),
        note=note,
        created_by=created_by,
        policy=_policy(key_id, policy),
    )


def _policy(key_id: str, text: str) -> KeyPolicy:
    try:
        return KeyPolicy.from_text(text)
    except (UsageError, ValueError, TypeError) as error:
        # Without its limits a key might do more than it should, so nobody guesses.
        raise StoreUnavailable(f"the policy of key {key_id} cannot be read; revoke it and make another") from error


def _insert(connection: SharedConnection, info: KeyInfo, digest: bytes) -> None:
    values = (
        info.key_id,
        info.tenant_id,
        None if info.tiers is None else _labels(info.tiers),
        info.admin,
        _labels(info.acl),
        to_instant(info.created_at),
        None if info.expires_at is None else to_instant(info.expires_at),
        None,
        info.note,
        info.created_by,
        info.policy.to_text(),
        digest,
    )
    connection.execute(f"INSERT INTO api_keys ({_COLUMNS}, digest) VALUES ({', '.join('?' * 12)})", values)  # noqa: S608 - own text


def _labels(names: frozenset[str]) -> str:
    return orjson.dumps(sorted(names)).decode()


def _find(connection: SharedConnection, key_id: str) -> KeyInfo | None:
    query = f"SELECT {_COLUMNS} FROM api_keys WHERE key_id = ?"  # noqa: S608 - own text
    row = connection.execute(query, (key_id,)).fetchone()
    return None if row is None else _info(row)


def _suggest(connection: SharedConnection, key_id: str) -> str:
    known = [found for (found,) in connection.execute("SELECT key_id FROM api_keys")]
    close = difflib.get_close_matches(key_id, known, n=3)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""


def _refuse_wider(child: KeyInfo, parent: Principal) -> None:
    if child.admin and not parent.admin:
        raise PermissionDenied("this key may not make an admin key")
    if child.tenant_id != parent.tenant_id and not parent.admin:
        raise PermissionDenied("this key may not make a key for another tenant")
    if parent.tiers is not None and (child.tiers is None or not child.tiers <= parent.tiers):
        raise PermissionDenied(f"this key may only pass on its own tiers: {_listed(parent.tiers)}")
    if not child.acl <= parent.acl:
        raise PermissionDenied(f"this key may only pass on its own ACL labels: {_listed(parent.acl)}")
    refuse_wider_policy(child.policy, parent)


def _listed(names: frozenset[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _refuse_outliving(connection: SharedConnection, child: KeyInfo, parent: Principal) -> None:
    made_by = _find(connection, parent.key_id)
    if made_by is None:
        return
    if made_by.revoked_at is not None:
        raise PermissionDenied("the key that asks has been revoked")
    if made_by.expires_at is not None and (child.expires_at is None or child.expires_at > made_by.expires_at):
        raise PermissionDenied(f"a key may not outlive the one that makes it: {made_by.expires_at.isoformat()}")
