"""The sections of the configuration file, each a frozen pydantic model with its defaults.

Read them through `llmrouter.config`, which has the whole tree. A section or key appears here when something reads it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from llmrouter.tenancy_sections import Identifier, LimitSet, Seconds, Section
from llmrouter.types import LatencyClass

__all__ = [
    "CAPABILITIES",
    "ENGINE_CAPABILITIES",
    "AdminConfig",
    "BreakerConfig",
    "CascadeConfig",
    "DriftConfig",
    "GpuPrice",
    "Identifier",
    "LimitsConfig",
    "ListPrice",
    "LlamaCppRunner",
    "LogConfig",
    "ModelConfig",
    "PoolConfig",
    "PriceConfig",
    "RoutingConfig",
    "RuleConfig",
    "Runner",
    "Section",
    "ServerConfig",
    "StoreConfig",
    "TierConfig",
    "TimeoutConfig",
    "VllmRunner",
    "suggest",
]

CAPABILITIES = frozenset(
    {
        "tools",
        "custom_tools",
        "allowed_tools",
        "vision",
        "audio_input",
        "audio_output",
        "files",
        "json_object",
        "json_schema",
        "logprobs",
        "n",
        "reasoning",
        "prediction",
        "web_search",
        "moderation",
        "verbosity",
        "engine_fields",
        "completions",
        "embeddings",
    }
)

ENGINE_CAPABILITIES = {
    "vllm": frozenset({"json_object", "json_schema", "logprobs", "n", "engine_fields", "completions"}),
    # No "n": llama.cpp's server reports the usage of one choice only, and the books must be true.
    "llama_cpp": frozenset({"json_object", "json_schema", "logprobs", "engine_fields", "completions"}),
    "openai": frozenset({"tools", "json_object", "json_schema", "logprobs", "n"}),
    "echo": frozenset({"json_object", "logprobs", "n"}),
}

NonNegative = Annotated[Decimal, Field(ge=0, le=1_000_000)]


class ServerConfig(Section):
    """Where the gateway listens and how much it takes on."""

    listen: str = "127.0.0.1:8080"
    workers: Annotated[int, Field(ge=1, le=64)] = 1
    drain_s: Seconds = 30.0
    request_timeout_s: Seconds = 600.0
    body_timeout_s: Seconds = 60.0
    max_concurrent_requests: Annotated[int, Field(ge=1)] = 1024
    keepalive_comment_s: Seconds = 15.0


class AdminConfig(Section):
    """`listen` moves admin routes and /metrics to a port of their own; the data port then answers 404 for them."""

    listen: str | None = None


class StoreConfig(Section):
    """Where keys, rules, limits and the ledger live. A relative path is taken from the configuration file's folder.

    All of it is in one SQLite file until `ledger_url` or `limits_url` moves a part to a server that several gateways
    share; the file then still holds what must survive the death of this machine's processes.
    """

    url: str = "sqlite:///llmrouter.db"
    ledger_url: SecretStr | None = None
    """`postgresql://…`: keys, rules and the ledger of all gateways in one database (extra `postgres`)."""
    limits_url: SecretStr | None = None
    """`redis://…` or `rediss://…`: the limits of all gateways in one Redis or Valkey (extra `redis`)."""
    secret: SecretStr | None = None
    """Pepper of the key hashes; without one, a file `<database>.secret` (mode 0600) is made at first use."""

    @field_validator("url")
    @classmethod
    def _known_scheme(cls, url: str) -> str:
        if not url.startswith("sqlite:///"):
            raise ValueError("only sqlite:///PATH is supported; servers are named by ledger_url and limits_url")
        return url

    @field_validator("ledger_url")
    @classmethod
    def _postgres(cls, url: SecretStr | None) -> SecretStr | None:
        if url is not None:
            if not url.get_secret_value().startswith(("postgresql://", "postgres://")):
                raise ValueError("only postgresql://USER@HOST/DATABASE is supported")
            _refuse_bare_password(url.get_secret_value())
        return url

    @field_validator("limits_url")
    @classmethod
    def _redis(cls, url: SecretStr | None) -> SecretStr | None:
        if url is not None:
            if not url.get_secret_value().startswith(("redis://", "rediss://", "unix://")):
                raise ValueError("only redis://HOST:PORT/NUMBER, rediss:// and unix:// are supported")
            _refuse_bare_password(url.get_secret_value())
            _refuse_odd_port(url.get_secret_value())
        return url


def _refuse_bare_password(url: str) -> None:
    """A `/`, `?` or `#` in a password ends the server's name early: the rest would be shown as that of a database."""
    rest = url.partition("://")[2]
    server = re.split("[/?#]", rest, maxsplit=1)[0]
    behind = rest[len(server) :]
    if "@" in re.split("[?#]", behind, maxsplit=1)[0] or (server and "@" not in server and "@" in behind):
        raise ValueError("write / ? # and @ in the user's name or the password as %2F, %3F, %23 and %40")


def _refuse_odd_port(url: str) -> None:
    try:
        urlsplit(url).port  # noqa: B018 - it is checked when it is asked for
    except ValueError:
        # Python's own message quotes a part of the address, perhaps of the password.
        raise ValueError("host or port cannot be read; the form is redis://USER:PASSWORD@HOST:PORT/NUMBER") from None


class LimitsConfig(Section):
    """Caps on a single request, applied before anything is spent on it, and how reservations are made.

    What a tenant, group, key or tier may use is set in its own section: `tenants.ID.limits` and so on.
    """

    max_body_bytes: Annotated[int, Field(ge=1024)] = 16 * 1024 * 1024
    max_depth: Annotated[int, Field(ge=8, le=512)] = 64
    max_n: Annotated[int, Field(ge=1, le=128)] = 8
    max_messages: Annotated[int, Field(ge=1)] = 4096
    max_tools: Annotated[int, Field(ge=1)] = 256
    max_answer_bytes: Annotated[int, Field(ge=1024)] = 64 * 1024 * 1024
    unknown_fields: Literal["forward", "refuse"] = "forward"
    """What happens to a request field that neither the API nor a known engine defines."""
    allow_engine_fields: tuple[str, ...] = ()
    """Engine controls that clients may set although they are refused by default, e.g. `chat_template_kwargs`."""
    clamp_output_tokens: bool = True
    """Lower an output cap that cannot fit the window (and say so in `x-llmrouter-clamped`) instead of answering 400."""
    on_store_down: Literal["closed", "open"] = "closed"
    """While the shared limits cannot be reached: refuse requests that have limits (503), or serve them unlimited."""
    lease_s: Annotated[float, Field(ge=0, le=5)] = 0.1
    """With shared limits: how much of a limit, in seconds of its rate, a worker takes at once for later requests."""
    reserve_bytes_per_token: Annotated[float, Field(ge=1, le=16)] | None = None
    """Reserve prompts at this many bytes a token; None takes each model's own. 1 is above any tokenizer's count."""


class LogConfig(Section):
    level: Literal["debug", "info", "warning", "error"] = "info"
    prompts: bool = False
    """Log prompts and answers. Off unless you need it: they hold your users' data."""


class ListPrice(Section):
    """Dollars per million tokens; wins over the built-in price table."""

    input_usd_per_mtok: NonNegative
    output_usd_per_mtok: NonNegative
    cached_usd_per_mtok: NonNegative | None = None
    cache_write_usd_per_mtok: NonNegative | None = None


class GpuPrice(Section):
    """Own GPUs: dollars an hour and pool-seconds a token, from a measurement (`a` and `b` of the cost formula)."""

    usd_per_hour: NonNegative
    gpus: Annotated[int, Field(ge=1)] = 1
    input_pool_s_per_token: NonNegative
    output_pool_s_per_token: NonNegative


class PriceConfig(Section):
    """Exactly one of: a list price, GPU time, or a row of the built-in table (`table = "openai/gpt-4o"`)."""

    usd: ListPrice | None = None
    gpu: GpuPrice | None = None
    table: Annotated[str, Field(pattern=r"^[a-z0-9_-]+/.+$")] | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if sum(x is not None for x in (self.usd, self.gpu, self.table)) != 1:
            raise ValueError("give exactly one of usd, gpu, table")
        return self


class ModelConfig(Section):
    """One physical model: what it costs and what it can do."""

    price: PriceConfig
    context_window: Annotated[int, Field(ge=16)] | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    capabilities: frozenset[str] | None = None
    """All that it can do; None takes what its engine is known to do."""
    bytes_per_token: Annotated[float, Field(ge=1, le=16)] = 3.0
    """Fewest UTF-8 bytes a token of your prompts has on average; lower is safer."""

    @field_validator("capabilities")
    @classmethod
    def _known(cls, names: frozenset[str] | None) -> frozenset[str] | None:
        for name in sorted((names or frozenset()) - CAPABILITIES):
            raise ValueError(f"unknown capability {name!r}{suggest(name, CAPABILITIES)}")
        return names


class TimeoutConfig(Section):
    connect_s: Seconds = 3.0
    first_byte_s: Seconds = 120.0
    between_chunks_s: Seconds = 60.0


class BreakerConfig(Section):
    """When a replica is left alone: so many failures in a window, or a Retry-After of its own."""

    failures: Annotated[int, Field(ge=1)] = 5
    window_s: Seconds = 30.0
    share: Annotated[float, Field(ge=0, le=1)] = 0.2
    """Least share of the window's calls that must have failed; a busy replica is not shut out for a few of many."""
    open_s: Seconds = 10.0
    """First pause; it doubles with each failed trial call, up to `max_open_s`."""
    max_open_s: Seconds = 120.0


class LlamaCppRunner(Section):
    """llama.cpp's server as a child process (extra `engines-cpu`)."""

    kind: Literal["llama_cpp"] = "llama_cpp"
    model: str
    """A name from `llmrouter.backends.runners.models` or the path of a .gguf file."""
    replicas: Annotated[int, Field(ge=1, le=16)] = 1
    threads: Annotated[int, Field(ge=1)] = 1
    context: Annotated[int, Field(ge=256)] = 8192
    slots: Annotated[int, Field(ge=1)] = 4
    ready_timeout_s: Seconds = 120.0


class VllmRunner(Section):
    """`vllm serve` as a child process (extra `vllm`); flags derive from these keys, `extra_args` come last."""

    kind: Literal["vllm"] = "vllm"
    model: str
    """Hub name or local folder of the checkpoint."""
    command: tuple[str, ...] = ("vllm", "serve")
    replicas: Annotated[int, Field(ge=1, le=16)] = 1
    tensor_parallel: Annotated[int, Field(ge=1)] = 1
    dtype: str | None = None
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    max_model_len: Annotated[int, Field(ge=16)] | None = None
    max_num_seqs: Annotated[int, Field(ge=1)] | None = None
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    prefix_caching: bool = True
    priority_scheduling: bool = False
    tool_parser: str | None = None
    speculative: Mapping[str, Any] | None = None
    env: Mapping[str, str] = Field(default_factory=dict)
    extra_args: tuple[str, ...] = ()
    ready_timeout_s: Seconds = 900.0


Runner = Annotated[LlamaCppRunner | VllmRunner, Field(discriminator="kind")]


class PoolConfig(Section):
    """The replicas that serve one model: addresses you run, or a runner that the gateway starts."""

    model: Identifier
    api: Literal["openai", "vllm", "llama_cpp", "echo"] = "openai"
    urls: tuple[str, ...] = ()
    """Base addresses up to and including `/v1`."""
    runner: Runner | None = None
    api_key: SecretStr | None = None
    headers: Mapping[str, SecretStr] = Field(default_factory=dict)
    upstream_model: str | None = None
    """How the pool calls the model; None sends the model's own id."""
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] | None = None
    """The one output cap the pool accepts; None picks by `api`."""
    hosted: bool = False
    """Somebody else's API: a fallback to it counts as spill."""
    max_concurrency: Annotated[int, Field(ge=1)] | None = None
    """Calls in flight per worker over all replicas; more wait in the pool's queue."""
    send_priority: bool = False
    """Send each latency class's `engine_priority`; for a vLLM pool that was started with priority scheduling."""
    max_queue: Annotated[int, Field(ge=0)] = 256
    queue_timeout_s: Seconds = 10.0
    idle_connection_s: Seconds = 4.0
    """Close an idle upstream connection after this; keep it below the engine's own keep-alive (5 s for vLLM)."""
    probe_interval_s: Seconds = 5.0
    affinity_slack: Annotated[float, Field(ge=0)] = 1.5
    """How much busier than the mean the replica that holds a prompt's prefix may be and still be preferred."""
    timeouts: TimeoutConfig = TimeoutConfig()
    breaker: BreakerConfig = BreakerConfig()

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.api == "echo":
            if self.urls or self.runner:
                raise ValueError('api = "echo" answers by itself; remove urls and runner')
        elif bool(self.urls) == (self.runner is not None):
            raise ValueError("give either urls or a runner")
        for url in self.urls:
            if not re.match(r"^https?://[^/\s]+(/\S*)?$", url):
                raise ValueError(f"{url!r} is not an http(s) address")
        if self.runner is not None and self.api not in ("openai", self.runner.kind):
            raise ValueError(f"a {self.runner.kind} runner speaks api = {self.runner.kind!r}")
        return self

    @property
    def engine(self) -> str:
        """The wire flavour: the runner's kind where there is one."""
        return self.runner.kind if self.runner is not None else self.api


class CascadeConfig(Section):
    """How a tier with `strategy = "cascade"` may examine a cheap answer before the client gets it."""

    checks: tuple[Literal["agreement", "self_check", "logprobs", "verifier"], ...] = (
        "agreement",
        "self_check",
        "logprobs",
        "verifier",
    )
    """Which ones may be used; the learned policy picks per request. Format checks always run."""
    samples: Annotated[int, Field(ge=1, le=16)] = 1
    """Answers of the small model that agreement may ask for; those after the first take the places of missing peers."""
    max_peers: Annotated[int, Field(ge=0, le=8)] = 3
    """How many of the tier's `peers` one request may ask, the first ones."""
    peer_wait_s: Seconds = 1.0
    """How long peers are waited for when the small model has answered; later ones are cancelled and have no vote."""
    hold_back_tokens: Annotated[int, Field(ge=1, le=4096)] = 24
    """Of a stream, at most so many tokens are withheld while its beginning is judged."""
    hold_back_s: Annotated[float, Field(gt=0, le=60)] = 0.4
    """And for at most so long; it adds to the time to the first token."""
    whole_tokens: Annotated[int, Field(ge=0, le=4096)] = 32
    """A stream that may write at most so many tokens is checked as a whole answer; 0 never does that."""
    verifier: Identifier | None = None
    """Entry point in the group `llmrouter.verifiers` that scores answers; None has none."""


class TierConfig(Section):
    """A logical model that clients ask for: which models play which role, and what is tried when one fails."""

    strategy: Literal["rules", "router", "cascade"] = "rules"
    """`rules` chooses by rules and `default` alone; `router` by what it has learned about prompts, where no rule wins;
    `cascade` may also call the small model first and check its answer."""
    description: str = ""
    small: Identifier | None = None
    large: Identifier | None = None
    frontier: Identifier | None = None
    peers: tuple[Identifier, ...] = ()
    default: Literal["small", "large", "frontier"] | None = None
    """Role that answers when no rule matches; None takes the first of `fallback`."""
    fallback: tuple[Literal["small", "large", "frontier"], ...] = ("small", "large", "frontier")
    """Order in which the roles are tried; an earlier model never replaces a later one that a rule chose."""
    retries: Annotated[int, Field(ge=0, le=5)] = 1
    """More tries at one model, on another replica where there is one, before the next role."""
    max_wait_s: Annotated[float, Field(ge=0, le=60)] = 5.0
    """Longest wait for a Retry-After when nothing else can answer."""
    sticky: Literal["conversation", "key"] = "conversation"
    latency_class: LatencyClass = "standard"
    """The class of requests that ask for none and whose key has none."""
    artefact: Annotated[str, Field(min_length=1)] = "published"
    """What a learned strategy has learned: `published` is that of the routing version in force and, while it has none,
    the generic one; `generic` is always the one in this package, which promises nothing; else the folder that
    `train-router` wrote."""
    escalation_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Most of one tenant's recent requests that a learned strategy sends above the small model."""
    sticky_saving: Annotated[float, Field(ge=0, le=1000)] = 1.0
    """A learned strategy keeps a conversation on its model unless another saves more than so many times what the lost
    prefix cache costs; 0 decides every turn anew."""
    cascade: CascadeConfig = CascadeConfig()
    limits: LimitSet = LimitSet()
    """Of all tenants together on this tier."""

    @model_validator(mode="after")
    def _roles(self) -> Self:
        roles = self.roles
        if not roles:
            raise ValueError("a tier needs at least one of small, large, frontier")
        if self.is_learned and ("small" not in roles or len(roles) < 2):
            raise ValueError(f"strategy = {self.strategy!r} chooses between small and large or frontier; give both")
        for peer in self.peers if self.is_learned else ():
            if self.peers.count(peer) > 1 or peer in roles.values():
                raise ValueError(f"peers: {peer!r} has another place in this tier; a peer must be a further model")
        if self.default is not None and self.default not in roles:
            raise ValueError(f"default = {self.default!r}, but the tier has no {self.default} model")
        if not any(role in roles for role in self.fallback):
            raise ValueError("fallback names no role that the tier has")
        return self

    @property
    def roles(self) -> dict[str, str]:
        """Role to model id, in fallback order, roles that are not in `fallback` last."""
        order = (*self.fallback, *(r for r in ("small", "large", "frontier") if r not in self.fallback))
        found = {role: getattr(self, role) for role in order}
        return {role: model for role, model in found.items() if model is not None}

    @property
    def artefact_folder(self) -> Path | None:
        """The folder that `artefact` names, if it names one."""
        return None if self.artefact in ("published", "generic") else Path(self.artefact)

    @property
    def is_learned(self) -> bool:
        """Whether an artefact decides what the rules leave open."""
        return self.strategy != "rules"

    @property
    def default_role(self) -> str:
        return self.default or next(iter(self.roles))


class RuleConfig(Section):
    """One routing rule; see docs/routing.md for the keys of `match`."""

    rule_id: Identifier
    match: Mapping[str, Any] = Field(default_factory=dict)
    model_id: Identifier | None = None
    tier_role: Literal["small", "large", "frontier"] | None = None
    weight: Annotated[float, Field(gt=0, le=1_000_000)] = 1.0
    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] = 0

    @model_validator(mode="after")
    def _one_goal(self) -> Self:
        if (self.model_id is None) == (self.tier_role is None):
            raise ValueError("give exactly one of model_id, tier_role")
        return self


class DriftConfig(Section):
    """Whether requests still look like those that an artefact was calibrated on."""

    watch: bool = True
    """Compare them and warn, in the log and in the metrics."""
    fall_back: bool = True
    """On drift, go back to the certified operating point from one beyond it, else to the best model for everything,
    until the next routing version is published."""
    window: Annotated[int, Field(ge=400, le=1_000_000)] = 4000
    """A worker counts so many requests and then starts anew, so that a long quiet time hides no change."""
    tolerance: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """How far the share of requests with like predictions, or with one route, may move and still be no drift."""


class RoutingConfig(Section):
    """`rules` seed version 1 of a new store; afterwards the store rules and `llmrouter rules apply` publishes."""

    reference_model: Identifier | None = None
    """The model against which savings are stated; None takes the last role of the first tier."""
    rules: tuple[RuleConfig, ...] = ()
    drift: DriftConfig = DriftConfig()


def suggest(name: str, known: Any) -> str:
    """The nearest known name, or all of them, for an error about an unknown one."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(sorted(known)) or 'none'}"
