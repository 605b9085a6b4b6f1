"""Building labels: what is written, resumed, retried and told, with scripted models."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from llmrouter.errors import UsageError
from llmrouter.offline.build_labels import BuildSettings, Built, Outside, build_labels
from llmrouter.offline.label_items import LabelItem, read_golden
from llmrouter.offline.label_reader import read_labels
from llmrouter.offline.roles import Roles
from llmrouter.offline.upstreams import CallFailed, Completion
from llmrouter.routing.selfcheck import QUESTION
from llmrouter.types import ChatRequest, TokenSignals, Usage

NOW = datetime(2026, 12, 1, tzinfo=UTC)
SETTINGS = BuildSettings(models=("s", "l"))
SIGNALS = TokenSignals(1, -0.1, -0.1, -0.1)


def golden(folder: Path, *rows: dict[str, Any]) -> list[LabelItem]:
    path = folder / "golden.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_golden(path)


def sums(folder: Path, count: int) -> list[LabelItem]:
    rows = [
        {"id": f"q-{n}", "prompt": f"What is {n} + 1?", "expected": n + 1, "scorer": "number"} for n in range(count)
    ]
    return golden(folder, *rows)


class Models:
    """`l` always adds rightly, `s` only up to 2; what happens besides is scripted by `before`."""

    def __init__(self, before: Callable[[str, ChatRequest], None] = lambda _, __: None) -> None:
        self.asked: list[tuple[str, ChatRequest]] = []
        self._before = before

    async def complete(self, model: str, request: ChatRequest) -> Completion:
        self.asked.append((model, request))
        await asyncio.sleep(0)
        self._before(model, request)
        number = int("".join(filter(str.isdigit, request.last_user_text.split("+")[0])))
        right = model == "l" or number < 2
        text = f"The answer is {number + 1 if right else 0}."
        usage = Usage(10, output_tokens=5 * request.n)
        return Completion((text,) * request.n, ("stop",) * request.n, usage, ("entry",))


def outside(models: Models, told: list[tuple[int, int, int]] | None = None) -> Outside:
    return Outside(
        complete=models.complete,
        cost_usd=lambda model, usage: Decimal(usage.output_tokens) * (10 if model == "l" else 1),
        short_answer=lambda _, text, __: text.split()[-1].strip(".") if text else None,
        signals=lambda entries: SIGNALS if entries == ["entry"] else None,
        many_at_once=lambda model: model == "l",
        now=lambda: NOW,
        clock=lambda: 0.0,
        tell=lambda *counts: told.append(counts) if told is not None else None,
    )


async def built(
    items: Sequence[LabelItem], out: Path, models: Models | None = None, settings: BuildSettings = SETTINGS
) -> Built:
    return await build_labels(items, out, settings, outside(models or Models()))


def rows(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text().splitlines()]


async def test_rows_have_what_training_reads(tmp_path):
    items = golden(
        tmp_path,
        {
            "id": "q",
            "group": "sums",
            "source": "school",
            "messages": [{"role": "user", "content": "5 + 1"}],
            "expected": "6",
            "scorer": {"type": "number"},
            "tags": ["easy"],
        },
    )
    done = await built(items, tmp_path / "out.jsonl")
    (row,) = rows(tmp_path / "out.jsonl")
    assert row.pop("built")
    assert row == {
        "id": "q",
        "group": "sums",
        "source": "school",
        "messages": [{"role": "user", "content": "5 + 1"}],
        "scores": {"s": 0.0, "l": 1.0},
        "input_tokens": {"s": 10, "l": 10},
        "output_tokens": {"s": 5, "l": 5},
        "cost_usd": {"s": 5.0, "l": 50.0},
        "out_chars": {"s": 16, "l": 16},
        "answers": {"s": "0", "l": "6"},
        "tags": ["easy"],
        "kind": "eval",
        "judge": "number",
        "judged_at": {"s": NOW.isoformat(), "l": NOW.isoformat()},
    }
    assert (done.rows, done.calls, done.failed, done.cost_usd) == (1, 2, 0, 55)


async def test_the_output_reads_as_labels(tmp_path):
    await built(sums(tmp_path, 4), tmp_path / "out.jsonl.gz")
    labels = read_labels([tmp_path / "out.jsonl.gz"], Roles.of_models("s,l"))
    assert labels.roles["small"].quality.tolist() == [1, 1, 0, 0]
    assert labels.roles["large"].answers == ("1", "2", "3", "4")
    assert labels.roles["large"].cost_usd.tolist() == [50] * 4
    assert set(labels.sources) == {"golden"}


async def test_nothing_is_asked_twice(tmp_path):
    out = tmp_path / "out.jsonl"
    await built(sums(tmp_path, 3), out)
    before = out.read_text()
    models = Models()
    done = await built(sums(tmp_path, 3), out, models)
    assert (models.asked, done.reused, done.calls) == ([], 6, 0)
    assert out.read_text() == before


async def test_further_items_and_models_are_added_and_what_was_there_stays(tmp_path):
    out = tmp_path / "out.jsonl"
    await built(sums(tmp_path, 2), out, settings=BuildSettings(models=("s",)))
    models = Models()
    await built(sums(tmp_path, 3)[1:], out, models, BuildSettings(models=("l",)))
    assert [(model, request.last_user_text) for model, request in models.asked] == [
        ("l", "What is 1 + 1?"),
        ("l", "What is 2 + 1?"),
    ]
    assert [(row["id"], set(row["scores"])) for row in rows(out)] == [
        ("q-0", {"s"}),
        ("q-1", {"s", "l"}),
        ("q-2", {"l"}),
    ]


@pytest.mark.parametrize(
    "settings", [BuildSettings(("s", "l"), temperature=0.5), BuildSettings(("s", "l"), max_tokens=9)]
)
async def test_other_settings_make_other_labels(tmp_path, settings):
    await built(sums(tmp_path, 1), tmp_path / "out.jsonl")
    assert (await built(sums(tmp_path, 1), tmp_path / "out.jsonl", settings=settings)).calls == 2
    assert len(rows(tmp_path / "out.jsonl")) == 1


async def test_a_changed_question_is_asked_again(tmp_path):
    out = tmp_path / "out.jsonl"
    await built(sums(tmp_path, 1), out)
    changed = golden(tmp_path, {"id": "q-0", "prompt": "What is 7 + 1?", "expected": 8, "scorer": "number"})
    assert (await built(changed, out)).calls == 2
    assert [row["prompt"] for row in rows(out)] == ["What is 7 + 1?"]


async def test_a_cancelled_run_keeps_what_is_done_and_goes_on(tmp_path):
    out = tmp_path / "out.jsonl"
    items = sums(tmp_path, 10)
    reached = asyncio.Event()

    def before(*_: Any) -> None:
        if len(models.asked) == 8:
            reached.set()

    models = Models(before)
    task = asyncio.create_task(built(items, out, models, BuildSettings(("s", "l"), concurrency=2)))
    await asyncio.wait_for(reached.wait(), 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not out.exists()
    again = Models()
    done = await built(items, out, again)
    assert done.reused >= 6
    assert done.reused + len(again.asked) == 20
    assert len(rows(out)) == 10
    assert [each.name for each in tmp_path.iterdir() if "building" in each.name] == []


async def test_a_journal_that_was_cut_off_loses_its_last_line_only(tmp_path):
    out, journal = tmp_path / "out.jsonl", tmp_path / ".out.jsonl.building"

    def before(_: str, request: ChatRequest) -> None:
        if "4 +" in request.last_user_text:
            raise CallFailed("down")

    await built(sums(tmp_path, 5), out, Models(before))
    lines = journal.read_bytes().splitlines(keepends=True)
    assert len(lines) == 8
    journal.write_bytes(b"".join(lines[:5]) + lines[5][:-9])
    out.unlink()
    assert (await built(sums(tmp_path, 5), out)).reused == 5
    assert len(rows(out)) == 5
    assert not journal.exists()


async def test_failures_are_recorded_counted_and_tried_again(tmp_path):
    out = tmp_path / "out.jsonl"

    def before(model: str, request: ChatRequest) -> None:
        if model == "s" and "1 +" in request.last_user_text:
            raise CallFailed("s/0: HTTP 500")

    done = await built(sums(tmp_path, 3), out, Models(before))
    assert (done.failed, done.failures, done.rows) == (1, ["q-1, s: s/0: HTTP 500"], 3)
    assert rows(out)[1]["failures"] == {"s": "s/0: HTTP 500"}
    assert set(rows(out)[1]["scores"]) == {"l"}
    again = Models()
    assert (await built(sums(tmp_path, 3), out, again)).failed == 0
    assert [model for model, _ in again.asked] == ["s"]
    assert "failures" not in rows(out)[1]


async def test_when_all_fails_nothing_is_written(tmp_path):
    def before(*_: Any) -> None:
        raise CallFailed("down")

    done = await built(sums(tmp_path, 20), tmp_path / "out.jsonl", Models(before))
    assert (done.rows, done.failed, len(done.failures)) == (0, 40, 10)
    assert not (tmp_path / "out.jsonl").exists()


async def test_samples_are_asked_at_once_where_a_model_can_and_their_cost_is_told(tmp_path):
    models = Models()
    settings = BuildSettings(("s", "l"), samples=3)
    done = await built(sums(tmp_path, 1), tmp_path / "out.jsonl", models, settings)
    assert [(model, request.n, request.fields["temperature"]) for model, request in models.asked if model == "l"] == [
        ("l", 1, 0.0),
        ("l", 3, 0.7),
    ]
    assert [request.n for model, request in models.asked if model == "s"] == [1, 1, 1, 1]
    (row,) = rows(tmp_path / "out.jsonl")
    assert row["samples"] == {"s": ["1", "1", "1"], "l": ["1", "1", "1"]}
    assert row["samples_output_tokens"] == {"s": 15, "l": 15}
    assert row["samples_cost_usd"] == {"s": 15.0, "l": 150.0}
    assert done.cost_usd == 5 + 50 + 15 + 150


async def test_signals_come_from_log_probabilities(tmp_path):
    models = Models()
    await built(sums(tmp_path, 1), tmp_path / "out.jsonl", models, BuildSettings(("s", "l"), signals=True))
    assert models.asked[0][1].fields["logprobs"] is True
    assert rows(tmp_path / "out.jsonl")[0]["signals"]["l"]["mean_logprob"] == -0.1


async def test_the_beginning_of_an_answer_has_signals_of_its_own(tmp_path):
    class Long(Models):
        async def complete(self, model: str, request: ChatRequest) -> Completion:
            return Completion(("1",), ("stop",), Usage(1, output_tokens=40), ("entry",) * 40)

    settings = BuildSettings(("s",), signals=True, prefix_tokens=24)
    world = replace(outside(Long()), signals=lambda entries: TokenSignals(len(entries), -0.1, -0.1, -0.1))
    await build_labels(sums(tmp_path, 1), tmp_path / "out.jsonl", settings, world)
    (row,) = rows(tmp_path / "out.jsonl")
    assert row["signals"]["s"]["tokens"] == 40
    assert row["prefix_signals"]["s"]["tokens"] == 24


class Unsure(Models):
    """Says of each answer that it is right with the given odds."""

    async def complete(self, model: str, request: ChatRequest) -> Completion:
        if request.last_user_text != QUESTION:
            return await super().complete(model, request)
        self.asked.append((model, request))
        likely = [{"token": " Yes", "logprob": math.log(0.6)}, {"token": "No", "logprob": math.log(0.2)}]
        return Completion(("Yes",), ("stop",), Usage(12, output_tokens=1), ({**likely[0], "top_logprobs": likely},))


async def test_a_self_check_tells_how_sure_the_model_is_and_what_asking_took(tmp_path):
    models = Unsure()
    done = await built(sums(tmp_path, 1), tmp_path / "out.jsonl", models, BuildSettings(("s",), self_check=True))
    (row,) = rows(tmp_path / "out.jsonl")
    assert row["p_true"]["s"] == pytest.approx(0.75)
    assert row["self_check_input_tokens"] == {"s": 12}
    assert row["self_check_cost_usd"] == {"s": 1.0}
    assert done.cost_usd == 5 + 1
    asked = models.asked[1][1]
    assert [each["role"] for each in asked.fields["messages"]] == ["user", "assistant", "user"]
    assert asked.fields["messages"][1]["content"] == "The answer is 1."
    assert asked.max_output_tokens == 1


async def test_each_sample_has_its_score_and_length(tmp_path):
    settings = BuildSettings(("s", "l"), samples=2)
    await built(sums(tmp_path, 3), tmp_path / "out.jsonl", settings=settings)
    assert rows(tmp_path / "out.jsonl")[2]["sample_scores"] == {"s": [0.0, 0.0], "l": [1.0, 1.0]}
    assert rows(tmp_path / "out.jsonl")[2]["sample_chars"] == {"s": [16, 16], "l": [16, 16]}


async def test_samples_without_a_scorer_are_held_against_the_reference(tmp_path):
    item = LabelItem("r", {"prompt": "7 + 1"}, {}, None, None, "same-as-reference", "null", source="samples:t")
    await built([item], tmp_path / "out.jsonl", settings=BuildSettings(("s", "l"), samples=2))
    assert rows(tmp_path / "out.jsonl")[0]["sample_scores"] == {"s": [0.0, 0.0], "l": [1.0, 1.0]}


async def test_what_was_checked_is_not_asked_again_and_reads_back(tmp_path):
    out, models = tmp_path / "out.jsonl", Unsure()
    settings = BuildSettings(("s", "l"), samples=2, signals=True, self_check=True)
    await built(sums(tmp_path, 3), out, models, settings)
    before = out.read_text()
    assert (await built(sums(tmp_path, 3), out, Unsure(), settings)).reused == 6
    assert out.read_text() == before
    labels = read_labels([out], Roles.of_models("s,l"))
    small = labels.roles["small"]
    assert list(labels.roles) == ["small", "large", "peer1", "peer2"]
    assert (small.signals, small.prefix_signals) == ((SIGNALS,) * 3, (SIGNALS,) * 3)
    assert small.p_true.tolist() == pytest.approx([0.75] * 3)
    assert small.self_check_share.tolist() == pytest.approx([1 / 5] * 3)
    assert labels.roles["peer2"].quality.tolist() == [1, 1, 0]
    assert labels.roles["peer2"].answers == ("1", "2", "0")


async def test_without_a_scorer_the_reference_says_what_is_right(tmp_path):
    items = [
        LabelItem(f"r-{n}", {"prompt": f"{n} + 1"}, {}, None, None, "same-as-reference", "null", source="samples:t")
        for n in (1, 7)
    ]
    out = tmp_path / "out.jsonl"
    done = await built(items, out)
    assert [row["scores"] for row in rows(out)] == [{"s": 1.0, "l": 1.0}, {"s": 0.0, "l": 1.0}]
    assert {row["kind"] for row in rows(out)} == {"shadow"}
    assert done.not_comparable == 0


async def test_an_item_without_an_answer_of_the_reference_is_no_label(tmp_path):
    class Silent(Models):
        async def complete(self, model: str, request: ChatRequest) -> Completion:
            return Completion(("" if model == "l" else "2.",), ("stop",), Usage())

    item = LabelItem("r", {"prompt": "1 + 1"}, {}, None, None, "same-as-reference", "null")
    done = await built([item], tmp_path / "out.jsonl", Silent())
    assert (done.rows, done.not_comparable) == (0, 1)


async def test_what_others_made_is_not_written_over(tmp_path):
    out = tmp_path / "out.jsonl"
    out.write_text('{"id": "q", "scores": {"s": 1}}\n')
    with pytest.raises(UsageError, match=r"out\.jsonl: line 1: was not made by `labels build`"):
        await built(sums(tmp_path, 1), out)
    assert out.read_text() == '{"id": "q", "scores": {"s": 1}}\n'


async def test_two_runs_of_one_output_do_not_mix(tmp_path):
    out = tmp_path / "out.jsonl"

    class Second(Models):
        async def complete(self, model: str, request: ChatRequest) -> Completion:
            with pytest.raises(UsageError, match="another run is making it"):
                await built(sums(tmp_path, 1), out)
            return Completion(("1",), ("stop",), Usage())

    assert (await built(sums(tmp_path, 1), out, Second())).rows == 1


async def test_progress_counts_what_was_done_before(tmp_path):
    out = tmp_path / "out.jsonl"
    await built(sums(tmp_path, 1), out)
    told: list[tuple[int, int, int]] = []
    await build_labels(sums(tmp_path, 2), out, SETTINGS, outside(Models(), told))
    assert told == [(2, 4, 0), (3, 4, 0), (4, 4, 0)]


async def test_truncated_and_estimated_answers_are_marked(tmp_path):
    class Odd(Models):
        async def complete(self, model: str, request: ChatRequest) -> Completion:
            return Completion(("1",), ("length",), Usage(1, output_tokens=1, estimated=model == "s"))

    done = await built(sums(tmp_path, 1), tmp_path / "out.jsonl", Odd())
    (row,) = rows(tmp_path / "out.jsonl")
    assert (row["truncated"], row["estimated"]) == (["s", "l"], ["s"])
    assert (done.truncated, done.estimated) == (2, 1)
