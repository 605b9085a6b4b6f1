"""`llmrouter simulate-routing`: what a trained router would have saved on labels, and what that would have cost in
quality."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmrouter.cli.options import Json, example
from llmrouter.cli.output import print_json, print_table, say, warn
from llmrouter.cli.router_files import read_router, roles_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from llmrouter.offline.bootstrap import Interval
    from llmrouter.offline.frontier import PolicyPoint
    from llmrouter.offline.labels import LabelSet
    from llmrouter.offline.simulate import Simulation
    from llmrouter.routing.artifact import Artefact
    from llmrouter.routing.evidence import Prediction

__all__ = ["EXAMPLE", "simulate_routing"]

EXAMPLE = example(
    "llmrouter simulate-routing router/ held-out.jsonl.gz --costs small=1,large=10,frontier=100 --json",
    "llmrouter simulate-routing generic labels/ --roles roles.json --weights gsm8k=0.7,mmlu=0.3 --plot saving.html",
)


def simulate_routing(
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
    point: Annotated[
        int | None, typer.Option("--point", metavar="N", min=0, help="Operating point; else the artefact's own.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw all operating points (.html or .png).")
    ] = None,
    replicates: Annotated[
        int, typer.Option("--replicates", metavar="N", min=20, max=20_000, help="Resamples for intervals.")
    ] = 1000,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Of the resampling.")] = 0,
    as_json: Json = False,
) -> None:
    """Replay labels through the plans that serve: cost and quality against always calling the reference."""
    from llmrouter.cli.progress import StageProgress
    from llmrouter.offline.costs import parse_costs
    from llmrouter.offline.label_reader import read_labels
    from llmrouter.offline.label_report import LabelReport
    from llmrouter.offline.simulate import as_json as simulation_as_json
    from llmrouter.offline.simulate import simulate
    from llmrouter.offline.simulation_plot import draw
    from llmrouter.offline.weights import parse_weights
    from llmrouter.routing.predictor import Predictor

    loaded = read_router(artefact)
    predictor = Predictor.of(loaded)
    told: list[LabelReport] = []
    with StageProgress() as progress:
        rows = read_labels(
            labels,
            roles_for(loaded, models, roles),
            progress=lambda file, count: progress(f"reading {file}", count, 0),
            tell=told.append,
        )

        def predict(given: LabelSet) -> Sequence[Prediction]:
            return [predictor.predict(ask) for ask in given.asks]

        found = simulate(
            loaded,
            rows,
            predict,
            costs={**loaded.manifest["costs"], **(parse_costs(costs) if costs is not None else {})},
            weights=parse_weights(weights) if weights is not None else None,
            point=point,
            replicates=replicates,
            seed=seed,
            progress=progress,
        )
    for line in told[0].lines():
        say(line)
    for note in _doubts(loaded, found):
        warn(note)
    if plot is not None:
        draw(plot, found)
        say(f"{plot} written")
    if as_json:
        print_json(
            {
                **simulation_as_json(found),
                "guarantee": loaded.manifest.get("guarantee"),
                "artefact": {"digest": loaded.digest, "generic": loaded.manifest["generic"]},
                "labels": told[0].as_json(),
            }
        )
    else:
        _print(found)


def _doubts(artefact: Artefact, found: Simulation) -> Iterator[str]:
    """What makes the figures better or worse than they would be in use."""
    for source, rows in found.unweighted.items():
        yield f"{source}: {rows} rows count nothing, since --weights does not name it"
    seen = sorted(set(artefact.manifest["data"].get("sources", {})) & set(found.slices))
    if seen:
        yield (
            f"the router was trained on labels of {', '.join(seen)}; where these are the same rows, "
            "it looks better here than it is"
        )
    if artefact.manifest["generic"]:
        yield "the generic router knows nothing of your models; train one on your own labels"


def _print(found: Simulation) -> None:
    rows = [("all", str(found.n), "1.00", *_cells(found.point), f"{found.extra_calls:.2f}")]
    rows += [
        (name, str(each.n), f"{each.weight:.2f}", *_cells(each.point), f"{each.extra_calls:.2f}")
        for name, each in found.slices.items()
    ]
    print_table(("SOURCE", "ROWS", "WEIGHT", "COST SAVED", "95 %", "POINTS", "95 %", "EXTRA CALLS"), rows)
    say("\nanswers given by: " + _listed(found.point.shares, "{:.1%}"))
    say("calls a request: " + _listed(found.calls, "{:.2f}"))
    certified = "certified" if found.certified is not None and found.index <= found.certified else "not certified"
    say(f"operating point {found.index} of 0 to {len(found.curve) - 1}, {certified}; against always {found.reference}")


def _cells(point: PolicyPoint) -> tuple[str, ...]:
    return (
        f"{point.cost_saving:.1%}",
        _between(point.cost_saving_ci, "{:.1%}"),
        f"{point.quality_delta:+.2f}",
        _between(point.quality_delta_ci, "{:+.2f}"),
    )


def _between(interval: Interval | None, form: str) -> str:
    return "-" if interval is None else f"{form.format(interval.low)} to {form.format(interval.high)}"


def _listed(parts: Mapping[str, float], form: str) -> str:
    return ", ".join(f"{role} {form.format(share)}" for role, share in sorted(parts.items()))
