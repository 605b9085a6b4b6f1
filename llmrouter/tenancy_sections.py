"""The sections of the configuration file about who may use how much, in which class, and how it is booked."""

from __future__ import annotations

import base64
import binascii
from decimal import Decimal
from typing import Annotated, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from llmrouter.types import LatencyClass, LimitKind

__all__ = [
    "CLASSES",
    "LIMIT_KINDS",
    "REDACT_KINDS",
    "ClassConfig",
    "ClassesConfig",
    "GroupConfig",
    "Identifier",
    "LedgerConfig",
    "LimitSet",
    "RedactKind",
    "SampleConsent",
    "SamplesConfig",
    "Seconds",
    "Section",
    "TenantConfig",
]

LIMIT_KINDS: tuple[LimitKind, ...] = get_args(LimitKind)
CLASSES: tuple[LatencyClass, ...] = get_args(LatencyClass)
"""From the most to the least urgent."""
RedactKind = Literal["email", "phone", "card", "iban", "ip", "key"]
REDACT_KINDS: tuple[RedactKind, ...] = get_args(RedactKind)
"""What `llmrouter.quality.redaction` knows how to find."""

Seconds = Annotated[float, Field(gt=0, le=86_400)]
Identifier = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}$")]
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
Dollars = Annotated[Decimal, Field(ge=0, le=1_000_000)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True)


class LimitSet(Section):
    """What one scope may use; a key that is absent sets no limit. `docs/limits.md` says what each kind means."""

    requests_per_minute: Count | None = None
    requests_burst: Count | None = None
    """How many may come at once after a quiet time; None takes a minute's worth."""
    tokens_per_minute: Count | None = None
    """Prompt and answer tokens of all attempts."""
    tokens_burst: Count | None = None
    concurrent_requests: Count | None = None
    usd_per_hour: Dollars | None = None
    usd_per_day: Dollars | None = None
    usd_per_month: Dollars | None = None
    """Dollars of a calendar hour, day or month, in UTC."""

    @model_validator(mode="after")
    def _bursts(self) -> Self:
        for rate, burst in (("requests_per_minute", "requests_burst"), ("tokens_per_minute", "tokens_burst")):
            if getattr(self, burst) is not None and getattr(self, rate) is None:
                raise ValueError(f"{burst} without {rate} limits nothing")
        return self


class GroupConfig(Section):
    """Tenants that share limits."""

    description: str = ""
    limits: LimitSet = LimitSet()


class SampleConsent(Section):
    """What of a tenant's requests may be kept as samples; nothing unless `consent` is set."""

    consent: bool = False
    rate: Annotated[float, Field(gt=0, le=1)] = 0.01
    """Share of its answered calls that is kept."""
    keep_days: Annotated[int, Field(ge=1, le=3650)] = 30
    redact: tuple[RedactKind, ...] = REDACT_KINDS
    """Kinds of personal data that are masked before anything is written."""
    encrypt: bool = False
    """Keep them encrypted under `samples.key`."""


class SamplesConfig(Section):
    """Samples of all tenants."""

    max_bytes: Annotated[int, Field(ge=1024)] = 256 * 1024
    """A request or answer longer than this is not kept."""
    key: SecretStr | None = None
    """32 random bytes as base64, as `openssl rand -base64 32` prints them; best given as `${VAR}`."""
    old_keys: tuple[SecretStr, ...] = ()
    """Earlier keys, so that samples sealed under them can still be read."""

    @field_validator("key", "old_keys")
    @classmethod
    def _long_enough(cls, given: SecretStr | tuple[SecretStr, ...] | None) -> SecretStr | tuple[SecretStr, ...] | None:
        for secret in (given,) if isinstance(given, SecretStr) else given or ():
            try:
                length = len(base64.b64decode(secret.get_secret_value(), validate=True))
            except (binascii.Error, ValueError):
                raise ValueError("not base64; `openssl rand -base64 32` makes a key") from None
            if length != 32:
                raise ValueError(f"holds {length} bytes, must hold 32; `openssl rand -base64 32` makes a key")
        return given


class TenantConfig(Section):
    """Somebody who pays: a group it belongs to, limits, latency classes, what happens when a budget is spent."""

    description: str = ""
    group: Identifier | None = None
    limits: LimitSet = LimitSet()
    """Of all its keys together."""
    key_limits: LimitSet = LimitSet()
    """Of each key by itself, where the key was made without limits of its own."""
    user_limits: LimitSet = LimitSet()
    """Of each end user by itself."""
    tier_limits: dict[Identifier, LimitSet] = Field(default_factory=dict)
    """Of all its keys together on one tier."""
    classes: tuple[LatencyClass, ...] = CLASSES
    """Latency classes that its keys may ask for."""
    weight: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Its share of a full pool against other tenants of the same class."""
    on_budget: Literal["refuse", "degrade"] = "refuse"
    """What a spent dollar budget does: 429, or the tier `degrade_to` instead, if that one still fits."""
    degrade_to: Identifier | None = None
    samples: SampleConsent = SampleConsent()

    @model_validator(mode="after")
    def _degrades(self) -> Self:
        if (self.on_budget == "degrade") != (self.degrade_to is not None):
            raise ValueError('on_budget = "degrade" and degrade_to go together')
        if not self.classes:
            raise ValueError("classes is empty: no request could be served")
        return self


class ClassConfig(Section):
    """What a latency class means in every pool."""

    weight: Annotated[float, Field(gt=0, le=1000)]
    """Its turns against other classes when all of them wait; none is ever left out."""
    max_share: Annotated[float, Field(gt=0, le=1)]
    """Most of a pool's slots that this class and less urgent ones may fill; the rest is kept for more urgent ones."""
    queue_timeout_s: Seconds | None = None
    """Longest wait in a pool's queue; None takes the pool's."""
    request_timeout_s: Seconds | None = None
    """Longest request; None takes the server's."""
    first_byte_s: Seconds | None = None
    """Longest wait for an engine's first byte; None takes the pool's."""
    hosted: bool = True
    """Whether its requests may go to a hosted pool while the tier has one of its own."""
    engine_priority: Annotated[int, Field(ge=-1000, le=1000)]
    """Sent to engines that schedule by priority; lower is served sooner."""


class ClassesConfig(Section):
    """The three latency classes."""

    interactive: ClassConfig = ClassConfig(weight=16, max_share=1.0, engine_priority=-10)
    standard: ClassConfig = ClassConfig(weight=4, max_share=1.0, engine_priority=0)
    batch: ClassConfig = ClassConfig(weight=1, max_share=0.7, engine_priority=10, hosted=False)

    @model_validator(mode="before")
    @classmethod
    def _partial(cls, given: object) -> object:
        """A class that the file changes in part keeps the rest of its defaults."""
        if not isinstance(given, dict):
            return given
        filled = dict(given)
        for name, section in given.items():
            field = cls.model_fields.get(name)
            if field is not None and isinstance(section, dict):
                filled[name] = {**field.default.model_dump(exclude_defaults=True), **section}
        return filled

    def of(self, name: LatencyClass) -> ClassConfig:
        found: ClassConfig = getattr(self, name)
        return found


class LedgerConfig(Section):
    """How calls are booked."""

    durability: Literal["process", "power"] = "process"
    """What a booked call survives: the death of the process, or a power cut too (one fsync for each batch)."""
    unknown: Literal["reserved", "nothing"] = "reserved"
    """What a call is billed at whose end nobody saw because its process died."""
    keep_days: Annotated[int, Field(ge=1, le=36_500)] | None = None
    """Whole days after which entries are dropped; None keeps them for good."""
    spool_entries: Annotated[int, Field(ge=1000)] = 1_000_000
    """With a PostgreSQL ledger: entries kept here while it is away, before new calls are refused."""
