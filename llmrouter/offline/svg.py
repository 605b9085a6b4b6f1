"""Plots as inline SVG that takes its colours from the page, so that it is readable on light and on dark."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from llmrouter.types import value

__all__ = ["Line", "Plot", "svg"]

_WIDTH, _HEIGHT = 560.0, 340.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 58.0, 12.0, 12.0, 44.0
_COLOURS = 7


@value
class Line:
    """One series; `dots` draws its points alone."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    dashed: bool = False
    dots: bool = False
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    """Bounds of each point's interval, drawn as a bar."""


@value
class Plot:
    """Axes and what is drawn in them."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]


def svg(plot: Plot) -> str:
    """The plot as one `<figure>`; colours are the page's variables `--c0` to `--c6`, `--ink` and `--grid`."""
    xs = [each for line in plot.lines for each in line.x]
    ys = [each for line in plot.lines for each in (*line.y, *(line.low or ()), *(line.high or ()))]
    if not xs:
        return f"<figure><figcaption>{html.escape(plot.title)}: nothing to draw</figcaption></figure>"
    x_ticks, y_ticks = _ticks(min(xs), max(xs)), _ticks(min(ys), max(ys))
    axes = _Axes(x_ticks[0], x_ticks[-1], y_ticks[0], y_ticks[-1])
    title = html.escape(plot.title)
    begin = f'<svg viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" role="img" aria-label="{title}">'
    parts = [f"<figure><figcaption>{title}</figcaption>{begin}"]
    parts += [_grid(axes, x_ticks, y_ticks), _labels(plot)]
    parts += [_series(axes, line, number % _COLOURS) for number, line in enumerate(plot.lines)]
    names = "".join(
        f'<span class="key"><i style="background:var(--c{number % _COLOURS})"></i>{html.escape(line.name)}</span>'
        for number, line in enumerate(plot.lines)
    )
    return "".join(parts) + f'</svg><div class="keys">{names}</div></figure>'


@value
class _Axes:
    left: float
    right: float
    bottom: float
    top: float

    def x(self, at: float) -> float:
        return _LEFT + (at - self.left) / (self.right - self.left) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, at: float) -> float:
        return _HEIGHT - _BOTTOM - (at - self.bottom) / (self.top - self.bottom) * (_HEIGHT - _TOP - _BOTTOM)


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers around the range, about six of them."""
    span = max(high - low, 1e-9)
    rough = span / 5
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(each * unit for each in (1.0, 2.0, 2.5, 5.0, 10.0) if each * unit >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, max(last, first + 1) + 1)]


def _grid(axes: _Axes, x_ticks: Sequence[float], y_ticks: Sequence[float]) -> str:
    parts = []
    for at in x_ticks:
        x = axes.x(at)
        parts.append(f'<path class="grid" d="M{x:.1f} {_TOP:g}V{_HEIGHT - _BOTTOM:g}"/>')
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 16:g}" text-anchor="middle">{at:.4g}</text>')
    for at in y_ticks:
        y = axes.y(at)
        parts.append(f'<path class="grid" d="M{_LEFT:g} {y:.1f}H{_WIDTH - _RIGHT:g}"/>')
        parts.append(f'<text x="{_LEFT - 6:g}" y="{y + 4:.1f}" text-anchor="end">{at:.4g}</text>')
    return "".join(parts)


def _labels(plot: Plot) -> str:
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    upright = (_TOP + _HEIGHT - _BOTTOM) / 2
    return (
        f'<text x="{middle:g}" y="{_HEIGHT - 8:g}" text-anchor="middle">{html.escape(plot.x_label)}</text>'
        f'<text transform="translate(14 {upright:g}) rotate(-90)" text-anchor="middle">'
        f"{html.escape(plot.y_label)}</text>"
    )


def _series(axes: _Axes, line: Line, colour: int) -> str:
    points = [(axes.x(x), axes.y(y)) for x, y in zip(line.x, line.y, strict=True)]
    parts = []
    if line.low is not None and line.high is not None:
        for x, low, high in zip(line.x, line.low, line.high, strict=True):
            bar = f"M{axes.x(x):.1f} {axes.y(low):.1f}V{axes.y(high):.1f}"
            parts.append(f'<path class="bar" style="stroke:var(--c{colour})" d="{bar}"/>')
    if line.dots:
        parts += [f'<circle r="3.5" style="fill:var(--c{colour})" cx="{x:.1f}" cy="{y:.1f}"/>' for x, y in points]
    else:
        way = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        dashes = ' stroke-dasharray="5 4"' if line.dashed else ""
        parts.append(f'<path class="line" style="stroke:var(--c{colour})"{dashes} d="{way}"/>')
    return "".join(parts)
