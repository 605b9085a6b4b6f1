"""`llmrouter train-router`: from labels to an artefact that routes, with figures and a certificate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmrouter.cli.options import ConfigPath, Json, example
from llmrouter.cli.output import print_json, print_table, say, warn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llmrouter.offline.labels import LabelSet
    from llmrouter.offline.train import Trained
    from llmrouter.routing.artifact import Artefact

__all__ = ["EXAMPLE", "train_router"]

EXAMPLE = example(
    "llmrouter train-router labels.jsonl.gz --models llama-8b,llama-70b,gpt-4o --out router",
    "llmrouter train-router labels/ --roles roles.json --models small,large,frontier --out router --policy auto "
    "--max-quality-loss 2 --confidence 0.95 --report router.html --publish",
)

_DEFAULT_COSTS = {"small": 1.0, "large": 10.0, "frontier": 100.0}
_GREATEST_SEED = 2**32 - 1
"""Of what trains."""


def train_router(
    labels: Annotated[list[Path], typer.Argument(metavar="LABELS...", help="JSONL, JSONL.gz, Parquet, folder, store.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder to write the artefact to.")],
    models: Annotated[
        str | None,
        typer.Option("--models", metavar="SMALL,LARGE[,FRONTIER]", help="Models as the labels name them, or roles."),
    ] = None,
    roles: Annotated[Path | None, typer.Option("--roles", metavar="FILE", help="Models by source, as JSON.")] = None,
    policy: Annotated[
        str, typer.Option("--policy", metavar="route|cascade|auto", help="Direct routes, checks, or what pays.")
    ] = "auto",
    costs: Annotated[
        str | None,
        typer.Option(
            "--costs", metavar="ROLE=N,...", help="Relative cost of a call; else small=1,large=10,frontier=100."
        ),
    ] = None,
    weights: Annotated[
        str | None, typer.Option("--weights", metavar="SOURCE=W,...", help="The mix of sources to train for.")
    ] = None,
    max_quality_loss: Annotated[
        float | None,
        typer.Option(
            "--max-quality-loss",
            metavar="POINTS",
            min=0.01,
            max=100.0,
            help="Operate where a certificate shows at most this loss. Without: where the estimated loss is at most 1.",
        ),
    ] = None,
    confidence: Annotated[
        float, typer.Option("--confidence", metavar="P", min=0.5, max=0.999, help="Of the certificate.")
    ] = 0.95,
    slices: Annotated[
        str | None, typer.Option("--slices", metavar="source", help="The promise must hold for every source, too.")
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", min=0, max=_GREATEST_SEED, help="Same seed, same artefact.")
    ] = 0,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="Write a page (.html) or plots (.png).")
    ] = None,
    generic: Annotated[
        bool, typer.Option("--generic", help="Bind it to roles instead of models, without any promise.")
    ] = False,
    publish: Annotated[
        bool, typer.Option("--publish", help="Make it the next routing version of the configured store.")
    ] = False,
    config: ConfigPath = Path("llmrouter.toml"),
    as_json: Json = False,
) -> None:
    """Train the router on labels, measure it on questions set apart, and certify how much it may save."""
    import time
    from datetime import UTC, datetime

    from llmrouter.cli.progress import StageProgress
    from llmrouter.config import load
    from llmrouter.errors import UsageError
    from llmrouter.offline.costs import parse_costs
    from llmrouter.offline.label_reader import read_labels
    from llmrouter.offline.label_report import LabelReport
    from llmrouter.offline.report import check_ending, write_report
    from llmrouter.offline.roles import Roles
    from llmrouter.offline.train import TrainOptions, train
    from llmrouter.offline.weights import parse_weights
    from llmrouter.routing.artifact import check_folder, write_artefact

    if policy not in ("route", "cascade", "auto"):
        raise UsageError(f"--policy must be route, cascade or auto, not {policy!r}")
    if slices not in (None, "source"):
        raise UsageError(f"--slices must be source, not {slices!r}")
    if publish and generic:
        raise UsageError("--generic and --publish exclude each other: what is published is for the configured models")
    if report is not None:
        check_ending(report)
    # Training takes minutes; what is wrong with where it goes is told before.
    check_folder(out)
    if publish:
        load(config)
    told: list[LabelReport] = []
    with StageProgress() as progress:
        read = read_labels(
            labels,
            Roles.given(models, roles),
            progress=lambda file, count: progress(f"reading {file}", count, 0),
            tell=told.append,
        )
        for line in told[0].lines():
            say(line)
        rows = _to_train_on(read)
        given = parse_costs(costs) if costs is not None else {}
        options = TrainOptions(
            costs={**{role: cost for role, cost in _DEFAULT_COSTS.items() if role in rows.roles}, **given},
            policy=policy,
            mix=parse_weights(weights) if weights is not None else None,
            max_quality_loss=max_quality_loss if max_quality_loss is not None else 1.0,
            confidence=confidence,
            promised=max_quality_loss is not None,
            slices=slices is not None,
            seed=seed,
            generic=generic,
        )
        trained = train(rows, options, created_at=datetime.now(UTC), clock=time.thread_time, progress=progress)
    artefact = write_artefact(out, trained.manifest, trained.arrays)
    if report is not None:
        write_report(report, f"Router {artefact.digest[:12]}", trained.evaluation, _notes(trained))
        say(f"{report} written")
    published = _publish(artefact, config) if publish else None
    figures = _figures(artefact, trained)
    if as_json:
        print_json({**figures, "out": str(out), "published": published, "labels": told[0].as_json()})
    else:
        _print(trained, figures)
        say(f"{out} written: {artefact.digest[:12]}")
        if published is not None:
            say(f"published as routing version {published}")


def _to_train_on(labels: LabelSet) -> LabelSet:
    """All rows but those that their makers keep for evaluation."""
    import numpy as np

    from llmrouter.errors import UsageError

    kept = [row for row, split in enumerate(labels.splits) if split not in ("eval", "test")]
    if len(kept) == len(labels):
        return labels
    warn(f"{len(labels) - len(kept)} rows are marked as for evaluation only and were left out")
    if not kept:
        raise UsageError("all labels are marked as for evaluation only; there is nothing to train on")
    return labels.take(np.array(kept, dtype=np.intp))


def _publish(artefact: Artefact, config: Path) -> int:
    from llmrouter.cli.rules_store import author
    from llmrouter.config import load
    from llmrouter.gateway.build import prepare_store
    from llmrouter.gateway.publishing import check_publishable, publish_artefact

    loaded = load(config)
    for text in check_publishable(loaded, artefact, None):
        warn(text)
    prepare_store(loaded)
    return publish_artefact(
        loaded, artefact, author=author(), point=None, base_version=None, note="train-router"
    ).version


def _figures(artefact: Artefact, trained: Trained) -> dict[str, Any]:
    manifest = artefact.manifest
    metrics, data, parameters = manifest["metrics"], manifest["data"], manifest["policy_parameters"]
    return {
        **{name: metrics[name] for name in ("apgr", "cpt50", "cpt80", "cpt95")},
        **{name: data[name] for name in ("n_train", "n_cal", "n_test")},
        "guarantee": _guarantee(manifest, trained),
        "certificate": manifest["certificate"],
        "decision_us": metrics["decision_us"],
        "decision_us_p99": metrics["decision_us_p99"],
        "point": {"chosen": parameters["chosen"], **parameters["points"][parameters["chosen"]]},
        "cross_fitted": trained.cross_fitted,
        "held_out": _held_out(trained),
        "evaluation": _evaluation(trained),
        "artefact": {"digest": artefact.digest, "generic": manifest["generic"]},
    }


def _guarantee(manifest: Mapping[str, Any], trained: Trained) -> dict[str, Any] | None:
    """What is certified; where nothing else could be, that of always calling the reference, which saves nothing."""
    if manifest["guarantee"] is not None or manifest["generic"]:
        found: dict[str, Any] | None = manifest["guarantee"]
        return found
    certificate = trained.certificate
    return {
        "max_quality_loss": 100.0 * certificate.eps,
        "confidence": 1.0 - certificate.delta,
        "n": certificate.n,
        "point": 0,
        "large_share": 1.0,
        "cost_saving": 0.0,
        "broken_promise_estimate": manifest["certificate"]["broken_promise_estimate"],
        "reference_role": manifest["policy_parameters"]["reference"],
    }


def _held_out(trained: Trained) -> dict[str, Any] | None:
    from llmrouter.offline.simulate import as_json

    return as_json(trained.held_out) if trained.held_out is not None else None


def _evaluation(trained: Trained) -> dict[str, Any]:
    from llmrouter.offline.evaluation_json import as_json

    return as_json(trained.evaluation)


def _notes(trained: Trained) -> list[str]:
    return [*_summary(trained), *_promise(trained)]


def _summary(trained: Trained) -> list[str]:
    found = trained.held_out
    if found is None:
        return ["too few questions to set some apart: all figures are cross-fitted"]
    point = found.point
    return [
        (
            f"on {found.n} rows set apart, the policy saves {point.cost_saving:.1%} at {point.quality_delta:+.2f} "
            f"points against always {found.reference}, with {found.extra_calls:.2f} extra calls a request"
        )
    ]


def _promise(trained: Trained) -> list[str]:
    certificate, guarantee = trained.certificate, trained.manifest["guarantee"]
    if guarantee is not None:
        return [
            (
                f"certified: at most {guarantee['max_quality_loss']:g} points below {guarantee['reference_role']} with "
                f"{guarantee['confidence']:.0%} confidence, saving {guarantee['cost_saving']:.1%} (operating point "
                f"{guarantee['point']})"
            )
        ]
    if trained.manifest["generic"]:
        return ["generic: it promises nothing"]
    needed = certificate.labels_needed
    how_many = f"; some {needed:,} labels like these would" if needed else ""
    return [f"nothing could be certified with {certificate.n:,} labels: {certificate.reason}{how_many}"]


def _print(trained: Trained, figures: dict[str, Any]) -> None:
    from llmrouter.offline.report import tables

    for table in tables(trained.evaluation):
        say(f"\n{table.title}")
        print_table(table.columns, table.rows)
        if table.note:
            say(table.note)
    say("")
    for line in _notes(trained):
        say(line)
    chosen, certified = figures["point"]["chosen"], trained.certificate.index
    if chosen == 0:
        say("it operates at point 0: always the reference, so it saves nothing")
    if chosen > certified and not trained.manifest["generic"]:
        say(f"it operates at point {chosen}, beyond what is certified; --max-quality-loss makes it keep to a promise")
    say(f"a decision takes {figures['decision_us']:.0f} us (median), {figures['decision_us_p99']:.0f} us (p99)")
