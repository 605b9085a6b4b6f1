"""`llmrouter labels build`: asks models what a golden file or the samples ask, and writes their scores."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmrouter.cli.options import ConfigPath, Json, example
from llmrouter.cli.output import complain, print_json, print_table, say, warn
from llmrouter.errors import UsageError

if TYPE_CHECKING:
    from llmrouter.config import Config, TierConfig
    from llmrouter.offline.build_labels import BuildSettings, Built
    from llmrouter.offline.label_items import LabelItem
    from llmrouter.offline.upstreams import ToolCalls, Upstreams

__all__ = ["EXAMPLE", "build"]

EXAMPLE = example(
    "llmrouter labels build golden.jsonl --models small,large,frontier --out labels.jsonl.gz",
    "llmrouter labels build samples --models small,large,frontier --tenant checkout --out labels.jsonl.gz",
)

_SAMPLES = "samples"
_INTERRUPTED = 130


def build(
    source: Annotated[str, typer.Argument(metavar="SUITE|samples", help="A golden file, or the samples of the store.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="JSONL or JSONL.gz; gone on with if there.")],
    models: Annotated[
        str | None,
        typer.Option("--models", metavar="ID,...", help="Models or roles of the tier, the reference last; else all."),
    ] = None,
    tier: Annotated[str | None, typer.Option("--tier", metavar="ID", help="Whose roles; else the first.")] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", "-t", metavar="ID", help="Samples of one tenant.")] = None,
    samples: Annotated[
        int, typer.Option("--samples", metavar="N", min=0, max=64, help="Further answers of each model, for agreement.")
    ] = 0,
    signals: Annotated[bool, typer.Option("--signals", help="Keep what log-probabilities say.")] = False,
    self_check: Annotated[
        bool, typer.Option("--self-check", help="Ask each model whether its answer is right.")
    ] = False,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="At most so many items.")] = None,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", metavar="N", min=1, help="Output cap of items that do not say.")
    ] = 1024,
    temperature: Annotated[float, typer.Option("--temperature", metavar="T", min=0, max=2, help="Of the answers.")] = 0,
    concurrency: Annotated[int, typer.Option("--concurrency", metavar="N", min=1, max=512, help="Calls at once.")] = 8,
    allow_failures: Annotated[bool, typer.Option("--allow-failures", help="Exit 0 if some calls fail.")] = False,
    config: ConfigPath = Path("llmrouter.toml"),
    as_json: Json = False,
) -> None:
    """Ask models and write labels; what an earlier run did is not asked again. Exit 1 if calls fail, 5 if all do."""
    import asyncio

    from llmrouter.config import load
    from llmrouter.offline.build_labels import BuildSettings

    if str(out) == "-" or out.suffix == ".parquet":
        raise UsageError(f"--out {out}: name a .jsonl or .jsonl.gz file, which an interrupted run can go on with")
    loaded = load(config)
    chosen = _models(loaded, models, tier)
    items = _samples(loaded, tenant) if source == _SAMPLES else _suite(source, tenant)
    settings = BuildSettings(
        models=chosen,
        temperature=temperature,
        max_tokens=max_tokens,
        samples=samples,
        signals=signals,
        prefix_tokens=_held_back(loaded, tier),
        self_check=self_check,
        concurrency=concurrency,
    )
    try:
        done = asyncio.run(_build(loaded, items[:limit], out, settings))
    except KeyboardInterrupt:
        say(f"stopped; what is done is kept beside {out}, and the same command goes on from there")
        raise typer.Exit(_INTERRUPTED) from None
    _report(done, out, chosen, as_json)
    if not done.rows:
        complain("there is no answer with a score: nothing was written")
        raise typer.Exit(5)
    if done.failed and not allow_failures:
        raise typer.Exit(1)


async def _build(config: Config, items: list[LabelItem], out: Path, settings: BuildSettings) -> Built:
    import contextlib
    import tempfile
    import time
    from datetime import UTC, datetime

    from llmrouter.backends.runners.manager import RunnerManager
    from llmrouter.cli.progress import CallProgress, RunnerProgress
    from llmrouter.offline.build_labels import Outside, build_labels
    from llmrouter.offline.upstreams import Upstreams
    from llmrouter.pricing.book import PriceBook
    from llmrouter.routing.confidence import signals_from_logprobs

    def now() -> datetime:
        return datetime.now(UTC)

    async with contextlib.AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="llmrouter-labels-"))
        runners = RunnerManager(_only(config, settings.models), Path(folder))
        stack.push_async_callback(runners.stop)
        urls = await runners.start(RunnerProgress())
        upstreams: Upstreams = Upstreams.of(config, settings.models, runner_urls=urls)
        stack.push_async_callback(upstreams.aclose)
        outside = Outside(
            complete=upstreams.complete,
            cost_usd=PriceBook(config, now).cost,
            short_answer=_short_answer,
            signals=signals_from_logprobs,
            many_at_once=lambda model: "n" in config.capabilities_of(model),
            now=now,
            clock=time.monotonic,
            tell=stack.enter_context(CallProgress()),
        )
        return await build_labels(items, out, settings, outside)


def _only(config: Config, models: tuple[str, ...]) -> Config:
    """The configuration with the pools of these models only, so that no other runner is started."""
    pools = {pool_id: pool for pool_id, pool in config.pools.items() if pool.model in models}
    return config.model_copy(update={"pools": pools})


def _models(config: Config, given: str | None, tier_id: str | None) -> tuple[str, ...]:
    """Ids of models; a name that is none is a role of the tier."""
    from llmrouter.sections import suggest

    if tier_id is not None and tier_id not in config.tiers:
        raise UsageError(f"--tier {tier_id!r}: there is no such tier{suggest(tier_id, config.tiers)}")
    tier = _tier(config, tier_id)
    roles = {f"peer{number}": peer for number, peer in enumerate(tier.peers, 1)}
    roles |= {role: tier.roles[role] for role in ("small", "large", "frontier") if role in tier.roles}
    if given is None:
        return tuple(dict.fromkeys(roles.values()))
    chosen = []
    for name in given.split(","):
        model = name.strip() if name.strip() in config.models else roles.get(name.strip())
        if model is None:
            known = suggest(name.strip(), [*config.models, *roles])
            raise UsageError(f"--models {name.strip()!r}: is neither a model nor a role of the tier{known}")
        if model in chosen:
            raise UsageError(f"--models {name.strip()!r}: the model {model!r} is there twice")
        chosen.append(model)
    return tuple(chosen)


def _tier(config: Config, tier_id: str | None) -> TierConfig:
    return config.tiers[tier_id] if tier_id is not None else next(iter(config.tiers.values()))


def _held_back(config: Config, tier_id: str | None) -> int:
    """Tokens of a stream that the tier looks at before anything is sent."""
    return _tier(config, tier_id).cascade.hold_back_tokens


def _suite(source: str, tenant: str | None) -> list[LabelItem]:
    from llmrouter.offline.label_items import read_golden

    if tenant is not None:
        raise UsageError("--tenant is for samples; a golden file has none")
    return read_golden(Path(source))


def _samples(config: Config, tenant: str | None) -> list[LabelItem]:
    """The samples that can be asked again, of tenants that consent now."""
    from datetime import UTC, datetime

    from llmrouter.cli.quality_store import filled_store
    from llmrouter.offline.label_items import sample_items
    from llmrouter.quality.encryption import vault_of
    from llmrouter.quality.sample_store import Selection, read_samples

    if tenant is not None and tenant not in config.tenants:
        raise UsageError(f"--tenant {tenant!r}: there is no such tenant in the configuration")
    consenting = frozenset(name for name, each in config.tenants.items() if each.samples.consent)
    selection = Selection(tenant_id=tenant, alive_at=datetime.now(UTC))
    found = list(sample_items(read_samples(filled_store(config), selection, vault_of(config.samples)), consenting))
    items = [item for item in found if item is not None]
    if len(items) < len(found):
        warn(f"{len(found) - len(items)} samples are left: no consent now, or no prompt that can be asked again")
    if not items:
        raise UsageError("there are no samples to build labels from; `llmrouter samples list` shows what is kept")
    return items


def _short_answer(item: LabelItem, text: str, calls: ToolCalls) -> str | None:
    """What answers to a sample are compared by; free text and code have nothing that is."""
    from llmrouter.routing.answer_kind import kind_of, options_of
    from llmrouter.routing.normalise import canonical

    request = item.request("")
    kind = kind_of(request)
    if kind in ("text", "code"):
        return None
    return canonical(kind, text, calls, options=options_of(request.last_user_text) if kind == "choice" else None)


def _report(done: Built, out: Path, models: tuple[str, ...], as_json: bool) -> None:
    from dataclasses import asdict

    for failure in done.failures:
        complain(failure)
    if done.failed > len(done.failures):
        complain(f"and {done.failed - len(done.failures)} more calls failed")
    if done.truncated:
        warn(f"{done.truncated} answers ended at the output cap (--max-tokens) and are scored as they are")
    if done.estimated:
        warn(f"{done.estimated} answers came without usage; their tokens and cost are estimates, marked as such")
    if done.not_comparable:
        warn(f"{done.not_comparable} items have no answer of {models[-1]} that can be compared; they are left out")
    if as_json:
        print_json({"out": str(out), **asdict(done)})
        return
    print_table(("MODEL", "MEAN SCORE"), [(model, f"{mean:.4f}") for model, mean in done.mean_scores.items()])
    say(
        f"{out}: {done.rows} of {done.items} items; {done.calls} calls made, {done.reused} done before, "
        f"{done.failed} failed; ${done.cost_usd:.6g}"
    )
