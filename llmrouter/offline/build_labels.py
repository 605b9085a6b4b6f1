"""Makes labels: asks every model every item, scores the answers, and writes them as training reads them.

A call that is done is never done again: its result is in the journal, then in the output, and counts for as long as the
item, its scorer and the settings are the same, also when further models are asked. The output is written whole: the
rows of other items that it had, then those of this run in the order of the items.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson

from llmrouter.errors import UsageError
from llmrouter.offline.label_items import LabelItem
from llmrouter.offline.label_journal import Journal
from llmrouter.offline.upstreams import CallFailed, Complete, Completion, ToolCalls
from llmrouter.quality.label_files import read_objects, write_objects
from llmrouter.routing.selfcheck import alternatives, p_true, self_check_request
from llmrouter.types import ChatRequest, Observation, TokenSignals, Usage, value

__all__ = ["BuildSettings", "Built", "Outside", "build_labels"]


@value
class BuildSettings:
    """How models are asked; everything but the concurrency makes another label."""

    models: tuple[str, ...]
    """The last one is the reference."""
    temperature: float = 0.0
    max_tokens: int | None = 1024
    """For items that do not say."""
    samples: int = 0
    """Further answers of each model, drawn to see whether it agrees with itself."""
    sample_temperature: float = 0.7
    signals: bool = False
    """Ask for log-probabilities and keep what they say of the answer and of its beginning."""
    prefix_tokens: int = 24
    """Length of that beginning: what a tier withholds of a stream to judge it (`cascade.hold_back_tokens`)."""
    self_check: bool = False
    """Ask the model whether its answer is right, and keep how likely it was to say yes."""
    concurrency: int = 8


@dataclass(frozen=True, slots=True)
class Outside:
    """What a run needs of the world."""

    complete: Complete
    cost_usd: Callable[[str, Usage], Decimal]
    """Model, usage → its price."""
    short_answer: Callable[[LabelItem, str, ToolCalls], str | None]
    """What an answer came to where the item has no scorer; None where there is nothing that can be compared."""
    signals: Callable[[list[Any]], TokenSignals | None]
    many_at_once: Callable[[str], bool]
    """Whether a model gives several answers to one request."""
    now: Callable[[], datetime]
    clock: Callable[[], float]
    """Monotonic, in seconds."""
    tell: Callable[[int, int, int], None]
    """Told calls done, calls in all, calls failed."""


@dataclass(slots=True)
class Built:
    """What became of a run."""

    items: int
    rows: int = 0
    """Items with a score of some model; they are in the output."""
    calls: int = 0
    """Pairs of item and model that were asked in this run, also those that failed."""
    reused: int = 0
    """Pairs that an earlier run had done."""
    failed: int = 0
    truncated: int = 0
    """Answers that ended at the output cap."""
    estimated: int = 0
    """Answers whose tokens and cost are estimates."""
    not_comparable: int = 0
    """Items without a scorer where the reference gave no short answer; they are not in the output."""
    cost_usd: float = 0.0
    """Of this run."""
    mean_scores: dict[str, float] = field(default_factory=dict)
    """By model, over the rows that have its score."""
    failures: list[str] = field(default_factory=list)
    """The first ones: item, model, why."""


_FAILURES_KEPT = 10
_Result = dict[str, Any]
_Key = tuple[str, str]
"""Item, and digest of what it asks and of the settings."""


async def build_labels(items: Sequence[LabelItem], out: Path, settings: BuildSettings, outside: Outside) -> Built:
    """Make `out` of the items; goes on where an earlier run of it ended.

    When it is cancelled, what is done stays in the journal beside `out`, and `out` is as it was.

    Raises:
        UsageError: `out` or its journal cannot be read or written, another run has it, or `out` has other rows than
            those of such runs.
    """
    with Journal.beside(out, now=outside.clock) as journal:
        run = _Run(items, settings, outside, journal)
        others = run.know(_rows_in(out))
        await run.ask_all()
        rows = run.rows()
        if rows:
            write_objects(out, [*others, *rows])
        run.built.rows = len(rows)
        if not run.built.failed:
            journal.remove()
    return run.built


class _Run:
    def __init__(self, items: Sequence[LabelItem], settings: BuildSettings, outside: Outside, journal: Journal) -> None:
        self._items = {(item.item_id, _digest(item, settings)): item for item in items}
        self._settings = settings
        self._outside = outside
        self._journal = journal
        self._results: dict[_Key, dict[str, _Result]] = {key: {} for key in self._items}
        """By model."""
        self._failed: dict[_Key, dict[str, str]] = {key: {} for key in self._items}
        self.built = Built(len(items))

    def know(self, written: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Take over what earlier runs did, from their output and the journal; returns the rows of other items."""
        ids = {item_id for item_id, _ in self._items}
        others = []
        for row in written:
            known = self._results.get((row["id"], row["built"]))
            if known is not None:
                known |= {model: _result_in(row, model) for model in row["scores"]}
            elif row["id"] not in ids:
                others.append(row)
        for line in self._journal.lines:
            known = self._results.get((line["id"], line["built"]))
            if known is not None:
                known[line["model"]] = line["result"]
        self.built.reused = sum(model in known for known in self._results.values() for model in self._settings.models)
        return others

    async def ask_all(self) -> None:
        """Make every call that is not done, so many at once."""
        models = self._settings.models
        waiting = [(key, model) for key in self._items for model in models if model not in self._results[key]]
        coming = iter(waiting)
        self._tell()

        async def work() -> None:
            for key, model in coming:
                await self._ask(key, model)
                self._tell()

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self._settings.concurrency, len(waiting))):
                    group.create_task(work())
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None

    def _tell(self) -> None:
        done = self.built.reused + self.built.calls
        self._outside.tell(done, len(self._items) * len(self._settings.models), self.built.failed)

    async def _ask(self, key: _Key, model: str) -> None:
        try:
            result = await self._result(self._items[key], model)
        except CallFailed as failure:
            self._failed[key][model] = str(failure)
            self.built.failed += 1
            if len(self.built.failures) < _FAILURES_KEPT:
                self.built.failures.append(f"{key[0]}, {model}: {failure}")
        else:
            self._results[key][model] = result
            self._journal.add({"id": key[0], "built": key[1], "model": model, "result": result})
            self.built.truncated += result.get("truncated", False)
            self.built.estimated += result.get("estimated", False)
            self.built.cost_usd += sum(result.get(name, 0.0) for name in _COSTS)
        self.built.calls += 1

    async def _result(self, item: LabelItem, model: str) -> _Result:
        settings = self._settings
        wanted: dict[str, Any] = {"temperature": settings.temperature}
        if settings.signals:
            wanted |= {"logprobs": True, "top_logprobs": 5}
        answer = await self._outside.complete(model, self._request(item, model, wanted))
        score, short = self._scored(item, answer)[0]
        usage = answer.usage
        result: _Result = {
            "score": score,
            "answer": short,
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "cost_usd": float(self._outside.cost_usd(model, usage)),
            "out_chars": len(answer.texts[0]),
            "judged_at": self._outside.now().isoformat(),
        }
        if usage.estimated:
            result["estimated"] = True
        if answer.finish[0] == "length":
            result["truncated"] = True
        if settings.signals:
            result |= self._signals(answer)
        if settings.self_check:
            result |= await self._self_checked(item, model, answer)
        if settings.samples:
            result |= await self._sampled(item, model)
        return result

    def _signals(self, answer: Completion) -> _Result:
        """What the tokens say, of the whole answer and of as much as would be held back of a stream."""
        entries, count = list(answer.logprobs), self._settings.prefix_tokens
        found = {"signals": self._outside.signals(entries), "prefix_signals": self._outside.signals(entries[:count])}
        return {name: asdict(each) for name, each in found.items() if each is not None}

    async def _self_checked(self, item: LabelItem, model: str, answer: Completion) -> _Result:
        """What the model says of its own answer, asked as a tier would ask."""
        ask = self_check_request(self._request(item, model, {}), answer.texts[0])
        said = await self._outside.complete(model, ask)
        sure = p_true(Observation(said.texts, said.finish, first_token=alternatives(said.logprobs)))
        return {
            **({} if sure is None else {"p_true": sure}),
            "self_check_input_tokens": said.usage.input_tokens,
            "self_check_output_tokens": said.usage.output_tokens,
            "self_check_cost_usd": float(self._outside.cost_usd(model, said.usage)),
        }

    async def _sampled(self, item: LabelItem, model: str) -> _Result:
        """Further answers: in one request where the model can, so that the prompt is read once."""
        count = self._settings.samples
        wanted = {"temperature": self._settings.sample_temperature}
        if self._outside.many_at_once(model) and count > 1:
            answers = [await self._outside.complete(model, self._request(item, model, {**wanted, "n": count}))]
        else:
            answers = [await self._outside.complete(model, self._request(item, model, wanted)) for _ in range(count)]
        scored = [each for answer in answers for each in self._scored(item, answer)]
        return {
            "samples": [short for _, short in scored],
            **({} if item.scorer is None else {"sample_scores": [score for score, _ in scored]}),
            "sample_chars": [len(text) for each in answers for text in each.texts],
            "samples_output_tokens": sum(each.usage.output_tokens for each in answers),
            "samples_cost_usd": float(sum(self._outside.cost_usd(model, each.usage) for each in answers)),
        }

    def _request(self, item: LabelItem, model: str, wanted: Mapping[str, Any]) -> ChatRequest:
        cap = item.max_tokens if item.max_tokens is not None else self._settings.max_tokens
        return item.request(model, cap, **wanted)

    def _scored(self, item: LabelItem, answer: Completion) -> list[tuple[float | None, str | None]]:
        """Score and short answer of each choice."""
        if item.scorer is None:
            calls = answer.tool_calls or ((),) * len(answer.texts)
            pairs = zip(answer.texts, calls, strict=True)
            return [(None, self._outside.short_answer(item, text, each)) for text, each in pairs]
        scored = [item.scorer(text) for text in answer.texts]
        return [(each.score, each.answer) for each in scored]

    def rows(self) -> list[dict[str, Any]]:
        """The items that have a score, as label rows."""
        rows = []
        for key, item in self._items.items():
            results = self._results[key]
            if item.scorer is None:
                results = _against_reference(results, self._settings.models[-1])
                self.built.not_comparable += not results
            if results:
                rows.append(_row(item, key[1], results, self._failed[key]))
        for model in self._settings.models:
            scores = [row["scores"][model] for row in rows if model in row["scores"]]
            if scores:
                self.built.mean_scores[model] = sum(scores) / len(scores)
        return rows


def _digest(item: LabelItem, settings: BuildSettings) -> str:
    """The same for runs whose results are good for one another."""
    cap = item.max_tokens if item.max_tokens is not None else settings.max_tokens
    asked: list[Any] = [settings.temperature, settings.samples, settings.sample_temperature, settings.signals, cap]
    if settings.signals:
        asked.append(settings.prefix_tokens)
    if settings.self_check:
        asked.append("self_check")
    said = [dict(item.content), dict(item.asked), item.expected, *asked]
    return hashlib.sha256(orjson.dumps(said, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]


def _against_reference(results: Mapping[str, _Result], reference: str) -> dict[str, _Result]:
    """Scored by whether each model came to the reference's short answer; none of it where that has none."""
    truth = results[reference]["answer"] if reference in results else None
    if truth is None:
        return {}
    return {
        model: {
            **each,
            "score": float(each["answer"] == truth),
            **({"sample_scores": [float(said == truth) for said in each["samples"]]} if "samples" in each else {}),
        }
        for model, each in results.items()
    }


_MAPS = ("input_tokens", "output_tokens", "cost_usd", "out_chars")
_OPTIONAL_MAPS = (
    "signals",
    "prefix_signals",
    "p_true",
    "self_check_input_tokens",
    "self_check_output_tokens",
    "self_check_cost_usd",
    "samples",
    "sample_scores",
    "sample_chars",
    "samples_output_tokens",
    "samples_cost_usd",
)
_COSTS = ("cost_usd", "self_check_cost_usd", "samples_cost_usd")
_MARKS = ("estimated", "truncated")


def _row(item: LabelItem, digest: str, results: Mapping[str, _Result], failures: Mapping[str, str]) -> dict[str, Any]:
    row: dict[str, Any] = {"id": item.item_id}
    row |= {name: each for name, each in (("group", item.group), ("source", item.source)) if each is not None}
    row |= item.content
    if item.asked:
        row |= item.asked
    row["scores"] = {model: result["score"] for model, result in results.items()}
    for name in _MAPS:
        row[name] = {model: result[name] for model, result in results.items()}
    row["answers"] = {model: result["answer"] for model, result in results.items()}
    for name in _OPTIONAL_MAPS:
        if found := {model: result[name] for model, result in results.items() if name in result}:
            row[name] = found
    for name in _MARKS:
        if marked := [model for model, result in results.items() if result.get(name)]:
            row[name] = marked
    if item.tags is not None:
        row["tags"] = item.tags
    if failures:
        row["failures"] = dict(failures)
    if item.inclusion_probability is not None:
        row["inclusion_probability"] = item.inclusion_probability
    row |= {"kind": "eval" if item.scorer is not None else "shadow", "judge": item.judge}
    return row | {"judged_at": {model: result["judged_at"] for model, result in results.items()}, "built": digest}


def _rows_in(out: Path) -> list[dict[str, Any]]:
    """The rows of an output that is there already.

    Raises:
        UsageError: it has others, which are not ours to write again.
    """
    if not out.exists():
        return []
    rows = []
    for at, row in read_objects(out):
        if not isinstance(row, dict) or not isinstance(row.get("built"), str) or "id" not in row:
            raise UsageError(f"{out}: {at}: was not made by `labels build`; name another file for the output")
        if any(model not in row.get(name, ()) for model in row.get("scores", ()) for name in (*_MAPS, "answers")):
            raise UsageError(f"{out}: {at}: is not whole; name another file for the output")
        rows.append(row)
    return rows


def _result_in(row: Mapping[str, Any], model: str) -> _Result:
    result: _Result = {"score": row["scores"][model], "answer": row["answers"][model]}
    for name in (*_MAPS, *_OPTIONAL_MAPS, "judged_at"):
        if model in row.get(name, {}):
            result[name] = row[name][model]
    return result | {name: True for name in _MARKS if model in row.get(name, ())}
