"""What of a request and an answer is kept."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from llmrouter.quality.content import Unreadable, kept_answer, kept_request
from llmrouter.quality.redaction import Redactor
from llmrouter.tenancy_sections import REDACT_KINDS

ALL, NONE = Redactor(REDACT_KINDS), Redactor([])


def kept(fields: dict[str, Any], redactor: Redactor = ALL) -> Any:
    return kept_request(fields, redactor, Counter())


def answer(choice: dict[str, Any]) -> bytes:
    return json.dumps({"id": "x", "choices": [choice], "usage": {"prompt_tokens": 1}}).encode()


def test_parameters_stay_as_they_were_sent():
    fields = {
        "model": "auto",
        "messages": [{"role": "user", "content": "Hi"}],
        "temperature": 0.5,
        "seed": 4111111111111111,
    }
    assert kept(fields) == fields


def test_the_names_of_end_users_are_masked():
    counts: Counter[str] = Counter()
    found = kept_request({"user": "alice", "safety_identifier": "u-1", "prompt": "x"}, ALL, counts)
    assert found == {"user": "[user]", "safety_identifier": "[user]", "prompt": "x"}
    assert counts == {"user": 2}


def test_pictures_sound_and_files_are_masked_and_addresses_of_them_are_not():
    parts = [
        {"type": "text", "text": "data: of alice@example.com"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}},
        {"type": "image_url", "image_url": {"url": "https://img.example/a.png"}},
        {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,AAAA", "filename": "a.pdf"}},
    ]
    [message] = kept({"messages": [{"role": "user", "content": parts}]})["messages"]
    assert message["content"] == [
        {"type": "text", "text": "data: of [email]"},
        {"type": "image_url", "image_url": {"url": "[media]", "detail": "low"}},
        {"type": "image_url", "image_url": {"url": "https://img.example/a.png"}},
        {"type": "input_audio", "input_audio": {"data": "[media]", "format": "wav"}},
        {"type": "file", "file": {"file_data": "[media]", "filename": "a.pdf"}},
    ]


def test_a_tenant_that_wants_nothing_masked_keeps_it_as_it_was():
    fields = {"user": "alice", "messages": [{"content": [{"type": "image_url", "image_url": {"url": "data:x"}}]}]}
    assert kept(fields, NONE) == fields


@pytest.mark.parametrize("prompt", [[1, 2, 3], [[1, 2], [3]], ["text", 4]])
def test_a_prompt_of_token_numbers_cannot_be_masked_and_is_not_kept(prompt: list[Any]):
    with pytest.raises(Unreadable, match="token numbers"):
        kept({"prompt": prompt})
    assert kept({"prompt": prompt}, NONE) == {"prompt": prompt}


def test_an_answer_is_kept_as_its_words_without_log_probabilities():
    choice = {
        "index": 0,
        "finish_reason": "stop",
        "message": {"role": "assistant", "content": "I am bot@example.com", "refusal": None, "annotations": []},
        "logprobs": {"content": [{"token": "bot", "logprob": -0.1}]},
    }
    assert kept_answer(answer(choice), ALL, Counter(), stream=False) == [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "I am [email]"}}
    ]


def test_the_answer_of_a_stream_is_masked_once_it_is_whole():
    """An address that came in two chunks is found."""
    chunks = [{"choices": [{"index": 0, "delta": {"content": text}}]} for text in ("al", "ice@exam", "ple.com")]
    events = b"".join(b"data: %s\n\n" % json.dumps(chunk).encode() for chunk in chunks)
    [choice] = kept_answer(events, ALL, Counter(), stream=True)
    assert choice["message"] == {"content": "[email]"}


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"5", b'{"choices": 5}', b'{"choices": [5]}', b'{"data": []}'])
def test_what_is_no_answer_is_not_kept(body: bytes):
    with pytest.raises(Unreadable):
        kept_answer(body, ALL, Counter(), stream=False)
