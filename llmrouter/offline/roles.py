"""Which model plays which role in which source of labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import orjson

from llmrouter.errors import UsageError
from llmrouter.types import value

__all__ = ["MAIN_ROLES", "Roles"]

MAIN_ROLES = ("small", "large", "frontier")
"""From the cheapest to the best; the best of those that a source has is its reference."""
_KEYS = (*MAIN_ROLES, "peers")


@value
class Roles:
    """Source → role → model id: `small`, `large`, `frontier`, and `peer1`, `peer2`, … in the order of the file."""

    by_source: Mapping[str, Mapping[str, str]]
    default: Mapping[str, str] | None = None
    """For sources that are not named; None where only named ones are known."""
    origin: str = "--models"
    """Where they were said, for messages."""

    @classmethod
    def of_models(cls, models: str) -> Roles:
        """The same models for every source: `small,large` or `small,large,frontier`, as the labels spell them.

        Raises:
            UsageError: there are not two or three, or one stands there twice.
        """
        return cls({}, _of_names(models))

    @classmethod
    def load(cls, path: Path) -> Roles:
        """Read `{"SOURCE": {"small": "id", "large": "id", "frontier": "id", "peers": ["id", …]}}`.

        `small` and one of `large` and `frontier` are needed.

        Raises:
            UsageError: the file cannot be read or says something else; names source, key and value.
        """
        try:
            given = orjson.loads(path.read_bytes())
        except OSError as error:
            raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
        except orjson.JSONDecodeError as error:
            raise UsageError(f"{path}: is not valid JSON: {error}") from error
        if not isinstance(given, dict) or not given:
            raise UsageError(f'{path}: must be an object of sources, {{"SOURCE": {{"small": "MODEL", …}}}}')
        return cls({source: _of_source(f"{path}: {source}", said) for source, said in given.items()}, None, str(path))

    @classmethod
    def given(cls, models: str | None, path: Path | None) -> Roles:
        """What `--models` and `--roles` come to together.

        Models are those of sources that the file does not name; names of roles, such as `small,large,frontier`, keep
        only these roles (and the peers) of the file, and the sources that have two of them.

        Raises:
            UsageError: neither is given, or one of them is wrong.
        """
        if path is None:
            if models is None:
                raise UsageError("say which models play which role: --models SMALL,LARGE[,FRONTIER] or --roles FILE")
            return cls.of_models(models)
        loaded = cls.load(path)
        if models is None:
            return loaded
        names = _names(models)
        if all(name in MAIN_ROLES for name in names):
            return loaded._only(names)
        return cls(loaded.by_source, _of_names(models), f"--models and {path}")

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources that are named."""
        return tuple(self.by_source)

    def knows(self, source: str) -> bool:
        """Whether something is said of this source."""
        return self.default is not None or source in self.by_source

    def of(self, source: str) -> Mapping[str, str]:
        """Role → model id for one source.

        Raises:
            UsageError: nothing is said of it.
        """
        found = self.by_source.get(source, self.default)
        if found is None:
            known = ", ".join(self.sources)
            raise UsageError(f"{self.origin}: says nothing of the source {source!r}; it names {known}")
        return found

    def _only(self, names: Sequence[str]) -> Roles:
        kept = {}
        for source, roles in self.by_source.items():
            left = {role: model for role, model in roles.items() if role in names or role not in MAIN_ROLES}
            if sum(role in MAIN_ROLES for role in left) > 1:
                kept[source] = MappingProxyType(left)
        if not kept:
            raise UsageError(f"{self.origin}: no source has two of the roles {', '.join(names)} that --models names")
        return Roles(kept, None, self.origin)


def _names(models: str) -> list[str]:
    return [name.strip() for name in models.split(",")]


def _of_names(models: str) -> Mapping[str, str]:
    names = _names(models)
    if not 2 <= len(names) <= len(MAIN_ROLES) or not all(names):
        raise UsageError(f"--models {models!r}: give two or three models, SMALL,LARGE[,FRONTIER]")
    roles = dict(zip(MAIN_ROLES, names, strict=False))
    _refuse_twice("--models", roles)
    return MappingProxyType(roles)


def _of_source(at: str, said: Any) -> Mapping[str, str]:
    if not isinstance(said, dict):
        raise UsageError(f'{at}: must be an object such as {{"small": "MODEL", "large": "MODEL"}}, not {said!r:.60}')
    for key in said:
        if key not in _KEYS:
            raise UsageError(f"{at}: {key}: is no role; there are {', '.join(_KEYS)}")
    roles = {role: _model(f"{at}: {role}", said[role]) for role in MAIN_ROLES if said.get(role) is not None}
    if "small" not in roles or len(roles) < 2:
        raise UsageError(f"{at}: needs small and at least one of large and frontier, not {sorted(roles)}")
    peers = said.get("peers") or []
    if not isinstance(peers, list):
        raise UsageError(f"{at}: peers: must be a list of models, not {peers!r:.60}")
    for number, peer in enumerate(peers, 1):
        roles[f"peer{number}"] = _model(f"{at}: peers", peer)
    _refuse_twice(at, roles)
    return MappingProxyType(roles)


def _model(at: str, given: Any) -> str:
    if not isinstance(given, str) or not given.strip():
        raise UsageError(f"{at}: must be the id of a model, not {given!r:.60}")
    return given


def _refuse_twice(at: str, roles: Mapping[str, str]) -> None:
    seen: dict[str, str] = {}
    for role, model in roles.items():
        if model in seen:
            raise UsageError(f"{at}: {role}: {model!r} is {seen[model]} already; each role needs a model of its own")
        seen[model] = role
