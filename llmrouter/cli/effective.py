"""The configuration as it takes effect: every value with where it comes from, secrets masked.

A value that the file takes from the environment is shown as it is written there, `${NAME}`, whether or not the
variable holds a secret.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from pydantic import BaseModel, SecretStr

from llmrouter.config import CLASSES, Config, LimitSet, PoolConfig
from llmrouter.errors import UsageError

__all__ = ["Value", "effective_values", "output_cap_field", "select", "texts"]

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_SECRET_FLAG = re.compile(r"^--?[\w-]*(key|token|secret|password)[\w-]*", re.IGNORECASE)
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")
_MISSING = object()
_MASK = "***"


@dataclass(frozen=True, slots=True)
class Value:
    """One effective value."""

    key: str
    value: Any
    """Ready for JSON; masked where it is a secret."""
    source: str
    """`default`, `file`, `flag --NAME`, `environment NAME`, or `derived: …`."""

    @property
    def shown(self) -> str:
        """The value as text."""
        if self.value is None:
            return "-"
        if isinstance(self.value, bool):
            return "true" if self.value else "false"
        if isinstance(self.value, list):
            return ", ".join(map(str, self.value)) or "(none)"
        return str(self.value)


def output_cap_field(pool: PoolConfig) -> str:
    """The request field in which the pool is told the output cap."""
    return pool.max_tokens_field or ("max_completion_tokens" if pool.engine == "openai" else "max_tokens")


def effective_values(config: Config, raw: Mapping[str, Any], flags: Mapping[str, Any]) -> list[Value]:
    """All values in the order of the configuration, followed by what each tier's roles come to.

    Args:
        raw: the file before its variables were filled in.
        flags: the keys of `server` that the command line gave.
    """
    derived = dict(_derived(config))
    values = []
    for value in _walk("", config, raw):
        name = value.key.removeprefix("server.")
        if value.key.startswith("server.") and name in flags:
            values.append(replace(value, source=f"flag --{name}"))
        elif value.key in derived and value.source == "default":
            made, how = derived.pop(value.key)
            values.append(Value(value.key, made, f"derived: {how}"))
        else:
            derived.pop(value.key, None)
            values.append(value)
    return [*values, *(Value(key, made, f"derived: {how}") for key, (made, how) in derived.items())]


def select(values: Iterable[Value], key: str) -> list[Value]:
    """The values at a key and below it; all for an empty key.

    Raises:
        UsageError: there is no such key.
    """
    all_values = list(values)
    found = [each for each in all_values if not key or each.key == key or each.key.startswith((f"{key}.", f"{key}["))]
    if not found:
        keys = {each.key[:at] for each in all_values for at in _ends(each.key)}
        close = difflib.get_close_matches(key, sorted(keys), n=1)
        raise UsageError(f"no key {key!r} in the configuration" + (f"; did you mean {close[0]!r}?" if close else ""))
    return found


def _ends(key: str) -> list[int]:
    return [*(match.start() for match in re.finditer(r"[.\[]", key)), len(key)]


def _walk(key: str, node: Any, raw: Any) -> Iterator[Value]:
    """Every leaf below a node, beside what the file says at the same place."""
    if isinstance(node, BaseModel):
        for name in type(node).model_fields:
            yield from _walk(f"{key}.{name}".lstrip("."), getattr(node, name), _at(raw, name))
    elif isinstance(node, Mapping) and node and all(isinstance(value, BaseModel) for value in node.values()):
        for name, value in node.items():
            yield from _walk(f"{key}.{name}", value, _at(raw, name))
    elif isinstance(node, tuple) and node and all(isinstance(value, BaseModel) for value in node):
        for position, value in enumerate(node):
            yield from _walk(f"{key}[{position}]", value, raw[position] if isinstance(raw, list) else _MISSING)
    elif isinstance(node, Mapping) and node and all(isinstance(value, SecretStr | str) for value in node.values()):
        for name, value in node.items():
            yield _leaf(f"{key}.{name}", value, _at(raw, name))
    else:
        yield _leaf(key, node, raw)


def _at(raw: Any, name: str) -> Any:
    return raw.get(name, _MISSING) if isinstance(raw, Mapping) else _MISSING


def _leaf(key: str, value: Any, raw: Any) -> Value:
    if raw is _MISSING:
        return Value(key, _plain(value), "default")
    names = sorted({name for text in texts(raw) for name in _VARIABLE.findall(text)})
    if names:
        if isinstance(raw, list) and any(isinstance(each, SecretStr) for each in value):
            raw = [each if _VARIABLE.search(each) else _MASK for each in raw]
        return Value(key, raw, f"environment {', '.join(names)}")
    if ".runner.env." in key:
        return Value(key, _MASK, "file")
    if key.endswith(".runner.extra_args"):
        return Value(key, _arguments(value), "file")
    return Value(key, _plain(value), "file")


def _arguments(given: Iterable[str]) -> list[str]:
    """Arguments of a command, without what follows a flag that names a secret."""
    shown: list[str] = []
    for argument in given:
        flag, equals, _ = argument.partition("=")
        if shown and _SECRET_FLAG.match(shown[-1]) and "=" not in shown[-1]:
            shown.append(_MASK)
        else:
            shown.append(f"{flag}={_MASK}" if equals and _SECRET_FLAG.match(flag) else argument)
    return shown


def texts(raw: Any) -> Iterator[str]:
    """Every text in a parsed TOML document."""
    if isinstance(raw, str):
        yield raw
    elif isinstance(raw, Mapping):
        for value in raw.values():
            yield from texts(value)
    elif isinstance(raw, list):
        for value in raw:
            yield from texts(value)


def _plain(value: Any) -> Any:
    """A value as JSON knows it, without secrets."""
    if isinstance(value, SecretStr):
        return _MASK
    if isinstance(value, str):
        return _CREDENTIALS.sub(f"{_MASK}@", value)
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return value


def _derived(config: Config) -> Iterator[tuple[str, tuple[Any, str]]]:
    """What the gateway makes of keys that were left out, and of keys together."""
    yield "routing.reference_model", (config.reference_model, "last role of the first tier")
    if config.admin.listen is None:
        yield "admin.listen", (config.server.listen, "the data port; /metrics is there too, behind an admin key")
    for model_id in config.models:
        able = sorted(config.capabilities_of(model_id)) if _has_pool(config, model_id) else []
        yield f"models.{model_id}.capabilities", (able, "what its engine is known to do")
    for pool_id, pool in config.pools.items():
        at = f"pools.{pool_id}"
        if pool.runner is not None:
            yield f"{at}.api", (pool.engine, "its runner")
        yield f"{at}.upstream_model", (pool.upstream_model or pool.model, "the model's own id")
        yield f"{at}.max_tokens_field", (output_cap_field(pool), f"api {pool.engine}")
    for tier_id, tier in config.tiers.items():
        yield f"tiers.{tier_id}.default", (tier.default_role, "first of fallback that the tier has")
    yield from _classes(config)
    for at, limits in _limit_sets(config):
        for rate, burst in (("requests_per_minute", "requests_burst"), ("tokens_per_minute", "tokens_burst")):
            if getattr(limits, rate) is not None and getattr(limits, burst) is None:
                yield f"{at}.{burst}", (getattr(limits, rate), f"a minute's worth, {rate}")
    yield from _chains(config)


def _classes(config: Config) -> Iterator[tuple[str, tuple[Any, str]]]:
    """Time-outs that a class leaves to the server and the pools."""
    taken = {
        "request_timeout_s": (config.server.request_timeout_s, "server.request_timeout_s"),
        "queue_timeout_s": ("each pool's queue_timeout_s", "left out"),
        "first_byte_s": ("each pool's timeouts.first_byte_s", "left out"),
    }
    for name in CLASSES:
        for key, made in taken.items():
            if getattr(config.classes.of(name), key) is None:
                yield f"classes.{name}.{key}", made


def _limit_sets(config: Config) -> Iterator[tuple[str, LimitSet]]:
    """Every set of limits that the file has, by its key."""
    for tenant_id, tenant in config.tenants.items():
        for key in ("limits", "key_limits", "user_limits"):
            yield f"tenants.{tenant_id}.{key}", getattr(tenant, key)
        for tier_id, limits in tenant.tier_limits.items():
            yield f"tenants.{tenant_id}.tier_limits.{tier_id}", limits
    for group_id, group in config.groups.items():
        yield f"groups.{group_id}.limits", group.limits
    for tier_id, tier in config.tiers.items():
        yield f"tiers.{tier_id}.limits", tier.limits


def _chains(config: Config) -> Iterator[tuple[str, tuple[Any, str]]]:
    """For each role that a rule may choose, the models that are tried, in order."""
    from llmrouter.gateway.tiers import tier_models
    from llmrouter.protocols import Candidate
    from llmrouter.routing.strategy import fallback_chain

    for tier_id, tier in config.tiers.items():
        candidates = [
            Candidate(model.model_id, model.role, model.replicas, 0, 0) for model in tier_models(config, tier_id)
        ]
        for role in tier.roles:
            chain = [link.model_id for link in fallback_chain(tier, candidates, role)]
            yield f"tiers.{tier_id}.chain.{role}", (chain, "tried in this order when this role is chosen")


def _has_pool(config: Config, model_id: str) -> bool:
    return any(pool.model == model_id for pool in config.pools.values())
