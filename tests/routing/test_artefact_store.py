"""Artefacts in the store: signed, verified, immutable, and kept as long as a version refers to them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from llmrouter.database import change_counters, migrate
from llmrouter.errors import InternalError, NotFound, VersionConflict
from llmrouter.postgres import Postgres, migrate_postgres
from llmrouter.routing.artefact_store import ArtefactRefused, ArtefactStore
from llmrouter.routing.versions import Learned, RoutingStore
from llmrouter.shared_store import SharedStore, reading, writing
from llmrouter.types import Rule

START = datetime(2026, 12, 1, 12, tzinfo=UTC)
SECRET = b"a secret of some length"
FIRST, SECOND = b"what was learned" * 1000, b"what was learned later"
CODE = Rule("code", {"intent": "code"}, tier_role="large")


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SharedStore]:
    if request.param == "sqlite":
        path = tmp_path / "llmrouter.db"
        migrate(path)
        yield path
        return
    server = Postgres(request.getfixturevalue("postgres_url"))
    migrate_postgres(server)
    yield server
    server.close()


@pytest.fixture
def versions(database: SharedStore) -> RoutingStore:
    store = RoutingStore(database, now=lambda: START)
    store.seed([CODE])
    return store


def artefacts(database: SharedStore, *, secret: bytes = SECRET, after: timedelta = timedelta()) -> ArtefactStore:
    return ArtefactStore(database, secret, now=lambda: START + after)


def put(database: SharedStore, content: bytes = FIRST, *, after: timedelta = timedelta()) -> str:
    artefacts(database, after=after).put(digest_of(content), content, {"generic": False})
    return digest_of(content)


def test_what_was_put_comes_back_byte_for_byte(database: SharedStore):
    digest = put(database)
    assert artefacts(database).content(digest) == FIRST
    kept = artefacts(database).about(digest)
    assert (kept.digest, dict(kept.about), kept.created_at) == (digest, {"generic": False}, START)
    assert artefacts(database).list() == [kept]


def test_putting_it_again_changes_nothing(database: SharedStore):
    put(database)
    put(database, after=timedelta(hours=1))
    assert [kept.created_at for kept in artefacts(database).list()] == [START]


def test_an_artefact_that_is_not_there_is_not_found(database: SharedStore):
    with pytest.raises(NotFound, match="no artefact"):
        artefacts(database).content("0" * 64)


@pytest.mark.parametrize("column", ["content", "about", "signature"])
def test_an_artefact_that_was_changed_in_the_store_is_refused(database: SharedStore, column: str):
    digest = put(database)
    other = b"something else" if column == "content" else "{}"
    with writing(database) as connection:
        _without_trigger(connection, database)
        connection.execute(f"UPDATE artefacts SET {column} = ?", (other,))
    for reads in (artefacts(database).content, artefacts(database).about):
        with pytest.raises(ArtefactRefused, match=r"does not bear the signature.*publish it again.*or roll back"):
            reads(digest)
    with pytest.raises(ArtefactRefused):
        put(database)


def _without_trigger(connection, database: SharedStore) -> None:
    connection.execute(f"DROP TRIGGER artefacts_no_update{' ON artefacts' if isinstance(database, Postgres) else ''}")


def test_one_that_somebody_wrote_without_the_secret_is_refused(database: SharedStore):
    artefacts(database, secret=b"guessed wrong....").put(digest_of(FIRST), FIRST, {})
    with pytest.raises(ArtefactRefused):
        artefacts(database).content(digest_of(FIRST))


def test_one_that_was_moved_to_another_digest_is_refused(database: SharedStore):
    put(database)
    with writing(database) as connection:
        connection.execute(
            "INSERT INTO artefacts SELECT ?, content, about, signature, created_at FROM artefacts", ("f" * 64,)
        )
    with pytest.raises(ArtefactRefused):
        artefacts(database).content("f" * 64)


def test_an_artefact_cannot_be_changed_by_a_plain_update(database: SharedStore):
    put(database)
    with pytest.raises(InternalError), writing(database) as connection:
        connection.execute("UPDATE artefacts SET about = '{}'")


def test_a_version_carries_its_artefact_and_its_point(database: SharedStore, versions: RoutingStore):
    digest = put(database)
    done = versions.publish([CODE], base_version=1, author="me", learned=Learned(digest, 3))
    assert (done.artefact_digest, done.point) == (digest, 3)
    assert versions.current() == done
    assert versions.get(1).artefact_digest is None


def test_publishing_rules_alone_keeps_what_was_learned(database: SharedStore, versions: RoutingStore):
    digest = put(database)
    versions.publish([CODE], base_version=1, author="me", learned=Learned(digest, 3))
    done = versions.publish([], base_version=2, author="me")
    assert (done.rules, done.artefact_digest, done.point) == ((), digest, 3)
    back = versions.publish([], base_version=3, author="me", learned=Learned(None))
    assert (back.artefact_digest, back.point) == (None, None)


def test_a_rollback_brings_the_old_artefact_back(database: SharedStore, versions: RoutingStore):
    first, second = put(database), put(database, SECOND)
    versions.publish([CODE], base_version=1, author="me", learned=Learned(first, 3))
    versions.publish([], base_version=2, author="me", learned=Learned(second))
    back = versions.rollback(2, author="me")
    assert (back.version, back.rules, back.artefact_digest, back.point) == (4, (CODE,), first, 3)
    assert artefacts(database).content(first) == FIRST


def test_a_version_cannot_refer_to_an_artefact_that_is_not_there(database: SharedStore, versions: RoutingStore):
    with pytest.raises(NotFound, match="the store has no artefact 'aaaa") as refused:
        versions.publish([CODE], base_version=1, author="me", learned=Learned("a" * 64))
    assert refused.value.param == "artefact.digest"
    assert versions.current().version == 1


def test_two_who_publish_an_artefact_at_once_do_not_overwrite_each_other(database: SharedStore, versions: RoutingStore):
    first, second = put(database), put(database, SECOND)
    versions.publish([CODE], base_version=1, author="me", learned=Learned(first))
    with pytest.raises(VersionConflict):
        versions.publish([CODE], base_version=1, author="you", learned=Learned(second))
    assert versions.current().artefact_digest == first


def test_one_that_was_never_published_goes_after_a_day_and_a_published_one_never(
    database: SharedStore, versions: RoutingStore
):
    used, unused = put(database), put(database, SECOND)
    versions.publish([CODE], base_version=1, author="me", learned=Learned(used))
    versions.publish([CODE], base_version=2, author="me", learned=Learned(None))
    put(database, b"third", after=timedelta(hours=23))
    assert {kept.digest for kept in artefacts(database).list()} == {used, unused, digest_of(b"third")}
    put(database, b"fourth", after=timedelta(days=400))
    assert {kept.digest for kept in artefacts(database).list()} == {used, digest_of(b"fourth")}


def test_the_store_itself_keeps_an_artefact_that_a_version_refers_to(database: SharedStore, versions: RoutingStore):
    versions.publish([CODE], base_version=1, author="me", learned=Learned(put(database)))
    with pytest.raises(InternalError), writing(database) as connection:
        connection.execute("DELETE FROM artefacts")
    assert artefacts(database).content(digest_of(FIRST)) == FIRST


def test_a_tier_that_fell_back_is_told_to_everybody_once_and_until_the_next_version(
    database: SharedStore, versions: RoutingStore
):
    def counted() -> int:
        with reading(database) as connection:
            return change_counters(connection)["routing"]

    before = counted()
    assert versions.fall_back(1, "auto", "scores moved") is True
    assert counted() == before + 1
    assert versions.fall_back(1, "auto", "scores moved more") is False
    assert counted() == before + 1
    (fallback,) = versions.fallbacks(1).values()
    assert (fallback.tier_id, fallback.reason, fallback.raised_at) == ("auto", "scores moved", START)
    versions.publish([CODE], base_version=1, author="me")
    assert versions.fallbacks(2) == {}
    assert versions.fall_back(1, "other", "too late") is False
