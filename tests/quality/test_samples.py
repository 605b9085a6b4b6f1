"""What is kept of answered calls, by consent, and what becomes of the rest."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrouter.database import migrate, open_database
from llmrouter.quality.encryption import Vault, key_id
from llmrouter.quality.redaction import Redactor
from llmrouter.quality.sample_store import Selection, list_samples, read_sample, user_digest
from llmrouter.quality.samples import SampleBook, SamplePolicy, Tap, Terms, chosen
from llmrouter.tenancy_sections import REDACT_KINDS
from llmrouter.types import ChatRequest
from tests.quality.calls import NOW, answered, body, chat

KEY = bytes(range(32))
TERMS = Terms(rate=1.0, keep_days=30, redactor=Redactor(REDACT_KINDS), vault=None)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store.db"
    migrate(path)
    return path


def policy(terms: Terms = TERMS, max_bytes: int = 4096) -> SamplePolicy:
    return SamplePolicy({"a": terms}, max_bytes)


def kept(store: Path) -> list[str]:
    return [info.request_id for info in list_samples(store, Selection(), 1000)]


async def offered(store: Path, *calls: tuple[Any, ...], terms: Terms = TERMS) -> dict[str, int]:
    """Offer calls, let them be written, and return what became of them, without the zeros."""
    book = SampleBook(store, policy(terms))
    for call in calls:
        book.offer(*call)
    await book.aclose()
    return {name: count for name, count in book.counts().items() if count}


async def test_an_answered_call_of_a_tenant_that_consents_is_kept(store: Path):
    assert await offered(store, (answered(user_id="u1"), chat("What is 1+1?", seed=7), body("2"))) == {"kept": 1}
    sample = read_sample(store, "req_1", None)
    assert sample is not None
    assert sample.request == {"model": "auto", "messages": [{"role": "user", "content": "What is 1+1?"}], "seed": 7}
    assert sample.choices == [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "2"}}]
    info = sample.info
    assert (info.tenant_id, info.key_id, info.endpoint, info.tier, info.model_id) == ("a", "k1", "chat", "auto", "s")
    assert (info.routing_version, info.config_version, info.inclusion_probability) == (3, 2, 1.0)
    assert (info.ts, info.expires_at, info.sealed_by) == (NOW, NOW + timedelta(days=30), None)


async def test_without_consent_nothing_is_held_for_a_moment(store: Path):
    book = SampleBook(store, policy())
    book.offer(answered(tenant_id="b"), chat(), body())
    assert not book.wants("b", chat(), "req_1")
    assert book.tap("b", chat(stream=True), "req_1") is None
    assert book.queued == 0
    await book.aclose()
    assert kept(store) == []


@pytest.mark.parametrize(
    "fields",
    [
        {"status": 502, "model_id": None},
        {"status": 499, "aborted": True},
        {"status": 200, "error_code": "upstream_error"},
        {"status": 200, "model_id": None},
    ],
)
async def test_a_call_without_an_answer_is_no_sample(store: Path, fields: dict[str, Any]):
    assert await offered(store, (answered(**fields), chat(), None)) == {}


async def test_embeddings_are_no_samples(store: Path):
    request = ChatRequest(endpoint="embeddings", model="auto", fields={"input": "x"})
    assert await offered(store, (answered(endpoint="embeddings"), request, b"{}")) == {}


async def test_what_is_personal_is_masked_and_counted_before_it_is_written(store: Path):
    await offered(store, (answered(), chat("I am alice@example.com, call 555-123-4567"), body("Hi alice@example.com")))
    assert b"alice@" not in b"".join(each.read_bytes() for each in store.parent.iterdir())
    [info] = list_samples(store, Selection(), 10)
    assert info.redacted == {"email": 2, "phone": 1}


async def test_a_sealed_sample_holds_no_words_and_opens_with_its_key(store: Path):
    terms = Terms(1.0, 30, Redactor([]), Vault(KEY))
    assert await offered(store, (answered(), chat("a secret word"), body("another one")), terms=terms) == {"kept": 1}
    stored = b"".join(each.read_bytes() for each in store.parent.iterdir())
    assert b"secret word" not in stored
    assert b"another one" not in stored
    sample = read_sample(store, "req_1", Vault(None, [KEY]))
    assert sample is not None
    assert sample.info.sealed_by == key_id(KEY)
    assert sample.request["messages"][0]["content"] == "a secret word"
    assert sample.choices[0]["message"]["content"] == "another one"


async def test_the_end_user_is_kept_as_a_digest_only(store: Path):
    await offered(store, (answered(user_id="alice"), chat(), body()))
    assert b"alice" not in b"".join(each.read_bytes() for each in store.parent.iterdir())
    assert len(list_samples(store, Selection(tenant_id="a", user_id="alice"), 10)) == 1
    assert user_digest("a", "alice") != user_digest("b", "alice")


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (chat("x" * 5000), body()),
        (chat("Hi", metadata={"x": "y" * 5000}), body()),
        (chat(), body("x" * 5000)),
    ],
)
async def test_what_is_longer_than_the_bound_is_not_kept(store: Path, request_: ChatRequest, answer: bytes):
    assert await offered(store, (answered(), request_, answer)) == {"too_large": 1}


async def test_a_large_picture_is_seen_without_being_written(store: Path):
    parts = [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 5000}}]
    request = ChatRequest("chat", "auto", {"messages": [{"role": "user", "content": parts}]}, media_parts=1)
    book = SampleBook(store, policy())
    book.offer(answered(), request, body())
    assert book.queued == 0
    assert book.counts()["too_large"] == 1
    await book.aclose()


async def test_what_cannot_be_masked_is_not_kept_and_counted(store: Path):
    tokens = ChatRequest("completions", "auto", {"prompt": [1, 2, 3]})
    assert await offered(store, (answered(), tokens, body()), (answered("r2"), chat(), b"no json")) == {"unfit": 2}
    assert kept(store) == []


async def test_a_stream_is_kept_as_the_answer_it_made(store: Path):
    book = SampleBook(store, policy())
    request = chat(stream=True)
    tap = book.tap("a", request, "req_1")
    assert tap is not None
    for text in ("Hel", "lo"):
        tap.add(b"data: %s\n\n" % json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}).encode())
    tap.add(b"data: [DONE]\n\n")
    book.offer(answered(stream=True), request, tap.answer)
    await book.aclose()
    sample = read_sample(store, "req_1", None)
    assert sample is not None
    assert sample.choices[0]["message"]["content"] == "Hello"


def test_a_tap_lets_go_of_a_stream_that_is_too_long():
    tap = Tap(10)
    tap.add(b"12345")
    assert tap.answer == b"12345"
    tap.add(b"123456")
    tap.add(b"1")
    assert tap.answer is None


async def test_an_answer_that_is_not_at_hand_leaves_the_request_alone(store: Path):
    assert await offered(store, (answered(stream=True), chat(stream=True), None)) == {"kept": 1}
    sample = read_sample(store, "req_1", None)
    assert sample is not None
    assert sample.choices is None


async def test_the_same_call_is_kept_once(store: Path):
    await offered(store, (answered(), chat("one"), body()), (answered(), chat("two"), body()))
    assert kept(store) == ["req_1"]


class Gate:
    """Opens the store when it is told to, so that a queue can be seen full."""

    def __init__(self) -> None:
        self.reached, self.go = threading.Event(), threading.Event()

    def __call__(self, path: Path) -> sqlite3.Connection:
        self.reached.set()
        assert self.go.wait(10)
        return open_database(path)


@pytest.mark.parametrize("bound", [{"max_queue": 2}, {"max_queued_bytes": 3 * (2 + len(body()))}])
async def test_what_comes_faster_than_it_is_written_is_dropped_and_counted(store: Path, bound: dict[str, int]):
    gate = Gate()
    book = SampleBook(store, policy(), connect=gate, **bound)
    book.offer(answered("first"), chat(), body())
    assert gate.reached.wait(10)
    for number in range(5):
        book.offer(answered(f"r{number}"), chat(), body())
    gate.go.set()
    await book.aclose()
    counts = book.counts()
    assert (counts["kept"], counts["dropped"]) == (3, 3)
    assert kept(store) == ["r1", "r0", "first"]


async def test_a_store_that_is_down_costs_samples_and_not_the_thread(store: Path):
    """The next samples are written as soon as it is back."""
    down = [True]
    written = threading.Event()

    def connect(path: Path) -> sqlite3.Connection:
        if down.pop() if down else False:
            written.set()
            raise sqlite3.OperationalError("unable to open database file")
        return open_database(path)

    book = SampleBook(store, policy(), connect=connect)
    book.offer(answered("lost"), chat(), body())
    assert written.wait(10)
    book.offer(answered("kept"), chat(), body())
    await book.aclose()
    counts = book.counts()
    assert (counts["failed"], counts["kept"]) == (1, 1)
    assert kept(store) == ["kept"]


async def test_consent_that_was_withdrawn_holds_for_what_was_waiting(store: Path):
    gate = Gate()
    book = SampleBook(store, policy(), connect=gate)
    book.offer(answered("first"), chat(), body())
    assert gate.reached.wait(10)
    book.offer(answered("second"), chat(), body())
    book.policy = SamplePolicy({}, 4096)
    gate.go.set()
    await book.aclose()
    assert book.counts()["withdrawn"] == 1
    assert kept(store) == ["first"]


async def test_closing_writes_what_waits_and_may_be_repeated(store: Path):
    book = SampleBook(store, policy())
    for number in range(100):
        book.offer(answered(f"r{number}"), chat(), body())
    await book.aclose()
    await book.aclose()
    assert len(kept(store)) == 100
    book.offer(answered("late"), chat(), body())
    assert book.counts()["dropped"] == 1


async def test_a_book_that_was_offered_nothing_has_no_thread(store: Path):
    before = threading.active_count()
    book = SampleBook(store, policy())
    assert threading.active_count() == before
    await book.aclose()


async def test_g109_what_was_offered_is_let_go_of(store: Path):
    """Neither the book nor its thread holds a prompt after it was written or refused."""
    import gc
    import weakref

    class Watched(dict[str, Any]):
        pass

    def one(text: str) -> tuple[ChatRequest, Callable[[], Any]]:
        fields = Watched(chat(text).fields)
        return ChatRequest("chat", "auto", fields, text_bytes=len(text)), weakref.ref(fields)

    book = SampleBook(store, policy())
    refs = []
    for number, text in enumerate(["Hi", "x" * 5000]):
        request, ref = one(text)
        book.offer(answered(f"r{number}"), request, body())
        refs.append(ref)
    del request
    await book.aclose()
    gc.collect()
    assert [ref() for ref in refs] == [None, None]


@given(st.text(max_size=30), st.floats(0.0001, 1), st.floats(0.0001, 1))
def test_gateways_agree_and_a_higher_rate_keeps_what_a_lower_one_did(request_id: str, one: float, other: float):
    assert chosen(request_id, one) == chosen(request_id, one)
    if chosen(request_id, min(one, other)):
        assert chosen(request_id, max(one, other))
    assert chosen(request_id, 1.0)


def test_the_share_that_is_kept_is_the_rate():
    """Within five standard deviations, over ids as the gateway makes them."""
    count, rate = 20_000, 0.1
    taken = sum(chosen(f"req_019a6f3c{number:018x}", rate) for number in range(count))
    assert abs(taken - count * rate) < 5 * (count * rate * (1 - rate)) ** 0.5
