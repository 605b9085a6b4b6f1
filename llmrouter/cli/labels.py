"""`llmrouter labels`: what is known of how good answers were, in and out of the store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmrouter.cli.options import ConfigPath, Json, example
from llmrouter.cli.output import complain, print_json, print_table, say, warn
from llmrouter.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from llmrouter.config import Config
    from llmrouter.quality.importing import Imported
    from llmrouter.quality.label_store import LabelFilter, LabelWriter, ListedLabel, ModelStats
    from llmrouter.quality.labels import Kind

__all__ = [
    "EXPORT_EXAMPLE",
    "IMPORT_EXAMPLE",
    "LIST_EXAMPLE",
    "STATS_EXAMPLE",
    "export",
    "import_files",
    "list_labels",
    "stats",
]

IMPORT_EXAMPLE = example(
    "llmrouter labels import marked.jsonl.gz --dry-run",
    "llmrouter labels import reviewed.jsonl --kind human --judge alice",
)
EXPORT_EXAMPLE = example("llmrouter labels export --out labels.jsonl.gz --since 30d")
LIST_EXAMPLE = example("llmrouter labels list --model small --kind shadow")
STATS_EXAMPLE = example("llmrouter labels stats --json")

_MOST_COMPLAINTS = 20

Since = Annotated[str | None, typer.Option(metavar="TIME", help="Judged since a date, or 7d ago.")]
OfModel = Annotated[str | None, typer.Option("--model", metavar="ID", help="Of one model only.")]
OfKind = Annotated[str | None, typer.Option("--kind", metavar="KIND", help="eval, shadow, human or import only.")]
OfJudge = Annotated[str | None, typer.Option("--judge", metavar="NAME", help="By one judge only.")]


def import_files(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="JSONL, JSONL.gz or Parquet; - reads standard input.")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and count only; nothing is written.")] = False,
    kind: Annotated[
        str, typer.Option("--kind", metavar="KIND", help="Of labels that do not say: eval, shadow, human or import.")
    ] = "import",
    judge: Annotated[
        str | None, typer.Option("--judge", metavar="NAME", help="Who judged, where labels do not say.")
    ] = None,
    config: ConfigPath = Path("llmrouter.toml"),
    as_json: Json = False,
) -> None:
    """Take labels into the store; those that are there already are counted and left. Exit 1 if any are refused."""
    from dataclasses import asdict

    from llmrouter.config import load
    from llmrouter.quality.label_store import LabelWriter

    checked = _kind(kind)
    loaded = load(config)
    path = _store_to_fill(loaded, dry_run)
    done = {}
    with LabelWriter.of(path, dry_run=dry_run) as writer:
        for file in files:
            done[str(file)] = _import_file(file, writer, checked, judge)
    if as_json:
        print_json({"dry_run": dry_run, "files": {name: asdict(each) for name, each in done.items()}})
    else:
        would = "would be " if dry_run else ""
        for name, each in done.items():
            say(
                f"{name}: {each.objects} objects; {each.new} labels {would}new, {each.known} known already, "
                f"{each.refused} objects {would}refused"
            )
    if any(each.refused for each in done.values()):
        raise typer.Exit(1)


def export(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="JSONL or JSONL.gz; - is standard output.")],
    since: Since = None,
    model: OfModel = None,
    kind: OfKind = None,
    judge: OfJudge = None,
    with_samples: Annotated[
        bool, typer.Option("--with-samples", help="Take prompts from samples where a label has none.")
    ] = False,
    config: ConfigPath = Path("llmrouter.toml"),
) -> None:
    """Write labels as training reads them: one object an item, the latest label of each model in maps by model."""
    from llmrouter.cli.quality_store import filled_store
    from llmrouter.config import load
    from llmrouter.quality.label_files import write_objects
    from llmrouter.quality.label_store import rows_of

    loaded = load(config)
    path = filled_store(loaded)
    content_of = _prompts_of_samples(loaded, path) if with_samples else _no_prompt
    count = write_objects(out, rows_of(path, _filter(since, model, kind, judge), content_of=content_of))
    say(f"{count} items written to {out}" if str(out) != "-" else f"{count} items")


def list_labels(
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=10_000, help="How many.")] = 20,
    since: Since = None,
    model: OfModel = None,
    kind: OfKind = None,
    judge: OfJudge = None,
    config: ConfigPath = Path("llmrouter.toml"),
    as_json: Json = False,
) -> None:
    """List the labels that came in last, newest first."""
    from dataclasses import asdict

    from llmrouter.cli.quality_store import filled_store
    from llmrouter.config import load
    from llmrouter.quality import label_store

    found = label_store.list_labels(filled_store(load(config)), _filter(since, model, kind, judge), limit)
    if as_json:
        print_json({"labels": [asdict(each) for each in found]})
    else:
        print_table(("ITEM", "MODEL", "SCORE", "KIND", "JUDGE", "JUDGED", "SOURCE"), [_row(each) for each in found])


def stats(
    since: Since = None,
    model: OfModel = None,
    kind: OfKind = None,
    judge: OfJudge = None,
    config: ConfigPath = Path("llmrouter.toml"),
    as_json: Json = False,
) -> None:
    """Count labels and average scores by model, kind and judge."""
    from dataclasses import asdict

    from llmrouter.cli.quality_store import filled_store
    from llmrouter.config import load
    from llmrouter.quality.label_store import label_stats

    found = label_stats(filled_store(load(config)), _filter(since, model, kind, judge))
    if as_json:
        print_json({"models": [asdict(each) for each in found]})
    else:
        headings = ("MODEL", "KIND", "JUDGE", "LABELS", "ITEMS", "MEAN SCORE", "FIRST", "LAST")
        print_table(headings, [_stats_row(each) for each in found])


def _import_file(file: Path, writer: LabelWriter, kind: Kind, judge: str | None) -> Imported:
    from datetime import UTC, datetime

    from llmrouter.quality.importing import import_labels
    from llmrouter.quality.label_files import read_objects

    told = 0

    def on_refused(at: str, problem: str) -> None:
        nonlocal told
        told += 1
        if told <= _MOST_COMPLAINTS:
            complain(f"{file}: {at}: {problem}")

    done = import_labels(
        read_objects(file), writer, now=lambda: datetime.now(UTC), kind=kind, judge=judge, on_refused=on_refused
    )
    if told > _MOST_COMPLAINTS:
        complain(f"{file}: and {told - _MOST_COMPLAINTS} more")
    if not done.objects:
        warn(f"{file}: holds no labels")
    return done


def _store_to_fill(config: Config, dry_run: bool) -> Path:
    """The store, made or brought up to date; a dry run needs one that is."""
    from llmrouter.cli.quality_store import filled_store
    from llmrouter.database import database_path, migrate

    if dry_run:
        return filled_store(config)
    path = database_path(config.store.url)
    migrate(path)
    return path


def _filter(since: str | None, model: str | None, kind: str | None, judge: str | None) -> LabelFilter:
    from datetime import UTC, datetime

    from llmrouter.cli.quality_store import parse_since
    from llmrouter.quality.label_store import LabelFilter

    when = parse_since(since, datetime.now(UTC)) if since is not None else None
    return LabelFilter(since=when, model_id=model, kind=_kind(kind) if kind is not None else None, judge=judge)


def _kind(text: str) -> Kind:
    from llmrouter.quality.labels import KINDS

    for kind in KINDS:
        if kind == text:
            return kind
    raise UsageError(f"--kind {text!r} is none of {', '.join(KINDS)}")


def _no_prompt(_: str) -> None:
    return None


def _prompts_of_samples(config: Config, path: Path) -> Callable[[str], Mapping[str, Any] | None]:
    from llmrouter.quality.encryption import vault_of
    from llmrouter.quality.sample_store import read_sample

    vault = vault_of(config.samples)

    def content_of(item_id: str) -> Mapping[str, Any] | None:
        sample = read_sample(path, item_id, vault)
        return None if sample is None else sample.content()

    return content_of


def _row(label: ListedLabel) -> tuple[str, ...]:
    return (
        label.item_id,
        label.model_id,
        f"{label.score:g}",
        label.kind,
        label.judge or "-",
        (label.judged_at or label.created_at)[:16],
        label.source or "-",
    )


def _stats_row(each: ModelStats) -> tuple[str, ...]:
    counts = str(each.labels), str(each.items), f"{each.mean_score:.4f}"
    return each.model_id, each.kind, each.judge or "-", *counts, each.first[:16], each.last[:16]
