"""Sealing: what is sealed can be read with its key, as what it was sealed for, and in no other way."""

from __future__ import annotations

import base64
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrouter.config import SamplesConfig
from llmrouter.errors import ConfigError, UsageError
from llmrouter.quality.encryption import CannotOpen, Vault, key_id, vault_of

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))


def sealed(vault: Vault, text: bytes = b"words") -> bytes:
    return vault.seal(text, request_id="r1", part="request")


def opened(vault: Vault, value: bytes, *, by: bytes = KEY, request_id: str = "r1", part: str = "request") -> bytes:
    return vault.open(value, sealed_by=key_id(by), request_id=request_id, part=part)


@given(st.binary(max_size=200), st.text(max_size=20), st.sampled_from(["request", "answer"]))
def test_what_was_sealed_reads_back(text: bytes, request_id: str, part: str):
    vault = Vault(KEY)
    value = vault.seal(text, request_id=request_id, part=part)
    assert vault.open(value, sealed_by=key_id(KEY), request_id=request_id, part=part) == text


def test_the_words_are_not_in_what_is_stored_and_no_two_are_alike():
    vault = Vault(KEY)
    assert b"words" not in sealed(vault)
    assert sealed(vault) != sealed(vault)


def test_a_nonce_is_drawn_for_each():
    drawn = iter([bytes(12), bytes([1]) * 12])
    vault = Vault(KEY, random=lambda _: next(drawn))
    assert [sealed(vault)[1:13], sealed(vault)[1:13]] == [bytes(12), bytes([1]) * 12]


@pytest.mark.parametrize("change", [{"request_id": "r2"}, {"part": "answer"}])
def test_it_opens_only_as_what_it_was_sealed_for(change: dict[str, str]):
    vault = Vault(KEY)
    with pytest.raises(CannotOpen, match="was changed after it was sealed"):
        opened(vault, sealed(vault), **change)  # type: ignore[arg-type]


@given(st.integers(0, 33), st.integers(1, 255))
def test_a_changed_byte_is_noticed(at: int, change: int):
    vault = Vault(KEY)
    value = bytearray(sealed(vault))
    value[at % len(value)] ^= change
    with pytest.raises(CannotOpen):
        opened(vault, bytes(value))


@pytest.mark.parametrize("value", [b"", b"\x01", b"\x01" + bytes(11)])
def test_a_value_that_is_cut_short_is_noticed(value: bytes):
    with pytest.raises(CannotOpen):
        opened(Vault(KEY), value)


def test_a_missing_key_is_named_and_what_to_do():
    value = sealed(Vault(KEY))
    with pytest.raises(CannotOpen, match=rf"sealed under key {key_id(KEY)}.*has {key_id(OTHER)}.*samples.old_keys"):
        opened(Vault(OTHER), value)


def test_after_a_rotation_old_samples_are_read_and_new_ones_sealed_under_the_new_key():
    vault = Vault(OTHER, [KEY])
    assert opened(vault, sealed(Vault(KEY))) == b"words"
    assert vault.sealing == key_id(OTHER)
    assert opened(vault, sealed(vault), by=OTHER) == b"words"


def test_with_old_keys_alone_samples_are_read_and_none_is_sealed():
    vault = Vault(None, [KEY])
    assert opened(vault, sealed(Vault(KEY))) == b"words"
    with pytest.raises(ConfigError, match=r"samples\.key"):
        sealed(vault)


def test_the_keys_come_from_the_configuration():
    config = SamplesConfig.model_validate(
        {"key": base64.b64encode(OTHER).decode(), "old_keys": [base64.b64encode(KEY).decode()]}
    )
    vault = vault_of(config)
    assert vault is not None
    assert vault.sealing == key_id(OTHER)
    assert opened(vault, sealed(Vault(KEY))) == b"words"
    assert vault_of(SamplesConfig()) is None


def test_without_the_package_one_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(UsageError, match=r"pip install '.\[samples\]'"):
        Vault(KEY)
