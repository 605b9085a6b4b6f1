"""Reads labels into arrays: each source's models as roles, each question in one group, nothing left out silently."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import orjson

from llmrouter.errors import UsageError
from llmrouter.offline.label_checks import AnswerChecks, answer_checks, samples_as_labels
from llmrouter.offline.label_files import objects_in, source_name
from llmrouter.offline.label_report import LabelReport, RoleCount, SourceReport
from llmrouter.offline.labels import LabelSet, RoleLabels
from llmrouter.offline.question import question_group
from llmrouter.offline.roles import MAIN_ROLES, Roles
from llmrouter.quality.labels import ALIASES, Faulty, Label, LabelRow, read_row
from llmrouter.routing.ask import Ask, ask_of

__all__ = ["Progress", "read_labels"]

Progress: TypeAlias = Callable[[str, int], None]
"""Told the file that is being read and how many objects of it have been."""

_STEP = 500
_FAULTS_SHOWN = 5
_FAULTY_SHARE = 0.01
"""Of a file's objects; with more faulty ones, the file is taken for damaged."""


def read_labels(
    files: Sequence[Path],
    roles: Roles,
    *,
    progress: Progress | None = None,
    tell: Callable[[LabelReport], None] | None = None,
) -> LabelSet:
    """Read label files, folders, saved data sets and stores (`objects_in`) as one set.

    A row without `source` is of the source that its file is named after. Objects of one item that name different models
    are put together. Where a source has no peers, further answers of the small model take their places. Left out and
    told: rows of sources without roles, without a prompt, without scores of the two extreme roles of their source,
    repeats, and faulty objects as long as they are few.

    Args:
        tell: given what became of all objects, before the result.

    Raises:
        UsageError: a file cannot be read or is faulty, a model is nowhere in its source, or no row is left.
    """
    reading = _Reading(roles)
    for file in files:
        reading.take(file, progress)
    rows = reading.complete()
    report = reading.report(rows)
    if tell is not None:
        tell(report)
    if not rows:
        raise UsageError("; ".join(["no usable labels", *report.lines()]))
    return _as_set(rows, {source: reading.roles_of(source) for source in report.sources})


@dataclass(slots=True)
class _Row:
    """One item of one source, put together from its objects."""

    item_id: str
    source: str
    group: str | None = None
    split: str | None = None
    ask: Ask | None = None
    labels: dict[str, Label] = field(default_factory=dict)
    """By role."""
    checks: dict[str, AnswerChecks] = field(default_factory=dict)
    """By role, where something is known."""
    samples: tuple[Label, ...] = ()
    """Further answers of the small model."""

    def add(self, row: LabelRow, labels: Mapping[str, Label]) -> None:
        """Take what this object says and the ones before it did not.

        Raises:
            Faulty: what it tells of an answer is not what it should be.
        """
        extra = _extra(row)
        told = {role: found for role, label in labels.items() if (found := answer_checks(extra, label)) is not None}
        samples = samples_as_labels(extra, labels["small"]) if "small" in labels else ()
        self.labels = {**labels, **self.labels}
        self.checks = {**told, **self.checks}
        self.samples = self.samples or samples
        self.group = self.group or row.item.group
        split = extra.get("split")
        self.split = self.split or (split if isinstance(split, str) else None)
        self.ask = self.ask or _ask(row, extra)


@dataclass(slots=True)
class _Reading:
    roles: Roles
    objects: int = 0
    rows: dict[tuple[str, str], _Row] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    models: dict[str, set[str]] = field(default_factory=dict)
    """Source → every model that it has scores of."""
    wanted: dict[str, frozenset[str]] = field(default_factory=dict)
    """Source → models that play a role."""
    sampled: dict[str, int] = field(default_factory=dict)
    """Source → how many places of peers are taken by further answers of its small model."""

    def take(self, file: Path, progress: Progress | None) -> None:
        objects = faulty = 0
        name = source_name(file)
        for at, given in objects_in(file):
            objects += 1
            try:
                if isinstance(given, Faulty):
                    raise given
                self._add(read_row(self._trimmed(given, name)), name)
            except Faulty as fault:
                faulty += 1
                self._note(f"{file}: {at}{_named(given)}: {fault}")
            if progress is not None and objects % _STEP == 0:
                progress(str(file), objects)
        if not objects:
            raise UsageError(f"{file}: holds no labels")
        if faulty > _FAULTY_SHARE * objects:
            more = f" ({faulty} of {objects} objects are faulty)" if faulty > 1 else ""
            raise UsageError("; ".join(self.faults) + more)
        if progress is not None:
            progress(str(file), objects)
        self.objects += objects

    def _note(self, fault: str) -> None:
        self.left_out["faulty"] += 1
        if len(self.faults) < _FAULTS_SHOWN:
            self.faults.append(fault)

    def _trimmed(self, given: Any, default_source: str) -> Any:
        """The object without models that play no role, which may be most; as it is where it has no other."""
        scores = given.get("scores") if isinstance(given, Mapping) else None
        if not isinstance(scores, Mapping):
            return given
        source = given.get("source") or default_source
        if not isinstance(source, str) or not self.roles.knows(source):
            return given
        self.models.setdefault(source, set()).update(map(str, scores))
        wanted = self._wanted(source)
        if wanted.isdisjoint(scores):
            return given
        return {
            name: {model: each[model] for model in each if model in wanted} if _is_by_model(name, each) else each
            for name, each in given.items()
        }

    def _wanted(self, source: str) -> frozenset[str]:
        found = self.wanted.get(source)
        if found is None:
            found = self.wanted[source] = frozenset(self.roles.of(source).values())
        return found

    def _add(self, row: LabelRow, default_source: str) -> None:
        source = row.item.source or default_source
        self.models.setdefault(source, set()).update(label.model_id for label in row.labels)
        if not self.roles.knows(source):
            self.left_out[f"the source {source} has no roles"] += 1
            return
        by_model = {label.model_id: label for label in row.labels}
        found = {role: by_model[model] for role, model in self.roles.of(source).items() if model in by_model}
        known = self.rows.get((source, row.item.item_id))
        if known is None:
            known = self.rows[source, row.item.item_id] = _Row(row.item.item_id, source)
        elif known.labels.keys() & found.keys():
            self.left_out["the same item again"] += 1
            return
        elif not found:
            self.left_out["of other models only"] += 1
        known.add(row, found)

    def roles_of(self, source: str) -> Mapping[str, str]:
        """Role → model of a source, those among them whose place further samples take."""
        roles = self.roles.of(source)
        sampled = range(1, self.sampled.get(source, 0) + 1)
        return {**roles, **{f"peer{number}": roles["small"] for number in sampled}}

    def complete(self) -> list[_Row]:
        """The rows that can be used; counts the others."""
        self._check_models()
        rows = []
        for row in self.rows.values():
            roles = self.roles.of(row.source)
            if row.samples and "peer1" not in roles:
                row.labels |= {f"peer{number}": each for number, each in enumerate(row.samples, 1)}
                self.sampled[row.source] = max(self.sampled.get(row.source, 0), len(row.samples))
            extremes = _extremes(roles)
            missing = [role for role in extremes if role not in row.labels]
            if missing:
                self.left_out[f"no score of {' and '.join(missing)}"] += 1
            elif row.ask is None:
                self.left_out["no prompt"] += 1
            else:
                row.group = _group(row)
                rows.append(row)
        return rows

    def _check_models(self) -> None:
        """Raises `UsageError` for a model of a role that has no score anywhere it should."""
        everywhere = set(chain.from_iterable(self.models.values()))
        for role, model in (self.roles.default or {}).items():
            if model not in everywhere:
                raise UsageError(_unknown(self.roles.origin, role, model, everywhere))
        for source, models in self.models.items():
            for role, model in self.roles.by_source.get(source, {}).items():
                if model not in models:
                    raise UsageError(_unknown(f"{self.roles.origin}: {source}", role, model, models))

    def report(self, rows: Sequence[_Row]) -> LabelReport:
        by_source: dict[str, list[_Row]] = {}
        for row in rows:
            by_source.setdefault(row.source, []).append(row)
        return LabelReport(
            read=self.objects,
            used=len(rows),
            left_out=dict(self.left_out),
            faults=tuple(self.faults),
            sources={source: _of_source(each, self.roles_of(source)) for source, each in by_source.items()},
        )


_BY_MODEL = frozenset({"scores", "answers", "input_tokens", "output_tokens", "cost_usd", "out_chars"})


def _is_by_model(name: str, given: Any) -> bool:
    return ALIASES.get(name, name) in _BY_MODEL and isinstance(given, Mapping)


def _named(given: Any) -> str:
    if not isinstance(given, Mapping):
        return ""
    name = given.get("id", given.get("item_id", given.get("request_id")))
    return "" if name is None else f" (id {str(name)[:80]!r})"


def _unknown(at: str, role: str, model: str, models: Iterable[str]) -> str:
    return f"{at}: {role}: no label is of {model!r}; the labels are of {', '.join(sorted(models))}"


def _extremes(roles: Mapping[str, str]) -> tuple[str, str]:
    """The cheapest role and the reference."""
    main = [role for role in MAIN_ROLES if role in roles]
    return main[0], main[-1]


def _extra(row: LabelRow) -> Mapping[str, Any]:
    extra: Mapping[str, Any] = orjson.loads(row.item.extra) if row.item.extra else {}
    return extra


def _ask(row: LabelRow, extra: Mapping[str, Any]) -> Ask | None:
    content = orjson.loads(row.item.content) if row.item.content else {}
    given = content.get("prompt") or content.get("messages")
    ask = ask_of(given, extra.get("tools") or ()) if given else None
    return ask if ask is not None and ask.text else None


def _of_source(rows: Sequence[_Row], roles: Mapping[str, str]) -> SourceReport:
    counts = {}
    for role, model in roles.items():
        labels = [row.labels[role] for row in rows if role in row.labels]
        mean = sum(label.score for label in labels) / len(labels) if labels else None
        answers = sum(_answer(label) is not None for label in labels)
        counts[role] = RoleCount(model, len(labels), mean, answers)
    return SourceReport(len(rows), len({row.group for row in rows}), counts)


def _group(row: _Row) -> str:
    if row.group is not None:
        return row.group
    assert row.ask is not None
    # A later turn such as "go on" is another question in every conversation.
    return question_group(row.ask.text if row.ask.turns <= 1 else f"{row.ask.text}\n{row.ask.history}")


def _as_set(rows: Sequence[_Row], models: Mapping[str, Mapping[str, str]]) -> LabelSet:
    names = sorted({role for row in rows for role in row.labels}, key=_rank)
    return LabelSet(
        ids=tuple(row.item_id for row in rows),
        sources=tuple(row.source for row in rows),
        groups=tuple(str(row.group) for row in rows),
        splits=tuple(row.split for row in rows),
        asks=tuple(row.ask for row in rows if row.ask is not None),
        inclusion=np.array([_inclusion(row) for row in rows]),
        roles={role: _column(role, rows) for role in names},
        models=models,
    )


def _rank(role: str) -> tuple[int, int]:
    """The main roles in their order, then the peers in theirs."""
    if role in MAIN_ROLES:
        return MAIN_ROLES.index(role), 0
    return len(MAIN_ROLES), int(role.removeprefix("peer"))


def _inclusion(row: _Row) -> float:
    said = [label.inclusion_probability for label in row.labels.values() if label.inclusion_probability is not None]
    return min(said, default=1.0)


def _column(role: str, rows: Sequence[_Row]) -> RoleLabels:
    labels = [row.labels.get(role) for row in rows]
    usages = [orjson.loads(label.usage) if label is not None else {} for label in labels]
    return RoleLabels(
        quality=np.array([math.nan if label is None else label.score for label in labels]),
        answers=tuple(None if label is None else _answer(label) for label in labels),
        out_chars=np.array([_number(usage.get("out_chars")) for usage in usages]),
        cost_usd=np.array([_number(usage.get("cost_usd")) for usage in usages]),
        **_checks_columns([row.checks.get(role) for row in rows]),
    )


def _checks_columns(checks: Sequence[AnswerChecks | None]) -> dict[str, Any]:
    if not any(checks):
        return {}
    known = [AnswerChecks() if each is None else each for each in checks]
    return {
        "signals": tuple(each.signals for each in known),
        "prefix_signals": tuple(each.prefix_signals for each in known),
        "p_true": np.array([each.p_true for each in known]),
        "self_check_share": np.array([each.self_check_share for each in known]),
    }


def _number(given: Any) -> float:
    return math.nan if given is None else float(given)


def _answer(label: Label) -> str | None:
    """The short answer as text; one that is no text is its JSON."""
    if label.answer is None or label.answer == "null":
        return None
    return str(orjson.loads(label.answer)) if label.answer.startswith('"') else label.answer
