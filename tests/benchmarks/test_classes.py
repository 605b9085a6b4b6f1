"""The demonstration of latency classes: its figures and verdicts, without its minute of traffic."""

from __future__ import annotations

import pytest

from benchmarks.classes.cli import main
from benchmarks.classes.gateway import slots_in
from benchmarks.classes.report import Row, as_json, as_text, goals, quantile, rows_of
from benchmarks.classes.traffic import LOADS, Seen, engine
from llmrouter.testing.actions import Engine, Wait
from llmrouter.testing.records import Incoming

BODY = {"model": "m", "stream": True, "stream_options": {"include_usage": True}}
ALONE = Row("alone", "interactive", 50, 0, 0.2, 0.2, 1.0)


def together(
    *, interactive_s: float = 0.21, batch_slots: float = 10.5, standard_slots: float = 2.0, standard_s: float = 0.3
) -> list[Row]:
    return [
        Row("together", "interactive", 90, 0, 0.2, interactive_s, 2.0),
        Row("together", "standard", 90, 0, 0.2, standard_s, standard_slots),
        Row("together", "batch", 300, 3, 2.0, 3.0, batch_slots),
    ]


@pytest.mark.parametrize(
    ("rows", "met"),
    [
        (together(), [True, True, True]),
        (together(interactive_s=0.25), [False, True, True]),
        (together(batch_slots=9.0), [True, False, True]),
        (together(batch_slots=9.0, standard_slots=5.0), [True, True, True]),
        (together(standard_s=3.5), [True, True, False]),
    ],
    ids=["all", "slow-interactive", "idle-slots", "fewer-slots-left", "standard-behind-batch"],
)
def test_goals_are_held_against_what_was_measured(rows, met):
    assert [goal.met for goal in goals(ALONE, rows, slots=16, batch_most=11)] == met


def test_the_report_has_a_row_for_each_class_and_says_what_was_missed_and_refused():
    found = goals(ALONE, together(interactive_s=0.4), slots=16, batch_most=11)
    text = as_text([ALONE, *together()], found)
    assert "| together | batch | 300 | 2,000 ms | 3,000 ms | 10.5 |" in text
    assert "MISSED  2.00  interactive TTFT p95" in text
    assert "3 calls were refused" in text
    assert [goal["met"] for goal in as_json([ALONE], found)["goals"]] == [False, True, True]


def test_a_quantile_is_a_value_that_was_measured():
    assert [quantile([3.0, 1.0, 2.0, 4.0], share) for share in (0.5, 0.95)] == [2.0, 4.0]
    assert quantile([], 0.5) == 0.0


def test_slots_are_told_only_for_classes_that_calls_were_sent_as():
    row, other = rows_of("x", {"batch": Seen([0.1], 0, [10.0, 11.0]), "standard": Seen([0.1])})
    assert (row.slots, other.slots) == (10.5, None)
    assert as_text([other], []).splitlines()[2].endswith("|  |")


def test_slots_are_read_from_the_gateways_gauges():
    text = (
        'llmrouter_pool_in_flight{class="batch",pool="m"} 11.0\n'
        'llmrouter_pool_in_flight{class="interactive",pool="m"} 2.0\n'
        'llmrouter_pool_queued{class="batch",pool="m"} 29.0\n'
    )
    assert slots_in(text) == {"batch": 11.0, "interactive": 2.0}


async def test_the_engine_takes_each_class_its_own_time():
    """All waits of a stream add up to the load's service time, those before its first token to that of the output."""
    backend = engine()
    for name, load in LOADS.items():
        asked = Incoming(1, "POST", "/v1/chat/completions", (), b"", {**BODY, "messages": [{"content": name}]})
        plan = backend.default.plan(asked, Engine("vllm", ("m",), created=0))
        waits = [action.seconds for action in plan if isinstance(action, Wait)]
        assert sum(waits) == pytest.approx(load.service_s)
        assert sum(waits[:3]) == pytest.approx(load.first_output_s)


def test_wrong_use_ends_with_code_2():
    with pytest.raises(SystemExit) as left:
        main(["--unknown"])
    assert left.value.code == 2
