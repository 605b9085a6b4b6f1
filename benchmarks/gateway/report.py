"""A run as text for the terminal, or as Markdown for `docs/performance.md`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.gateway.figures import Figure, Figures, Row, figures, rows
from benchmarks.gateway.goals import Verdict, verdicts
from benchmarks.gateway.record import Run, warnings

__all__ = ["BEGIN", "END", "as_markdown", "as_text", "replace_block"]

BEGIN = "<!-- benchmark: begin -->"
END = "<!-- benchmark: end -->"

_ORDER = ("direct", "nginx", "floor", "gateway", "gateway-2", "gateway-limits")

_LEFT_OUT = (
    "No TLS; loopback only, so no network between client, target and engine.",
    "Engine and client share one core and run on the same machine; `direct` is what they take by themselves.",
    "One request of 6 KB and answers of 400 tokens, always the same; few headers, where an SDK sends some fifteen.",
    "The engine answers at once or on schedule: no queueing, no failures, so retries and fallbacks cost nothing here.",
    "CPU is user and system time of the target's whole process tree; what the kernel books on nobody is missing.",
    "Zero-delay streams are read in bigger pieces the busier the machine is, and then cost everybody less.",
)


def as_text(run: Run) -> str:
    """For a terminal."""
    found = figures(run.measured, run.idle, run.starts)
    parts = [
        "\n".join(_heading(run)),
        _aligned(_table(found)),
        _aligned(_goal_table(verdicts(found))),
        *_books_lines(run),
    ]
    parts.append("What these figures leave out:\n" + "\n".join(f"  - {line}" for line in _LEFT_OUT))
    return "\n\n".join(part for part in parts if part)


def as_markdown(run: Run) -> str:
    """The block of `docs/performance.md`."""
    found = figures(run.measured, run.idle, run.starts)
    parts = [
        "\n\n".join(_heading(run)),
        _piped(_table(found)),
        _piped(_goal_table(verdicts(found))),
        *_books_lines(run),
    ]
    parts.append("What these figures leave out:\n\n" + "\n".join(f"- {line}" for line in _LEFT_OUT))
    return "\n\n".join(part for part in parts if part)


def replace_block(path: Path, block: str, begin_mark: str = BEGIN, end_mark: str = END) -> None:
    """Put a block between two marks of a page.

    Raises:
        ValueError: the page has no such marks.
    """
    page = path.read_text(encoding="utf-8")
    head, begin, rest = page.partition(begin_mark)
    _, end, tail = rest.partition(end_mark)
    if not begin or not end:
        raise ValueError(f"{path} has no block between {begin_mark} and {end_mark}")
    path.write_text(f"{head}{begin_mark}\n\n{block}\n\n{end_mark}{tail}", encoding="utf-8")


def _heading(run: Run) -> list[str]:
    kind = "quick set" if run.quick else "full set"
    lines = [f"{run.date}, {kind}, {run.machine}. Median (least..most) of the rounds; xN is the ratio to nginx."]
    loads = [one.load for one in run.measured]
    if loads:
        lines.append(
            f"Load average {run.load:.2f} before the run, {min(loads):.2f} to {max(loads):.2f} before its measurements "
            f"(the run's own load included); other processes took {run.others:.2f} cores, the host {run.stolen:.2f}."
        )
    lines += [f"WARNING: {text}; trust the ratios, not the absolute figures." for text in warnings(run)]
    return [*lines, *(f"NOTE: {note}." for note in run.notes)]


def _table(found: Figures) -> list[list[str]]:
    targets = [name for name in _ORDER if any(name in by for by in found.values())]
    lines = [_line(row, found[row.key], targets) for row in rows() if row.key in found]
    return [["", *targets], *lines] if lines else []


def _line(row: Row, by: dict[str, Figure], targets: Sequence[str]) -> list[str]:
    reference = by["nginx"].median if row.ratio and "nginx" in by else None
    return [
        row.words,
        *(_cell(row, by.get(name), None if name in ("direct", "nginx") else reference) for name in targets),
    ]


def _cell(row: Row, figure: Figure | None, reference: float | None) -> str:
    if figure is None:
        return ""
    if row.digits is None:
        return f"{sum(map(int, figure.values))} of {len(figure.values)}"
    text = f"{figure.median:.{row.digits}f}"
    if len(figure.values) > 1:
        text += f" ({figure.least:.{row.digits}f}..{figure.most:.{row.digits}f})"
    if reference is not None and reference > 0:
        text += f" {_times(figure.median / reference)}"
    return text


def _times(ratio: float) -> str:
    return f"x{ratio:.0f}" if ratio >= 10 else f"x{ratio:.2g}"


def _goal_table(found: Sequence[Verdict]) -> list[list[str]]:
    if not found:
        return []
    lines = [
        [
            verdict.goal.words,
            verdict.goal.target,
            "every round" if verdict.goal.at_least else f"{verdict.goal.limit:g}",
            "" if verdict.goal.nginx is None else f"{verdict.limit:.3g}",
            ("yes" if verdict.met else "no") if verdict.goal.at_least else f"{verdict.measured:.3g}",
            "met" if verdict.met else "NOT MET",
        ]
        for verdict in found
    ]
    return [["target of the project", "of", "limit", "scaled by nginx", "measured", ""], *lines]


def _books_lines(run: Run) -> list[str]:
    lines = []
    for name, books in run.books.items():
        if books.faults:
            lines.append(f"BOOKS WRONG ({name}): " + "; ".join(books.faults))
        else:
            lines.append(
                f"Books of {name}: right. {books.calls.issued} calls, {books.booked.rows} rows, "
                f"{books.booked.output_tokens} output tokens."
            )
    return lines


def _aligned(table: Sequence[Sequence[str]]) -> str:
    widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))] if table else []
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in table
    )


def _piped(table: Sequence[Sequence[str]]) -> str:
    if not table:
        return ""
    head, *lines = ["| " + " | ".join(line) + " |" for line in table]
    return "\n".join([head, "|---" * len(table[0]) + "|", *lines])
