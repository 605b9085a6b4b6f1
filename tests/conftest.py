"""Fixtures for all tests: the servers of outgrown stores, started once at first use."""

from collections.abc import Iterator

import pytest

from tests.servers import PostgresServer, RedisServer, fresh_database


@pytest.fixture(scope="session")
def shared_redis() -> Iterator[RedisServer]:
    server = RedisServer()
    server.start()
    yield server
    server.remove()


@pytest.fixture
def redis_server(shared_redis: RedisServer) -> RedisServer:
    """A running, empty Redis, which the test may stop, freeze and kill."""
    shared_redis.start()
    shared_redis.clear()
    return shared_redis


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """The address of a running, empty Redis."""
    return redis_server.url


@pytest.fixture(scope="session")
def shared_postgres() -> Iterator[PostgresServer]:
    server = PostgresServer()
    server.start()
    yield server
    server.remove()


@pytest.fixture
def postgres_server(shared_postgres: PostgresServer) -> PostgresServer:
    """A running PostgreSQL, which the test may stop, freeze and kill."""
    shared_postgres.start()
    return shared_postgres


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The address of an empty PostgreSQL database of this test alone."""
    with fresh_database(postgres_server) as url:
        yield url
