"""All operating points of a simulated policy in one plot."""

from __future__ import annotations

from pathlib import Path

from llmrouter.errors import UsageError
from llmrouter.offline.simulate import Simulation
from llmrouter.offline.svg import Line, Plot, svg

__all__ = ["draw", "plot_of"]

_STYLE = """:root{color-scheme:light dark;--ink:#1c2430;--grid:#d9dee6;--c0:#1f6feb;--c1:#bf6a02}
@media(prefers-color-scheme:dark){:root{--ink:#e4e9f0;--grid:#2c333d;--c0:#58a6ff;--c1:#e3a13b}}
body{font:15px/1.5 system-ui,sans-serif;max-width:44rem;margin:2rem auto;padding:0 1rem}
.key{margin-right:1rem}.key i{display:inline-block;width:.8em;height:.8em;margin-right:.3em}"""


def plot_of(found: Simulation) -> Plot:
    """Points of quality by cost saved, with the point that was replayed and its interval."""
    at = found.point
    bounds = at.quality_delta_ci
    curve = Line(
        "operating points",
        [100 * each.cost_saving for each in found.curve],
        [each.quality_delta for each in found.curve],
    )
    chosen = Line(
        f"point {found.index}",
        [100 * at.cost_saving],
        [at.quality_delta],
        dots=True,
        low=None if bounds is None else [bounds.low],
        high=None if bounds is None else [bounds.high],
    )
    title = f"Cost and quality against always {found.reference}"
    return Plot(title, "cost saved, %", "points of quality", [curve, chosen])


def draw(path: Path, found: Simulation) -> None:
    """Write the plot as a page (`.html`) or, with the extra `train`, as an image (`.png`).

    Raises:
        UsageError: another ending, a missing extra, or a place that cannot be written to.
    """
    plot = plot_of(found)
    try:
        if path.suffix.lower() in (".html", ".htm"):
            head = f'<meta charset="utf-8"><title>{plot.title}</title><style>{_STYLE}</style>'
            page = f'<!doctype html><html lang="en"><head>{head}</head><body>{svg(plot)}</body></html>\n'
            path.write_text(page, encoding="utf-8")
        elif path.suffix.lower() == ".png":
            _draw_image(path, plot)
        else:
            raise UsageError(f"{path}: a plot is written as .html or .png")
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from error


def _draw_image(path: Path, plot: Plot) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError(
            "a .png needs the extra `train`: pip install 'llmrouter[train]'; .html needs nothing"
        ) from error
    figure = Figure(figsize=(6.4, 4.6), layout="constrained")
    axes = figure.subplots()
    axes.set(title=plot.title, xlabel=plot.x_label, ylabel=plot.y_label)
    axes.grid(alpha=0.3)
    for line in plot.lines:
        (made,) = axes.plot(line.x, line.y, "o" if line.dots else "-", label=line.name)
        if line.low is not None and line.high is not None:
            axes.vlines(line.x, line.low, line.high, color=made.get_color())
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=110)
