"""`llmrouter samples`: the requests and answers that tenants have let the gateway keep."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmrouter.cli.options import ConfigPath, Json, example
from llmrouter.cli.output import print_json, print_table, say, warn
from llmrouter.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from llmrouter.config import Config
    from llmrouter.quality.sample_store import Sample, SampleInfo, Selection

__all__ = [
    "DELETE_EXAMPLE",
    "EXPORT_EXAMPLE",
    "LIST_EXAMPLE",
    "SHOW_EXAMPLE",
    "delete",
    "export",
    "list_samples",
    "show",
]

LIST_EXAMPLE = example("llmrouter samples list --tenant checkout --limit 50")
SHOW_EXAMPLE = example("llmrouter samples show req_019a6f3c2b1d9f8e7d6c5b4a39")
EXPORT_EXAMPLE = example("llmrouter samples export --tenant checkout --out samples.jsonl.gz")
DELETE_EXAMPLE = example(
    "llmrouter samples delete --tenant checkout --user u-8812",
    "llmrouter samples delete --tenant checkout --yes",
)

OfTenant = Annotated[str | None, typer.Option("--tenant", "-t", metavar="ID", help="Of one tenant only.")]


def list_samples(
    tenant: OfTenant = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=10_000, help="How many.")] = 20,
    config: ConfigPath = Path("llmrouter.toml"),
    as_json: Json = False,
) -> None:
    """List the newest samples, without what is in them."""
    from llmrouter.quality import sample_store

    loaded = _load(config)
    found = sample_store.list_samples(_store(loaded), _alive(tenant), limit)
    if as_json:
        print_json({"samples": [_info_as_json(each) for each in found]})
    else:
        headings = ("REQUEST", "AT", "TENANT", "TIER", "MODEL", "MASKED", "SEALED BY", "KEPT UNTIL")
        print_table(headings, [_row(each) for each in found])


def show(
    request_id: Annotated[str, typer.Argument(metavar="REQUEST_ID", help="The id that the answer came with.")],
    config: ConfigPath = Path("llmrouter.toml"),
) -> None:
    """Print one sample with its request and answer, as JSON."""
    from llmrouter.quality.encryption import vault_of
    from llmrouter.quality.sample_store import read_samples

    loaded = _load(config)
    wanted = _alive(None, request_id)
    sample = next(read_samples(_store(loaded), wanted, vault_of(loaded.samples)), None)
    if sample is None:
        raise UsageError(f"no sample {request_id!r}; `llmrouter samples list` shows the newest")
    print_json(_as_json(sample))


def export(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="JSONL or JSONL.gz; - is standard output.")],
    tenant: OfTenant = None,
    config: ConfigPath = Path("llmrouter.toml"),
) -> None:
    """Write samples with their requests and answers, oldest first, one JSON object each."""
    from llmrouter.quality.encryption import vault_of
    from llmrouter.quality.label_files import write_objects
    from llmrouter.quality.sample_store import read_samples

    loaded = _load(config)
    samples = read_samples(_store(loaded), _alive(tenant), vault_of(loaded.samples))
    count = write_objects(out, _as_items(samples))
    say(f"{count} samples written to {out}" if str(out) != "-" else f"{count} samples")


def delete(
    tenant: Annotated[str, typer.Option("--tenant", "-t", metavar="ID", help="Whose samples.")],
    request_id: Annotated[
        str | None, typer.Option("--request", metavar="REQUEST_ID", help="Of one request only.")
    ] = None,
    user: Annotated[
        str | None, typer.Option("--user", metavar="USER_ID", help="Of one end user of the tenant only.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete all of a tenant without asking.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count only.")] = False,
    config: ConfigPath = Path("llmrouter.toml"),
    as_json: Json = False,
) -> None:
    """Delete samples for good, and what labels quote of them. The scores of labels stay."""
    from llmrouter.quality.sample_store import Selection, count_samples, delete_samples, erase_log

    path = _store(_load(config))
    wanted = Selection(tenant_id=tenant, request_id=request_id, user_id=user)
    found = count_samples(path, wanted)
    if dry_run:
        _tell(found, tenant, "would be deleted", as_json)
        return
    if request_id is None and user is None and not yes:
        _confirm(f"Delete all {found} samples of {tenant}?")
    gone = delete_samples(path, wanted)
    if not erase_log(path):
        warn(f"{path.name}-wal still holds what was deleted, because others read there; run this again to empty it")
    _tell(gone, tenant, "deleted", as_json)


def _tell(count: int, tenant: str, what: str, as_json: bool) -> None:
    if as_json:
        print_json({"tenant": tenant, what.replace(" ", "_"): count})
    else:
        say(f"{count} samples of {tenant} {what}")


def _confirm(question: str) -> None:
    if not sys.stdin.isatty():
        raise UsageError("this deletes all samples of the tenant; say --yes, or name a --request or a --user")
    if not typer.confirm(question, err=True):
        raise UsageError("nothing was deleted")


def _load(config: Path) -> Config:
    from llmrouter.config import load

    return load(config)


def _store(config: Config) -> Path:
    from llmrouter.cli.quality_store import filled_store

    return filled_store(config)


def _alive(tenant: str | None, request_id: str | None = None) -> Selection:
    """What has expired is not shown, even before it is deleted."""
    from datetime import UTC, datetime

    from llmrouter.quality.sample_store import Selection

    return Selection(tenant_id=tenant, request_id=request_id, alive_at=datetime.now(UTC))


def _as_items(samples: Iterator[Sample]) -> Iterator[dict[str, Any]]:
    """As items that labels can be made of: `id`, `source`, and the prompt where labels have it."""
    for sample in samples:
        yield {"id": sample.info.request_id, "source": "samples", **(sample.content() or {}), **_as_json(sample)}


def _as_json(sample: Sample) -> dict[str, Any]:
    return {**_info_as_json(sample.info), "request": sample.request, "choices": sample.choices}


def _info_as_json(info: SampleInfo) -> Mapping[str, Any]:
    from dataclasses import asdict

    from llmrouter.database import to_instant

    return {**asdict(info), "ts": to_instant(info.ts), "expires_at": to_instant(info.expires_at)}


def _row(info: SampleInfo) -> tuple[str, ...]:
    masked = ", ".join(f"{count} {kind}" for kind, count in info.redacted.items())
    return (
        info.request_id,
        f"{info.ts:%Y-%m-%d %H:%M}",
        info.tenant_id,
        info.tier,
        info.model_id,
        masked or "-",
        info.sealed_by or "-",
        f"{info.expires_at:%Y-%m-%d}",
    )
