"""The servers of the tests themselves: each test finds them running and empty."""

import time

import psycopg
import pytest
import redis


@pytest.mark.parametrize("end", ["stop", "kill", "freeze"])
def test_redis_comes_back_at_the_same_address(redis_server, end):
    with redis.Redis.from_url(redis_server.url, socket_timeout=0.2) as client:
        client.set("a", "1")
    getattr(redis_server, end)()
    with redis.Redis.from_url(redis_server.url, socket_timeout=0.2) as client:
        with pytest.raises((redis.ConnectionError, redis.TimeoutError)):
            client.ping()
        redis_server.start()
        assert client.get("a") == (b"1" if end == "freeze" else None)


@pytest.mark.parametrize("round_", [1, 2])
def test_every_test_finds_an_empty_redis(redis_url, round_):
    with redis.Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0
        client.set("left", "behind")


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_postgresql_keeps_its_commits_over_a_restart(postgres_server, postgres_url, end):
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE TABLE kept (n integer)")
        connection.execute("INSERT INTO kept VALUES (7)")
    getattr(postgres_server, end)()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(postgres_url, connect_timeout=2)
    postgres_server.start()
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("SELECT n FROM kept").fetchall() == [(7,)]


@pytest.mark.parametrize("round_", [1, 2])
def test_every_test_finds_an_empty_postgresql_database(postgres_url, round_):
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone() == (0,)
        connection.execute("CREATE TABLE left_behind (n integer)")


def test_starting_a_running_server_changes_nothing(redis_server):
    with redis.Redis.from_url(redis_server.url) as client:
        client.set("a", "1")
        began = time.monotonic()
        redis_server.start()
        assert time.monotonic() - began < 1
        assert client.get("a") == b"1"
