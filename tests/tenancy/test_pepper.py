"""The secret of the keys is the same at every start and every gateway."""

from __future__ import annotations

import pytest

from llmrouter.database import migrate
from llmrouter.errors import ConfigError
from llmrouter.tenancy.keys import KeyStore
from llmrouter.tenancy.pepper import confirm_pepper

FIRST, OTHER = b"the secret of the first start", b"another secret, of a second one"


@pytest.fixture
def store(tmp_path):
    migrate(path := tmp_path / "keys.db")
    return path


def test_the_same_secret_is_confirmed_again_and_again(store):
    confirm_pepper(store, FIRST)
    KeyStore(store, FIRST).create("acme")
    confirm_pepper(store, FIRST)


def test_another_secret_is_refused_while_there_are_keys_that_only_work_with_the_first(store):
    confirm_pepper(store, FIRST)
    _, info = KeyStore(store, FIRST).create("acme")
    with pytest.raises(ConfigError, match=r"store\.secret: the 1 API keys of this store were made with another secret"):
        confirm_pepper(store, OTHER)
    KeyStore(store, FIRST).revoke(info.key_id)
    confirm_pepper(store, OTHER)
    KeyStore(store, OTHER).create("acme")
    with pytest.raises(ConfigError):
        confirm_pepper(store, FIRST)
