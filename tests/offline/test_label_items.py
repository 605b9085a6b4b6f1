"""Items of golden files and of samples: what is read and what is refused."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from llmrouter.errors import UsageError
from llmrouter.offline.label_items import read_golden, sample_items
from llmrouter.quality.sample_store import Sample, SampleInfo

GOOD = {"id": "q", "prompt": "1 + 1?", "expected": 2, "scorer": "number"}


def write(folder: Path, *rows: Any) -> Path:
    path = folder / "golden.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_an_item_becomes_a_request(tmp_path):
    tools = [{"type": "function", "function": {"name": "f"}}]
    row = {**GOOD, "tools": tools, "max_tokens": 7, "cluster": "sums", "source": {"set": "gsm8k", "licence": "MIT"}}
    (item,) = read_golden(write(tmp_path, row))
    request = item.request("small", temperature=0)
    assert request.fields == {
        "model": "small",
        "messages": [{"role": "user", "content": "1 + 1?"}],
        "tools": tools,
        "temperature": 0,
    }
    assert (item.max_tokens, request.last_user_text, request.text_bytes) == (7, "1 + 1?", 6)
    assert (item.group, item.source, item.judge) == ("sums", "gsm8k", "number")


def test_the_last_user_turn_of_messages_is_the_ask(tmp_path):
    messages = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": [{"type": "text", "text": "Say"}, {"type": "text", "text": "hi"}]},
    ]
    (item,) = read_golden(write(tmp_path, {"id": 7, "messages": messages, "expected": "hi", "scorer": "contains"}))
    assert item.item_id == "7"
    assert item.request("m").last_user_text == "Say hi"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": None}, "id: must be text"),
        ({"scorer": "judge"}, "scorer: 'judge' is none of"),
        ({"scorer": None}, "scorer: None is none of"),
        ({"expected": "x"}, "expected: must be a number"),
        ({"prompt": None}, "give exactly one of prompt and messages"),
        ({"messages": [{}]}, "give exactly one of prompt and messages"),
        ({"prompt": 3}, "prompt: must be text"),
        ({"prompt": None, "messages": "hi"}, "messages: must be a list"),
        ({"max_tokens": 0}, "max_tokens: must be a whole number"),
        ({"group": ["a"]}, "group: must be text"),
    ],
)
def test_a_faulty_item_is_refused_with_file_line_and_key(tmp_path, change, message):
    path = write(tmp_path, GOOD, {**GOOD, "id": "r", **change})
    with pytest.raises(UsageError) as caught:
        read_golden(path)
    assert caught.value.message.startswith(f"{path}: line 2: {message}")


def test_all_faults_are_told_but_no_flood(tmp_path):
    path = write(tmp_path, *[{"id": str(n)} for n in range(9)])
    with pytest.raises(UsageError) as caught:
        read_golden(path)
    assert len(caught.value.message.splitlines()) == 6
    assert caught.value.message.endswith("and 4 more")


def test_an_id_twice_is_refused(tmp_path):
    with pytest.raises(UsageError, match="line 2: id: 'q' is there already"):
        read_golden(write(tmp_path, GOOD, GOOD))


def test_an_empty_file_is_refused(tmp_path):
    with pytest.raises(UsageError, match="holds no items"):
        read_golden(write(tmp_path))


def sample(tenant: str, **request: Any) -> Sample:
    now = datetime(2026, 12, 1, tzinfo=UTC)
    info = SampleInfo("req_1", now, tenant, "k", "chat", "auto", "m", 1, 1, {}, None, 0.25, now + timedelta(days=1))
    return Sample(info, request, None)


def test_samples_are_asked_again_as_they_came_without_what_identifies():
    messages = [{"role": "user", "content": "hi"}]
    given = sample("t", messages=messages, user="u", max_tokens=5, temperature=1, stream=True, stop=["x"])
    (item,) = sample_items(iter([given]), frozenset({"t"}))
    assert item is not None
    assert item.request("m").fields == {"model": "m", "messages": messages, "stop": ["x"]}
    assert (item.item_id, item.max_tokens, item.source, item.inclusion_probability) == ("req_1", 5, "samples:t", 0.25)
    assert item.scorer is None


def test_samples_of_tenants_that_do_not_consent_now_are_left():
    given = [sample("gone", prompt="hi"), sample("t", prompt=[1, 2]), sample("t", prompt="hi")]
    items = list(sample_items(iter(given), frozenset({"t"})))
    assert [item is None for item in items] == [True, True, False]
