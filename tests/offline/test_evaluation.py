"""The whole comparison, on labels whose hard rows are known."""

import json
from pathlib import Path

import numpy as np
import pytest

from llmrouter.errors import UsageError
from llmrouter.offline.evaluation import Evaluation, Options, evaluate
from llmrouter.offline.evaluation_json import as_json
from llmrouter.offline.external import External
from llmrouter.offline.labels import Floats, LabelSet
from llmrouter.offline.report import as_html, plots, tables, write_report
from tests.offline.label_rows import labels_of

N = 600
COSTS = {"small": 1.0, "large": 10.0, "frontier": 100.0}


def hard() -> Floats:
    return np.random.default_rng(0).random(N)


def made(**changed: list[float]) -> LabelSet:
    """Two sources; the small model fails on hard rows, the large one on very hard ones."""
    rng = np.random.default_rng(1)
    chances = {"small": 1 - hard(), "large": 1 - hard() ** 3, "frontier": np.full(N, 0.97)}
    quality = {role: (rng.random(N) < chance).astype(float).tolist() for role, chance in chances.items()}
    asks = [f"<b>{'why ' * int(9 * each)}</b>" for each in hard()]
    return labels_of({**quality, **changed}, asks=asks, sources=["easy", "mixed"] * (N // 2))


def predicted() -> dict[str, Floats]:
    return {"small": 1 - hard(), "large": 1 - hard() ** 3, "frontier": np.full(N, 0.97)}


def external(name: str = "peer", **changed: object) -> External:
    fields: dict[str, object] = {
        "roles": ("small", "large", "frontier"),
        "choice": np.where(hard() > 0.5, 2, 0),
        "score": None,
        "unknown": 0,
        "missing": 0,
    }
    return External(name, **{**fields, **changed})  # type: ignore[arg-type]


def found(*decisions: External, labels: LabelSet | None = None, **options: object) -> Evaluation:
    chosen = Options(COSTS, replicates=50, **options)  # type: ignore[arg-type]
    return evaluate(labels or made(), predicted(), chosen, decisions=decisions)


@pytest.fixture(scope="module")
def usual() -> Evaluation:
    return found(external())


def test_the_router_lies_between_chance_and_the_oracle(usual):
    main = usual.main
    assert (main.weak, main.strong) == ("small", "frontier")
    area = {name: each.apgr for name, each in main.measures.items()}
    assert area["random"] == 0.5
    assert area["router"] is not None
    assert area["oracle"] is not None
    assert main.chance is not None
    assert main.chance.high < area["router"] < area["oracle"]
    assert set(main.slices) == {"easy", "mixed"}
    assert list(usual.pairs) == ["small>large", "small>frontier", "large>frontier"]


def test_decisions_of_others_are_measured_where_they_were_made():
    """A router that knows half of the rows, and one that is right about all of them."""
    half = external("half", choice=np.where(np.arange(N) % 2, np.where(hard() > 0.5, 2, 0), -1), missing=N // 2)
    result = found(half, external("whole"))
    first, second = result.contenders
    assert (first.n, second.n) == (N // 2, N)
    assert first.notes == ("half says nothing of 300 of 600 labels; it is measured on the others",)
    assert second.point.shares["frontier"] == pytest.approx((hard() > 0.5).mean())
    assert second.point.quality_delta < 0 < second.point.cost_saving
    assert second.router_delta is not None
    assert result.compared == ("random", "length", "rules", "oracle", "half", "whole")


def test_scores_of_others_become_a_curve():
    result = found(external("scored", roles=(), choice=np.zeros(N, dtype=np.intp), score=hard()))
    assert result.contenders == ()
    assert result.main.measures["scored"].apgr == pytest.approx(result.main.router.apgr, abs=0.1)
    assert "scored" in result.compared


def test_a_mix_counts_its_sources_alone():
    only = found(mix={"mixed": 1.0})
    assert only.main.router.weak_quality == pytest.approx(np.mean(made().roles["small"].quality[1::2]))
    assert set(only.main.slices) == {"mixed"}
    with pytest.raises(UsageError, match="names other"):
        found(mix={"other": 1.0})


def test_a_role_without_scores_in_a_source_is_measured_where_it_has_some():
    large = np.where(np.arange(N) % 2, np.nan, 1.0).tolist()
    result = found(labels=made(large=large))
    assert result.pairs["small>large"].router.n == N // 2
    assert result.main.router.n == N


@pytest.mark.parametrize("role", ["small", "frontier"])
def test_models_that_are_equally_good_give_a_reason_everywhere(role):
    """Nothing in tables, pages or JSON may become infinite or not a number."""
    same = made().roles["large"].quality.tolist()
    result = found(labels=made(small=same, large=same, frontier=same))
    body = as_json(result)
    assert body["apgr"] is None
    assert "no gap to recover" in body["reason"]
    json.dumps(body, allow_nan=False)
    assert "no gap to recover" in as_html("t", result)


def test_the_figures_of_the_main_pair_stand_on_top(usual):
    body = as_json(usual)
    json.dumps(body, allow_nan=False)
    assert body["apgr"] == body["pairs"]["small>frontier"]["router"]["apgr"]
    assert body["ci"]["apgr"][0] < body["apgr"] < body["ci"]["apgr"][1]
    assert {"cpt50", "cpt80", "cpt95", "n", "slices", "decisions"} <= set(body)
    assert body["peers_compared"] == ["random", "length", "rules", "oracle", "peer"]
    assert body["frontier"][-1]["shares"]["small"] == 1.0


@pytest.mark.parametrize(
    ("decisions", "costs", "says"),
    [
        ([external("oracle")], COSTS, "'oracle' stands for another"),
        ([external("a"), external("a")], COSTS, "'a' stands for another"),
        ([external(roles=("small", "giant", "frontier"), choice=np.ones(N, dtype=np.intp))], COSTS, "no scores here"),
        ([], {"small": 1.0}, "no cost is known of large"),
    ],
)
def test_what_cannot_be_compared_is_refused(decisions, costs, says):
    with pytest.raises(UsageError, match=says):
        evaluate(made(), predicted(), Options(costs, replicates=5), decisions=decisions)


def test_one_role_alone_is_no_router():
    with pytest.raises(UsageError, match="two of the roles"):
        evaluate(made(), {"small": hard()}, Options(COSTS))


def test_predictions_that_are_true_are_calibrated(usual):
    known = usual.reliability["small"]
    assert known.error < 0.06
    assert known.brier < known.constant_brier
    assert sum(each.weight for each in known.bins) == pytest.approx(1.0)


def test_tables_name_everything_that_was_compared(usual):
    shown = tables(usual)
    assert [table.title for table in shown] == [
        "small against frontier",
        "Decisions, against always frontier",
        "Router by source, small>frontier",
        "Router by pair",
        "Direct routing over all roles",
        "Predicted against observed scores",
    ]
    assert all(len(row) == len(table.columns) for table in shown for row in table.rows)
    assert "without knowledge APGR lies from" in shown[0].note


def test_a_page_needs_nothing_else_and_shows_names_as_text():
    page = as_html("R & D <report>", found(external("<script>")), ["a < b"])
    assert "R &amp; D &lt;report&gt;" in page
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")
    assert page.count("<svg") == 3
    assert "prefers-color-scheme:dark" in page
    assert "nan" not in page


def test_every_plot_has_points_within_its_axes(usual):
    for plot in plots(usual):
        assert all(len(line.x) == len(line.y) and np.isfinite([*line.x, *line.y]).all() for line in plot.lines)


def test_reports_are_written_as_pages_or_pictures(tmp_path, usual):
    result = usual
    write_report(tmp_path / "r.html", "Router", result)
    write_report(tmp_path / "r.png", "Router", result)
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")


def test_a_report_that_cannot_be_written_is_told(tmp_path, usual):
    result = usual
    with pytest.raises(UsageError, match=r"\.html or \.png"):
        write_report(Path("r.pdf"), "Router", result)
    with pytest.raises(UsageError, match="cannot be written: No such file"):
        write_report(tmp_path / "none" / "r.html", "Router", result)
