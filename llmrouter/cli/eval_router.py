"""`llmrouter eval-router`: what a trained router is worth on labels, beside chance, rules and other routers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmrouter.cli.options import ConfigPath, Json, example
from llmrouter.cli.output import complain, print_json, print_table, say, warn
from llmrouter.cli.router_files import read_router, roles_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llmrouter.offline.evaluation import Evaluation
    from llmrouter.offline.labels import LabelSet
    from llmrouter.routing.artifact import Artefact

__all__ = ["EXAMPLE", "eval_router"]

EXAMPLE = example(
    "llmrouter eval-router router/ held-out.jsonl.gz --models small,large --json",
    "llmrouter eval-router generic labels/ --roles roles.json --external nadir=decisions.csv --report router.html",
)

_RULES = "configured rules"
_POLICY = "policy"
_NO_EVIDENCE = 5


def eval_router(
    artefact: Annotated[str, typer.Argument(metavar="DIR|generic", help="A trained router's folder.")],
    labels: Annotated[list[Path], typer.Argument(metavar="LABELS...", help="JSONL, JSONL.gz, Parquet, folder, store.")],
    models: Annotated[
        str | None, typer.Option("--models", metavar="SMALL,LARGE[,FRONTIER]", help="Models as the labels name them.")
    ] = None,
    roles: Annotated[Path | None, typer.Option("--roles", metavar="FILE", help="Models by source, as JSON.")] = None,
    costs: Annotated[
        str | None, typer.Option("--costs", metavar="ROLE=N,...", help="Relative cost of a call; else the artefact's.")
    ] = None,
    weights: Annotated[
        str | None, typer.Option("--weights", metavar="SOURCE=W,...", help="What each source counts for.")
    ] = None,
    external: Annotated[
        list[str] | None,
        typer.Option("--external", metavar="NAME=FILE", help="Another router: CSV of id and model, or id and score."),
    ] = None,
    rules: Annotated[bool, typer.Option("--rules", help="Compare the configuration's rules, too.")] = False,
    tier: Annotated[
        str | None, typer.Option("--tier", metavar="ID", help="With --rules: whose; else the first.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="Write a page (.html) or plots (.png).")
    ] = None,
    replicates: Annotated[
        int, typer.Option("--replicates", metavar="N", min=20, max=20_000, help="Resamples for intervals.")
    ] = 1000,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Of the resampling.")] = 0,
    config: ConfigPath = Path("llmrouter.toml"),
    as_json: Json = False,
) -> None:
    """Measure a router on labels that it was not trained on. Exit 5 if the better model is not better on them."""
    import time

    from llmrouter.cli.eval_rules import configured_rules
    from llmrouter.cli.progress import StageProgress
    from llmrouter.offline.costs import parse_costs
    from llmrouter.offline.evaluation import Options, evaluate
    from llmrouter.offline.evaluation_json import as_json as evaluation_as_json
    from llmrouter.offline.external import parse_external, read_external
    from llmrouter.offline.label_reader import read_labels
    from llmrouter.offline.label_report import LabelReport
    from llmrouter.offline.prediction import direct_routes, predict_all
    from llmrouter.offline.report import check_ending, write_report
    from llmrouter.offline.weights import parse_weights
    from llmrouter.routing.learned_policy import LearnedPolicy
    from llmrouter.routing.predictor import Predictor

    if report is not None:
        check_ending(report)
    loaded = read_router(artefact)
    others = [parse_external(each) for each in external or ()]
    options = Options(
        {**loaded.manifest["costs"], **(parse_costs(costs) if costs is not None else {})},
        parse_weights(weights) if weights is not None else None,
        replicates,
        seed,
    )
    told: list[LabelReport] = []
    with StageProgress() as progress:
        chosen = roles_for(loaded, models, roles)
        rows = read_labels(
            labels, chosen, progress=lambda file, count: progress(f"reading {file}", count, 0), tell=told.append
        )
        predicted = predict_all(
            Predictor.of(loaded), rows.asks, time.thread_time, lambda done, of: progress("predicting", done, of)
        )
        present = [role for role in loaded.manifest["roles"] if role in rows.roles and role in predicted.quality]
        decisions = [direct_routes(_POLICY, LearnedPolicy.of(loaded), predicted, rows, present)]
        decisions += [read_external(name, path, rows, present) for name, path in others]
        if rules:
            decisions.append(configured_rules(_RULES, config, tier, rows, present))
        found = evaluate(rows, predicted.quality, options, decisions=decisions, stage=progress)
    for line in told[0].lines():
        say(line)
    for note in (*_doubts(loaded, rows), *(note for each in decisions for note in each.notes())):
        warn(note)
    if report is not None:
        write_report(report, f"Router {loaded.digest[:12]}", found, [f"{found.n} labels", *_doubts(loaded, rows)])
        say(f"{report} written")
    if as_json:
        manifest = loaded.manifest
        print_json(
            {
                **evaluation_as_json(found),
                "decision_us": predicted.decision_us,
                "decision_us_p99": predicted.decision_us_p99,
                "guarantee": manifest.get("guarantee"),
                "artefact": {"digest": loaded.digest, "generic": manifest["generic"]},
                "labels": told[0].as_json(),
            }
        )
    else:
        _print(found)
        say(f"\na decision takes {predicted.decision_us:.0f} us (median), {predicted.decision_us_p99:.0f} us (p99)")
    if found.main.router.reason is not None:
        complain(found.main.router.reason)
        raise typer.Exit(_NO_EVIDENCE)


def _doubts(artefact: Artefact, labels: LabelSet) -> Iterator[str]:
    """What makes the figures better or worse than they would be in use."""
    seen = sorted(set(artefact.manifest["data"].get("sources", {})) & set(labels.sources))
    if seen:
        yield (
            f"the router was trained on labels of {', '.join(seen)}; where these are the same rows, "
            "it looks better here than it is"
        )


def _print(found: Evaluation) -> None:
    from llmrouter.offline.report import tables

    for table in tables(found):
        say(f"\n{table.title}")
        print_table(table.columns, table.rows)
        if table.note:
            say(table.note)
