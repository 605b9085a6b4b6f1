"""Seals samples under a key of the configuration: AES-256-GCM, with the sample's id bound to what is sealed.

A sealed value is one byte of format, twelve random bytes, and the cipher text with its tag. The key itself is stored
nowhere; its id is, a digest from which the key cannot be told, so that a later reader knows which of several is meant.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from llmrouter.errors import ConfigError, RouterError, UsageError
from llmrouter.tenancy_sections import SamplesConfig

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

__all__ = ["CannotOpen", "Vault", "key_id", "vault_of"]

_FORMAT = b"\x01"
_NONCE_BYTES = 12


class CannotOpen(RouterError):
    """A sealed sample cannot be read: its key is missing, or it was changed after it was sealed."""

    default_code = "sample_sealed"


class Vault:
    """Seals under one key and opens under several; may be used by several threads."""

    def __init__(
        self, key: bytes | None, old_keys: Sequence[bytes] = (), *, random: Callable[[int], bytes] = os.urandom
    ) -> None:
        """Keys have 32 bytes; without `key` nothing can be sealed, but what older keys sealed can be read.

        Raises:
            UsageError: the package that encrypts is not installed.
        """
        self._random = random
        self._ciphers: dict[str, AESGCM] = {key_id(each): _cipher(each) for each in (*old_keys, *filter(None, (key,)))}
        self._current = key_id(key) if key is not None else None

    @property
    def sealing(self) -> str | None:
        """The id of the key that new samples are sealed under; None where there is none."""
        return self._current

    def seal(self, plain: bytes, *, request_id: str, part: str) -> bytes:
        """Encrypt one part of a sample, readable only as that part of that sample."""
        if self._current is None:
            raise ConfigError("samples.key: set it, nothing can be encrypted without")
        nonce = self._random(_NONCE_BYTES)
        return _FORMAT + nonce + self._ciphers[self._current].encrypt(nonce, plain, _bound(request_id, part))

    def open(self, sealed: bytes, *, sealed_by: str, request_id: str, part: str) -> bytes:
        """Decrypt what `seal` made.

        Raises:
            CannotOpen: the key is not among those given, or the value is not what was sealed for that part.
        """
        from cryptography.exceptions import InvalidTag

        cipher = self._ciphers.get(sealed_by)
        if cipher is None:
            known = ", ".join(self._ciphers) or "none"
            raise CannotOpen(
                f"sample {request_id} is sealed under key {sealed_by}, the configuration has {known}; "
                "put that key into samples.old_keys"
            )
        nonce, text = sealed[1 : 1 + _NONCE_BYTES], sealed[1 + _NONCE_BYTES :]
        try:
            if sealed[:1] != _FORMAT or len(nonce) != _NONCE_BYTES:
                raise InvalidTag
            return cipher.decrypt(nonce, text, _bound(request_id, part))
        except InvalidTag:
            raise CannotOpen(f"the {part} of sample {request_id} was changed after it was sealed") from None


def vault_of(config: SamplesConfig) -> Vault | None:
    """The vault of a configuration; None when it names no key at all.

    Raises:
        UsageError: the package that encrypts is not installed.
    """
    key = None if config.key is None else base64.b64decode(config.key.get_secret_value())
    old = [base64.b64decode(each.get_secret_value()) for each in config.old_keys]
    return Vault(key, old) if key is not None or old else None


def key_id(key: bytes) -> str:
    """What a key is called in the store: short, the same everywhere, and no help in finding the key."""
    return hashlib.sha256(b"llmrouter sample key\0" + key).hexdigest()[:12]


def _cipher(key: bytes) -> AESGCM:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise UsageError("encrypted samples need the package cryptography: pip install '.[samples]'") from error
    return AESGCM(key)


def _bound(request_id: str, part: str) -> bytes:
    return f"llmrouter sample\0{part}\0{request_id}".encode()
