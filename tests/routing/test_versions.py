"""Routing versions in the store: compare-and-set, immutable, rolled back by publishing again."""

import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrouter.database import change_counters, migrate, open_database
from llmrouter.errors import InternalError, NotFound, RequestError, StoreUnavailable, VersionConflict
from llmrouter.postgres import Postgres, migrate_postgres
from llmrouter.routing.versions import RoutingStore
from llmrouter.shared_store import SharedStore, reading, writing
from llmrouter.types import RoutingVersion, Rule

START = datetime(2026, 12, 1, 12, tzinfo=UTC)
CODE = Rule("code", {"intent": "code"}, tier_role="large", priority=10)
CANARY = Rule("canary", {"tenant": ["acme", "other"], "input_tokens": {"max": 500}}, model_id="m9", weight=0.25)

names = st.text(st.characters(codec="utf-8"), max_size=10)
matches = st.dictionaries(
    names, names | st.integers(0, 2**53) | st.booleans() | st.lists(names, max_size=3) | st.dictionaries(names, names)
)
rules = st.builds(
    Rule,
    rule_id=names,
    match=matches,
    model_id=st.none() | names,
    tier_role=st.none() | names,
    weight=st.floats(0, 1e6),
    priority=st.integers(-(10**6), 10**6),
)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request, tmp_path):
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
def store(database):
    return RoutingStore(database, now=lambda: START)


def counter(database: SharedStore) -> int:
    with reading(database) as connection:
        return change_counters(connection)["routing"]


def test_the_first_rules_are_version_1(store):
    seeded = store.seed([CODE])
    assert seeded == RoutingVersion(1, (CODE,), START, "configuration", seeded.note, base_version=0)
    assert store.current() == seeded


def test_seeding_again_changes_nothing(store, database):
    first = store.seed([CODE])
    assert store.seed([CANARY]) == first
    assert store.history() == [first]
    assert counter(database) == 1


def test_an_empty_set_of_rules_is_a_version(store):
    assert store.seed([]).rules == ()
    assert store.current().version == 1


def test_processes_that_start_at_once_seed_once(store):
    with ThreadPoolExecutor(8) as pool:
        seeded = list(pool.map(lambda number: store.seed([Rule(f"r{number}", {})]), range(8)))
    assert all(version == seeded[0] for version in seeded)
    assert len(store.history()) == 1


def test_publishing_makes_the_next_version(store, database):
    store.seed([CODE])
    published = store.publish([CANARY, CODE], base_version=1, author="ada", note="try m9")
    assert published == RoutingVersion(2, (CANARY, CODE), START, "ada", "try m9", base_version=1)
    assert store.current() == published
    assert store.get(1).rules == (CODE,)
    assert counter(database) == 2


def test_publishing_on_an_old_version_is_refused_and_names_the_current_one(store, database):
    store.seed([CODE])
    store.publish([CANARY], base_version=1, author="ada")
    with pytest.raises(VersionConflict, match="current routing version is 2, not 1"):
        store.publish([], base_version=1, author="bob")
    assert store.current().version == 2
    assert counter(database) == 2


def test_an_empty_store_is_published_to_on_base_0(store):
    with pytest.raises(VersionConflict, match="is 0, not 1"):
        store.publish([CODE], base_version=1, author="ada")
    assert store.publish([CODE], base_version=0, author="ada").version == 1


def test_of_several_publishers_at_once_one_wins(store):
    store.seed([])

    def publish(number: int) -> int | None:
        try:
            published = store.publish([Rule(f"r{number}", {})], base_version=1, author=f"a{number}")
        except VersionConflict:
            return None
        return int(published.version)

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(publish, range(8)))
    assert sorted(outcomes, key=str) == [2, *[None] * 7]
    assert len(store.history()) == 2


def test_a_rollback_publishes_the_old_rules_as_a_new_version(store):
    store.seed([CODE])
    store.publish([CANARY], base_version=1, author="ada")
    back = store.rollback(1, author="monitor", note="quality fell")
    assert back == RoutingVersion(3, (CODE,), START, "monitor", "quality fell", base_version=2, rolled_back_to=1)
    assert store.current() == back
    assert [version.version for version in store.history()] == [3, 2, 1]


def test_a_rollback_can_insist_on_what_it_saw(store):
    store.seed([CODE])
    store.publish([CANARY], base_version=1, author="ada")
    with pytest.raises(VersionConflict, match="is 2, not 1"):
        store.rollback(1, base_version=1, author="bob")
    assert store.rollback(1, base_version=2, author="bob").version == 3


def test_a_rollback_to_nowhere_changes_nothing(store):
    store.seed([CODE])
    with pytest.raises(NotFound, match="no routing version 9; the newest is 1"):
        store.rollback(9, author="bob")
    assert store.current().version == 1


def test_history_has_a_limit_and_the_newest_first(store):
    store.seed([])
    for base in range(1, 5):
        store.publish([Rule(f"r{base}", {})], base_version=base, author="ada")
    assert [(version.version, len(version.rules)) for version in store.history(2)] == [(5, 1), (4, 1)]
    assert [version.version for version in store.history(99)] == [5, 4, 3, 2, 1]


def test_a_store_without_versions_says_so(store):
    with pytest.raises(NotFound, match="no routing version is published yet"):
        store.current()
    assert store.history() == []


def test_two_rules_with_one_id_are_refused(store):
    store.seed([])
    with pytest.raises(RequestError, match="two rules are called 'code'") as caught:
        store.publish([CODE, CANARY, CODE], base_version=1, author="ada")
    assert caught.value.param == "rules"
    assert store.current().version == 1


def test_a_version_is_dated_when_it_is_published(database):
    moments = iter([START, START + timedelta(hours=1)])
    store = RoutingStore(database, now=lambda: next(moments))
    store.seed([])
    assert store.publish([], base_version=1, author="ada").created_at == START + timedelta(hours=1)


@settings(deadline=None, max_examples=40)
@given(st.lists(rules, max_size=5, unique_by=lambda rule: rule.rule_id))
def test_rules_read_back_equal_and_in_order(module_store, made):
    base = module_store.history(1)[0].version
    published = module_store.publish(made, base_version=base, author="ada")
    assert published.rules == tuple(made)
    assert module_store.get(published.version) == published


@pytest.fixture(scope="module")
def module_store(tmp_path_factory):
    path = tmp_path_factory.mktemp("routing") / "llmrouter.db"
    migrate(path)
    store = RoutingStore(path)
    store.seed([])
    with closing(open_database(path)):  # whoever closes a database last merges its log, which takes long
        yield store


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE routing_rules SET weight = 0",
        "DELETE FROM routing_rules",
        "INSERT INTO routing_rules VALUES (1, 9, 'late', '{}', 'm', NULL, 1, 0)",
        "INSERT OR REPLACE INTO routing_rules VALUES (1, 0, 'code', '{}', 'm', NULL, 1, 0)",
        "UPDATE routing_versions SET note = 'x'",
        "DELETE FROM routing_versions",
        "INSERT OR REPLACE INTO routing_versions VALUES (1, 't', 'x', 'x', 0, NULL, NULL, NULL)",
        "INSERT INTO routing_versions VALUES (7, 't', 'x', 'x', 0, NULL, NULL, NULL)",
    ],
)
def test_a_published_version_cannot_be_changed_and_no_number_comes_twice(store, database, statement):
    published = store.seed([CODE])
    if "OR REPLACE" in statement and isinstance(database, Postgres):
        statement = statement.replace("OR REPLACE ", "") + " ON CONFLICT DO NOTHING"
    with pytest.raises(InternalError) as refused, writing(database) as connection:
        connection.execute(statement)
    assert re.search("immutable|numbers go up", str(refused.value.__cause__))
    assert store.history() == [published]


def test_a_store_that_is_down_is_named_so(tmp_path):
    store = RoutingStore(tmp_path / "llmrouter.db")
    for call in (store.current, store.history, lambda: store.seed([])):
        with pytest.raises(StoreUnavailable, match="cannot be opened"):
            call()
