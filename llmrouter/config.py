"""One TOML file into one frozen tree: unknown keys refused, secrets as `${VAR}`, defaults read from here only.

Order of precedence: command-line flag, environment (`LLMROUTER_CONFIG` for the path), file, default; resolved once in
`load`. The sections themselves are in `llmrouter.sections`.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, Field, ValidationError, model_validator

from llmrouter.errors import ConfigError
from llmrouter.sections import (
    CAPABILITIES,
    ENGINE_CAPABILITIES,
    AdminConfig,
    BreakerConfig,
    CascadeConfig,
    DriftConfig,
    GpuPrice,
    Identifier,
    LimitsConfig,
    ListPrice,
    LlamaCppRunner,
    LogConfig,
    ModelConfig,
    PoolConfig,
    PriceConfig,
    RoutingConfig,
    RuleConfig,
    Section,
    ServerConfig,
    StoreConfig,
    TierConfig,
    TimeoutConfig,
    VllmRunner,
    suggest,
)
from llmrouter.tenancy_sections import (
    CLASSES,
    LIMIT_KINDS,
    ClassConfig,
    ClassesConfig,
    GroupConfig,
    LedgerConfig,
    LimitSet,
    SampleConsent,
    SamplesConfig,
    TenantConfig,
)

__all__ = [
    "CAPABILITIES",
    "CLASSES",
    "LIMIT_KINDS",
    "AdminConfig",
    "BreakerConfig",
    "CascadeConfig",
    "ClassConfig",
    "ClassesConfig",
    "Config",
    "DriftConfig",
    "GpuPrice",
    "GroupConfig",
    "Identifier",
    "LedgerConfig",
    "LimitSet",
    "LimitsConfig",
    "ListPrice",
    "LlamaCppRunner",
    "LogConfig",
    "ModelConfig",
    "PoolConfig",
    "PriceConfig",
    "RoutingConfig",
    "RuleConfig",
    "SampleConsent",
    "SamplesConfig",
    "ServerConfig",
    "StoreConfig",
    "TenantConfig",
    "TierConfig",
    "TimeoutConfig",
    "VllmRunner",
    "anchor_paths",
    "load",
    "parse",
]


class Config(Section):
    """The whole file."""

    server: ServerConfig = ServerConfig()
    admin: AdminConfig = AdminConfig()
    store: StoreConfig = StoreConfig()
    limits: LimitsConfig = LimitsConfig()
    ledger: LedgerConfig = LedgerConfig()
    samples: SamplesConfig = SamplesConfig()
    classes: ClassesConfig = ClassesConfig()
    log: LogConfig = LogConfig()
    routing: RoutingConfig = RoutingConfig()
    models: Mapping[Identifier, ModelConfig] = Field(min_length=1)
    pools: Mapping[Identifier, PoolConfig] = Field(min_length=1)
    tiers: Mapping[Identifier, TierConfig] = Field(min_length=1)
    groups: Mapping[Identifier, GroupConfig] = Field(default_factory=dict)
    tenants: Mapping[Identifier, TenantConfig] = Field(default_factory=lambda: {"default": TenantConfig()})

    @model_validator(mode="after")
    def _references(self) -> Self:
        pooled: dict[str, str] = {}
        for pool_id, pool in self.pools.items():
            if pool.model not in self.models:
                raise ValueError(f"pools.{pool_id}.model: no model {pool.model!r}{suggest(pool.model, self.models)}")
            if pool.model in pooled:
                raise ValueError(
                    f"pools.{pool_id}: model {pool.model!r} is already served by pool {pooled[pool.model]!r}; "
                    "put all its replicas into one pool"
                )
            pooled[pool.model] = pool_id
        for tier_id, tier in self.tiers.items():
            for model_id in (*tier.roles.values(), *tier.peers):
                if model_id not in self.models:
                    raise ValueError(f"tiers.{tier_id}: no model {model_id!r}{suggest(model_id, self.models)}")
                if model_id not in pooled:
                    raise ValueError(f"tiers.{tier_id}: model {model_id!r} has no pool")
        for tenant_id, tenant in self.tenants.items():
            at = f"tenants.{tenant_id}"
            if tenant.group is not None and tenant.group not in self.groups:
                raise ValueError(f"{at}.group: no group {tenant.group!r}{suggest(tenant.group, self.groups)}")
            for tier_id in (*tenant.tier_limits, *([tenant.degrade_to] if tenant.degrade_to else [])):
                if tier_id not in self.tiers:
                    raise ValueError(f"{at}: no tier {tier_id!r}{suggest(tier_id, self.tiers)}")
            if tenant.samples.encrypt and self.samples.key is None:
                raise ValueError(f"{at}.samples.encrypt: set samples.key, the key to encrypt under")
        reference = self.routing.reference_model
        if reference is not None and reference not in self.models:
            raise ValueError(f"routing.reference_model: no model {reference!r}{suggest(reference, self.models)}")
        return self

    @property
    def reference_model(self) -> str:
        """The named counterfactual of every savings figure."""
        return self.routing.reference_model or list(next(iter(self.tiers.values())).roles.values())[-1]

    def pool_of(self, model_id: str) -> str:
        """The pool that serves a model."""
        return next(pool_id for pool_id, pool in self.pools.items() if pool.model == model_id)

    def capabilities_of(self, model_id: str) -> frozenset[str]:
        """What a model can do: as configured, else what its engine is known to do."""
        configured = self.models[model_id].capabilities
        return configured if configured is not None else ENGINE_CAPABILITIES[self.pools[self.pool_of(model_id)].engine]


def load(path: Path, environ: Mapping[str, str] | None = None) -> Config:
    """Read and check a configuration file.

    Raises:
        ConfigError: the file is missing, not TOML, or not valid; the message names each key at fault.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; `llmrouter init` writes one") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    config = parse(text, source=str(path), environ=environ)
    return anchor_paths(config, path.resolve().parent)


def parse(text: str, *, source: str = "configuration", environ: Mapping[str, str] | None = None) -> Config:
    """Check configuration text; raises `ConfigError` as `load` does."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source}: not valid TOML: {error}") from error
    filled = _fill_secrets(raw, os.environ if environ is None else environ, source)
    try:
        return Config.model_validate(filled)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(source, item) for item in error.errors())) from error


def anchor_paths(config: Config, folder: Path) -> Config:
    """The configuration with the relative paths of its store and artefacts taken from the folder of its file."""
    database = Path(config.store.url.removeprefix("sqlite:///"))
    if not database.is_absolute():
        store = config.store.model_copy(update={"url": f"sqlite:///{folder / database}"})
        config = config.model_copy(update={"store": store})
    tiers = {
        tier_id: tier
        if tier.artefact_folder is None
        else tier.model_copy(update={"artefact": str(folder / tier.artefact_folder)})
        for tier_id, tier in config.tiers.items()
    }
    return config if tiers == config.tiers else config.model_copy(update={"tiers": tiers})


_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def _fill_secrets(node: Any, environ: Mapping[str, str], source: str, at: str = "") -> Any:
    if isinstance(node, dict):
        return {k: _fill_secrets(v, environ, source, f"{at}.{k}".lstrip(".")) for k, v in node.items()}
    if isinstance(node, list):
        return [_fill_secrets(v, environ, source, f"{at}[{i}]") for i, v in enumerate(node)]
    if not isinstance(node, str):
        return node

    def value(found: re.Match[str]) -> str:
        name = found.group(1)
        if not environ.get(name):
            raise ConfigError(f"{source}: {at}: environment variable {name} is not set")
        return environ[name]

    return _VARIABLE.sub(value, node)


def _explain(source: str, item: Any) -> str:
    """One pydantic error in one line: where, what, and the nearest known key for an unknown one."""
    path = [str(part) for part in item["loc"]]
    where = ".".join(path) or "file"
    if item["type"] == "extra_forbidden":
        known = _keys_at(path[:-1])
        return f"{source}: {where}: unknown key{suggest(path[-1], known) if known else ''}"
    message = item["msg"].removeprefix("Value error, ")
    given = "" if item["type"] in ("missing", "value_error") else f" (got {_shown(where, item.get('input'))})"
    return f"{source}: {where}: {message}{given}"


def _shown(where: str, value: Any) -> str:
    names = {"api_key", "secret", "headers", "ledger_url", "limits_url", "key", "old_keys"}
    return "***" if names.intersection(where.split(".")) else repr(value)[:80]


def _keys_at(path: list[str]) -> list[str]:
    """Names of the keys that the section at a path accepts, for suggestions."""
    sections: dict[str, type[Section]] = {
        "models": ModelConfig,
        "pools": PoolConfig,
        "tiers": TierConfig,
        "tenants": TenantConfig,
        "groups": GroupConfig,
    }
    current: type[BaseModel] | None = Config
    for part in path:
        if current is Config and part in sections:
            current = sections[part]
            continue
        field = current.model_fields.get(part) if current is not None else None
        annotation = field.annotation if field is not None else None
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            current = annotation
        elif part == "llama_cpp":
            current = LlamaCppRunner
        elif part == "vllm":
            current = VllmRunner
        elif part == "rules":
            current = RuleConfig
    return list(current.model_fields) if current is not None else []
