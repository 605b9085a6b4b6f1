"""Whether the server's connections suffice for this gateway, asked before it starts."""

from contextlib import closing

import pytest

from llmrouter.errors import ConfigError
from llmrouter.ledger.postgres.room import check_room, connections_of
from llmrouter.postgres import Postgres


def test_a_gateway_needs_one_connection_a_worker_and_two_more():
    assert connections_of(4) == 6


def test_where_there_is_room_nothing_is_said(server):
    assert check_room(server, connections_of(8)) is None


def test_g103_more_workers_than_the_server_has_connections_are_refused(server):
    with pytest.raises(ConfigError, match="allows 97 connections but this gateway needs 98; raise its"):
        check_room(server, 98)


def test_g103_a_limit_of_the_database_counts_too(server, postgres_url):
    name = postgres_url.rsplit("/", 1)[1]
    with closing(server.connect()) as connection:
        connection.execute(f"ALTER DATABASE {name} CONNECTION LIMIT 4".encode())
    assert check_room(server, 4) is None
    with pytest.raises(ConfigError, match="allows 4 connections but this gateway needs 5"):
        check_room(server, 5)


def test_g103_connections_that_others_hold_are_warned_of(server, postgres_url):
    others = [Postgres(postgres_url).connect() for _ in range(5)]
    warning = check_room(server, 95)
    for other in others:
        other.close()
    assert warning is not None
    assert "this gateway needs up to 95" in warning
