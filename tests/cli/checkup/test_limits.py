"""What `doctor` says of the store of shared limits."""

from __future__ import annotations

import pytest
import redis
from pydantic import SecretStr

from llmrouter.cli.checkup.limits import check_limits
from llmrouter.config import StoreConfig


def findings(url: str) -> list[tuple[str, str, str]]:
    return [(each.status, each.aspect, each.message) for each in check_limits(StoreConfig(limits_url=SecretStr(url)))]


def test_a_server_that_can_be_reached_and_forgets_nothing_is_fine(redis_url):
    assert [status for status, _, _ in findings(redis_url)] == ["ok", "ok", "info"]


def test_a_server_that_may_forget_is_warned_of(redis_url):
    with redis.Redis.from_url(redis_url) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        try:
            reachable, keeps, _ = findings(redis_url)
        finally:
            client.config_set("maxmemory-policy", "noeviction")
    assert reachable[0] == "ok"
    assert keeps == ("warning", "keeps", "maxmemory-policy allkeys-lru may forget what was used; set noeviction")


@pytest.mark.parametrize("url", ["redis://:hidden-password@127.0.0.1:1/0", "unix:///nowhere/redis.sock"])
def test_a_server_that_cannot_be_reached_fails_without_its_password(url):
    ((status, aspect, message),) = findings(url)
    assert (status, aspect) == ("fail", "reachable")
    assert "hidden-password" not in message


def test_without_shared_limits_there_is_nothing_to_say():
    assert list(check_limits(StoreConfig())) == []
