"""An evaluation for people: tables for the terminal, one page of HTML, and plots."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path

from llmrouter.errors import UsageError
from llmrouter.offline.bootstrap import Interval
from llmrouter.offline.curves import Measures
from llmrouter.offline.evaluation import ROUTER, Evaluation, PairResult
from llmrouter.offline.frontier import PolicyPoint
from llmrouter.offline.svg import Line, Plot, svg
from llmrouter.types import value

__all__ = ["Table", "as_html", "check_ending", "plots", "tables", "write_report"]

_SHOWN_LOSSES = (0.0, 0.5, 1.0, 2.0, 5.0)
"""Points of allowed loss at which the frontier's table is read off."""


@value
class Table:
    """One table of text."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def tables(found: Evaluation) -> tuple[Table, ...]:
    """All figures, the comparison of the main pair first."""
    made = [_comparison(found.main)]
    if found.contenders:
        made.append(_decisions(found))
    made.append(_slices(found.main))
    if len(found.pairs) > 1:
        rows = tuple((name, *_cells(pair.router)) for name, pair in found.pairs.items())
        made.append(Table("Router by pair", ("PAIR", *_HEADINGS), rows))
    if found.frontier:
        made.append(_savings(found))
    made.append(_calibration(found))
    return tuple(made)


def plots(found: Evaluation) -> tuple[Plot, ...]:
    """Quality by strong calls, quality by cost over all roles, and predicted against observed."""
    curves = [
        Line(name, curve.share.tolist(), curve.quality.tolist(), dashed=name != ROUTER)
        for name, curve in found.main.curves.items()
    ]
    made = [Plot(f"Quality by strong calls, {found.main.name}", "share of strong calls", "mean score", curves)]
    if found.frontier:
        lines = [_saving_line("router", found.frontier), _saving_line("oracle", found.oracle_frontier, dashed=True)]
        others = [
            Line(
                each.name,
                [100 * each.point.cost_saving],
                [each.point.quality_delta],
                dots=True,
                low=_bound(each.point.quality_delta_ci, "low"),
                high=_bound(each.point.quality_delta_ci, "high"),
            )
            for each in found.contenders
        ]
        title = f"Quality by cost over all roles, against always {found.reference}"
        made.append(Plot(title, "cost saved, %", "points of quality", [*lines, *others]))
    bins = [
        Line(role, [each.predicted for each in known.bins], [each.observed for each in known.bins], dots=True)
        for role, known in found.reliability.items()
    ]
    diagonal = Line("perfect", [0.0, 1.0], [0.0, 1.0], dashed=True)
    made.append(Plot("Predicted against observed scores", "predicted", "observed", [diagonal, *bins]))
    return tuple(made)


def as_html(title: str, found: Evaluation, notes: Sequence[str] = (), extra: Sequence[Table] = ()) -> str:
    """One page that needs nothing else; `extra` tables stand first."""
    parts = [f"<h1>{html.escape(title)}</h1>"]
    parts += [f"<p>{html.escape(note)}</p>" for note in notes]
    parts += [svg(plot) for plot in plots(found)]
    parts += [_html_table(table) for table in (*extra, *tables(found))]
    head = (
        f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{html.escape(title)}</title>'
    )
    head += f"<style>{_STYLE}</style>"
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>\n'


def check_ending(path: Path) -> None:
    """Raises `UsageError` for a name that says neither page nor picture; before the work, not after."""
    if path.suffix.lower() not in (".html", ".png"):
        raise UsageError(f"{path}: a report is written as .html or .png")


def write_report(
    path: Path, title: str, found: Evaluation, notes: Sequence[str] = (), extra: Sequence[Table] = ()
) -> None:
    """Write the page (`.html`) or the plots alone (`.png`, with the extra `train`).

    Raises:
        UsageError: another ending, a missing extra, or a place that cannot be written to.
    """
    check_ending(path)
    try:
        if path.suffix.lower() == ".html":
            path.write_text(as_html(title, found, notes, extra), encoding="utf-8")
        else:
            _draw(path, plots(found), title)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from error


_HEADINGS = ("ROWS", "APGR", "95 %", "PGR@50", "CPT50", "CPT80", "CPT95", "NOTE")


def _comparison(pair: PairResult) -> Table:
    rows = tuple((name, *_cells(found)) for name, found in pair.measures.items())
    router = pair.router
    note = f"all {pair.weak} {router.weak_quality:.3f}, all {pair.strong} {router.strong_quality:.3f}"
    if pair.chance is not None:
        note += f"; without knowledge APGR lies from {pair.chance.low:.3f} to {pair.chance.high:.3f} on so many rows"
    return Table(f"{pair.weak} against {pair.strong}", ("SCORE", *_HEADINGS), rows, note)


def _slices(pair: PairResult) -> Table:
    rows = tuple(
        (name, f"{found.weak_quality:.3f}", f"{found.strong_quality:.3f}", *_cells(found))
        for name, found in pair.slices.items()
    )
    return Table(f"Router by source, {pair.name}", ("SOURCE", "WEAK", "STRONG", *_HEADINGS), rows)


def _cells(found: Measures) -> tuple[str, ...]:
    if found.apgr is None:
        return (str(found.n), "-", "", "", "", "", "", found.reason or "")
    lasting = [
        f"CPT{round(100 * level)} holds from {each.lasting:.2f}"
        for level, each in found.cpt.items()
        if each.lasting > each.first + 0.02
    ]
    return (
        str(found.n),
        f"{found.apgr:.3f}",
        _range(found.intervals.get("apgr"), 3),
        f"{found.pgr[0.5]:.3f}",
        *(f"{each.first:.3f}" for each in found.cpt.values()),
        "; ".join(lasting),
    )


def _decisions(found: Evaluation) -> Table:
    rows = []
    for each in found.contenders:
        shares = ", ".join(f"{role} {share:.0%}" for role, share in each.point.shares.items())
        delta = "" if each.router_delta is None else f"{each.router_delta:+.2f}"
        rows.append((each.name, str(each.n), *_point_cells(each.point), delta, shares))
    notes = "; ".join(note for each in found.contenders for note in each.notes)
    headings = ("ROUTER", "ROWS", *_POINT, "ROUTER AT THAT COST", "SHARES")
    return Table(f"Decisions, against always {found.reference}", headings, tuple(rows), notes)


_POINT = ("COST", "SAVED", "95 %", "POINTS", "95 %")


def _point_cells(point: PolicyPoint) -> tuple[str, ...]:
    return (
        f"{point.cost:.3g}",
        f"{point.cost_saving:.1%}",
        _range(point.cost_saving_ci, 1, 100),
        f"{point.quality_delta:+.2f}",
        _range(point.quality_delta_ci, 2),
    )


def _savings(found: Evaluation) -> Table:
    """The cheapest point of the frontier whose observed loss is within each bound."""
    rows = []
    for loss in _SHOWN_LOSSES:
        allowed = [point for point in found.frontier if point.quality_delta >= -loss]
        if allowed:
            point = min(allowed, key=lambda each: each.cost)
            shares = ", ".join(f"{role} {share:.0%}" for role, share in point.shares.items())
            rows.append((f"{loss:g}", *_point_cells(point), shares))
    note = "chosen on these very rows, so a little optimistic; a certificate is what may be promised"
    return Table("Direct routing over all roles", ("LOSS UP TO", *_POINT, "SHARES"), tuple(rows), note)


def _calibration(found: Evaluation) -> Table:
    rows = tuple(
        (role, f"{each.error:.3f}", f"{each.brier:.4f}", f"{each.constant_brier:.4f}")
        for role, each in found.reliability.items()
    )
    return Table("Predicted against observed scores", ("ROLE", "MEAN ERROR", "BRIER", "BRIER OF THE MEAN"), rows)


def _range(interval: Interval | None, digits: int, times: float = 1.0) -> str:
    return "" if interval is None else f"{times * interval.low:.{digits}f} to {times * interval.high:.{digits}f}"


def _saving_line(name: str, points: Sequence[PolicyPoint], *, dashed: bool = False) -> Line:
    return Line(
        name, [100 * each.cost_saving for each in points], [each.quality_delta for each in points], dashed=dashed
    )


def _bound(interval: Interval | None, side: str) -> list[float] | None:
    return None if interval is None else [getattr(interval, side)]


def _html_table(table: Table) -> str:
    head = "".join(f"<th>{html.escape(column)}</th>" for column in table.columns)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in table.rows)
    note = f"<p>{html.escape(table.note)}</p>" if table.note else ""
    whole = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f"<h2>{html.escape(table.title)}</h2><div class=wide>{whole}</div>{note}"


def _draw(path: Path, drawn: Sequence[Plot], title: str) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError("plots need the extra `train`: pip install 'llmrouter[train]'; .html needs nothing") from error
    figure = Figure(figsize=(6.4 * len(drawn), 4.6), layout="constrained")
    figure.suptitle(title)
    for axes, plot in zip(figure.subplots(1, len(drawn), squeeze=False)[0], drawn, strict=True):
        axes.set(title=plot.title, xlabel=plot.x_label, ylabel=plot.y_label)
        axes.grid(alpha=0.3)
        for line in plot.lines:
            style = "o" if line.dots else "--" if line.dashed else "-"
            (made,) = axes.plot(line.x, line.y, style, label=line.name)
            if line.low is not None and line.high is not None:
                axes.vlines(line.x, line.low, line.high, color=made.get_color())
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=110)


_STYLE = """
:root{color-scheme:light dark;--ink:#1c2430;--paper:#fff;--grid:#d9dee6;--soft:#5b6676;
--c0:#1f6feb;--c1:#8b949e;--c2:#bf6a02;--c3:#1a7f37;--c4:#a0489b;--c5:#c4342d;--c6:#0f7b8a}
@media(prefers-color-scheme:dark){:root{--ink:#e4e9f0;--paper:#12161c;--grid:#2c333d;--soft:#9aa6b5;
--c0:#58a6ff;--c1:#8b949e;--c2:#e3a13b;--c3:#4cc36b;--c4:#d68ad0;--c5:#ff7b72;--c6:#56c7d6}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:72rem;margin:2rem auto;
padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2rem}p{color:var(--soft)}
figure{display:inline-block;margin:0 1rem 1.5rem 0;width:min(100%,34rem);vertical-align:top}
figcaption{font-weight:600}svg{width:100%;height:auto}
svg text{font:12px system-ui,sans-serif;fill:var(--soft)}
.grid{stroke:var(--grid);fill:none}.line{fill:none;stroke-width:2}.bar{fill:none;stroke-width:2}
.key{margin-right:1rem;white-space:nowrap;color:var(--soft)}.key i{display:inline-block;width:.8rem;height:.8rem;
margin-right:.3rem;border-radius:2px}
.wide{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .7rem;border-bottom:1px solid var(--grid);text-align:left;white-space:nowrap}
"""
