"""Samples in the store: read in parts, deleted for good."""

from __future__ import annotations

import subprocess
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from llmrouter.database import migrate, open_database, reading, writing
from llmrouter.errors import InternalError, UsageError
from llmrouter.quality.encryption import CannotOpen, Vault, key_id
from llmrouter.quality.label_store import LabelFilter, LabelWriter, rows_of
from llmrouter.quality.labels import read_row
from llmrouter.quality.sample_store import (
    NewSample,
    SampleInfo,
    Selection,
    add_samples,
    count_samples,
    delete_samples,
    erase_log,
    list_samples,
    purge_expired,
    read_sample,
    read_samples,
    user_digest,
)
from tests.quality.calls import NOW

INFO = SampleInfo(
    request_id="r",
    ts=NOW,
    tenant_id="a",
    key_id="k",
    endpoint="chat",
    tier="auto",
    model_id="s",
    routing_version=1,
    config_version=1,
    redacted={"email": 2},
    sealed_by=None,
    inclusion_probability=0.25,
    expires_at=NOW + timedelta(days=1),
)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store.db"
    migrate(path)
    return path


def fill(store: Path, *ids: str, user: str | None = None, request: Any = '{"prompt":"Hi"}', **fields: Any) -> None:
    digest = user_digest(fields.get("tenant_id", "a"), user) if user is not None else None
    samples = [NewSample(replace(INFO, request_id=each, **fields), digest, request, None) for each in ids]
    connection = open_database(store)
    add_samples(connection, samples)
    connection.close()


def ids(store: Path, **wanted: Any) -> list[str]:
    return [info.request_id for info in list_samples(store, Selection(**wanted), 1000)]


def test_what_was_written_reads_back(store: Path):
    fill(store, "r")
    sample = read_sample(store, "r", None)
    assert sample is not None
    assert (sample.info, sample.request, sample.choices) == (INFO, {"prompt": "Hi"}, None)
    assert read_sample(store, "nobody", None) is None


def test_samples_are_read_in_parts_and_each_once(store: Path):
    names = [f"r{number}" for number in range(10)]
    fill(store, *names)
    for at_once in (1, 3, 5, 10, 11):
        found = [each.info.request_id for each in read_samples(store, Selection(), None, at_once=at_once)]
        assert found == names


def test_a_sample_is_found_by_tenant_user_and_request(store: Path):
    fill(store, "r1", user="u1")
    fill(store, "r2", user="u2")
    fill(store, "r3", user="u1", tenant_id="b")
    assert ids(store, tenant_id="a") == ["r2", "r1"]
    assert ids(store, tenant_id="a", user_id="u1") == ["r1"]
    assert ids(store, tenant_id="b", request_id="r1") == []
    with pytest.raises(UsageError, match="name the tenant too"):
        ids(store, user_id="u1")


@pytest.mark.parametrize(
    ("wanted", "left"),
    [
        ({"tenant_id": "a"}, ["r3"]),
        ({"tenant_id": "a", "user_id": "u1"}, ["r3", "r2"]),
        ({"tenant_id": "a", "request_id": "r2"}, ["r3", "r1"]),
    ],
)
def test_what_is_deleted_is_what_was_meant(store: Path, wanted: dict[str, Any], left: list[str]):
    fill(store, "r1", user="u1")
    fill(store, "r2", user="u2")
    fill(store, "r3", user="u1", tenant_id="b")
    gone = count_samples(store, Selection(**wanted))
    assert delete_samples(store, Selection(**wanted), at_once=1) == gone
    assert ids(store) == left


def test_deleted_words_are_nowhere_in_the_files(store: Path):
    fill(store, "r1", request='{"prompt":"the quick brown fox"}')
    fill(store, "r2", request='{"prompt":"a lazy dog"}', tenant_id="b")
    delete_samples(store, Selection(tenant_id="a"))
    erase_log(store)
    connection = open_database(store)  # the last to close it takes the log away
    connection.close()
    stored = b"".join(each.read_bytes() for each in store.parent.iterdir())
    assert b"quick brown fox" not in stored
    assert b"lazy dog" in stored


def test_deleted_words_leave_the_log_also_while_others_have_the_file_open(store: Path):
    with closing(open_database(store)) as gateway:
        gateway.execute("PRAGMA wal_autocheckpoint = 0")
        fill(store, "r1", request='{"prompt":"the quick brown fox"}')
        delete_samples(store, Selection(tenant_id="a"))
        gateway.execute("BEGIN")
        gateway.execute("SELECT count(*) FROM samples").fetchone()
        assert not erase_log(store, patience_s=0)
        gateway.execute("COMMIT")
        assert erase_log(store)
        # Read by another process: to close a file of a database here would drop SQLite's locks on it.
        found = subprocess.run(["grep", "-rc", "quick brown fox", str(store.parent)], capture_output=True, text=True)
    assert {line.rpartition(":")[2] for line in found.stdout.splitlines()} == {"0"}


@pytest.mark.parametrize(("after", "left"), [(timedelta(0), []), (-timedelta(microseconds=1), ["r1"])])
def test_a_sample_goes_when_its_time_is_over_and_not_before(store: Path, after: timedelta, left: list[str]):
    fill(store, "r1")
    moment: datetime = INFO.expires_at + after
    assert purge_expired(store, moment) == 1 - len(left)
    assert ids(store) == left


def test_many_expired_samples_go_in_parts(store: Path):
    fill(store, *(f"r{number}" for number in range(7)))
    fill(store, "later", expires_at=NOW + timedelta(days=9))
    assert purge_expired(store, NOW + timedelta(days=2), at_once=3) == 7
    assert ids(store) == ["later"]
    assert purge_expired(store, NOW + timedelta(days=2)) == 0


def test_what_has_expired_is_not_shown_before_it_is_deleted(store: Path):
    fill(store, "r1")
    assert ids(store, alive_at=INFO.expires_at - timedelta(seconds=1)) == ["r1"]
    assert ids(store, alive_at=INFO.expires_at) == []


def test_with_a_sample_go_the_words_of_its_labels_and_the_scores_stay(store: Path):
    fill(store, "r1")
    labels = {
        "id": "r1",
        "prompt": "Hi",
        "scores": {"s": 1, "l": 0},
        "answers": {"s": "42"},
        "note": "words",
        "group": "g",
    }
    with LabelWriter.of(store) as writer:
        writer.add([read_row(labels), read_row({**labels, "id": "other"})], NOW)
    delete_samples(store, Selection(tenant_id="a"))
    assert list(rows_of(store, LabelFilter())) == [
        {"id": "r1", "group": "g", "scores": {"s": 1, "l": 0}},
        {**labels, "id": "other"},
    ]
    with LabelWriter.of(store) as writer:
        writer.add([read_row(labels)], NOW)
    assert next(rows_of(store, LabelFilter()))["id"] == "r1"
    assert "prompt" not in next(rows_of(store, LabelFilter()))


def test_a_sealed_sample_needs_its_key(store: Path):
    vault = Vault(bytes(32))
    fill(
        store,
        "r1",
        request=vault.seal(b'{"prompt":"Hi"}', request_id="r1", part="request"),
        sealed_by=key_id(bytes(32)),
    )
    with pytest.raises(CannotOpen, match=r"set samples\.key"):
        read_sample(store, "r1", None)
    with pytest.raises(CannotOpen, match=r"put that key into samples\.old_keys"):
        read_sample(store, "r1", Vault(bytes([1]) * 32))
    sample = read_sample(store, "r1", vault)
    assert sample is not None
    assert sample.request == {"prompt": "Hi"}


def test_a_sealed_request_that_was_moved_to_another_sample_is_noticed(store: Path):
    vault = Vault(bytes(32))
    fill(store, "r2", request=vault.seal(b"{}", request_id="r1", part="request"), sealed_by=key_id(bytes(32)))
    with pytest.raises(CannotOpen, match="was changed"):
        read_sample(store, "r2", vault)


def test_a_sample_is_never_changed(store: Path):
    fill(store, "r1")
    with pytest.raises(InternalError), writing(store) as connection:
        connection.execute("UPDATE samples SET tenant_id = 'b'")


@pytest.mark.parametrize("fields", [{"sealed_by": "k"}, {"inclusion_probability": 0.0}, {"inclusion_probability": 1.5}])
def test_the_table_holds_what_it_promises(store: Path, fields: dict[str, Any]):
    import sqlite3

    with pytest.raises(sqlite3.IntegrityError):
        fill(store, "r1", **fields)
    with reading(store) as connection:
        assert connection.execute("SELECT count(*) FROM samples").fetchone() == (0,)
