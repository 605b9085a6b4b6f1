"""Keeps samples of answered calls, for the tenants that consent, beside the way of a request and never on it.

`SampleBook.offer` decides in a few microseconds and at most puts references into a queue; a thread of its own masks,
seals and writes. Whether a call is kept depends on its id and its tenant's rate alone: gateways that share tenants
agree, and the chance that it had is exact.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import queue
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson

from llmrouter.config import Config, SampleConsent
from llmrouter.database import open_database, store_error
from llmrouter.errors import ConfigError, RouterError
from llmrouter.quality.content import Unreadable, kept_answer, kept_request
from llmrouter.quality.encryption import Vault, vault_of
from llmrouter.quality.redaction import Redactor
from llmrouter.quality.sample_store import NewSample, SampleInfo, add_samples, user_digest
from llmrouter.types import ChatRequest, LedgerEntry, value

__all__ = ["SampleBook", "SamplePolicy", "Tap", "chosen"]

_log = logging.getLogger(__name__)

_STREAM_FACTOR = 16
"""Bytes of a stream for each byte of its words, roughly: most chunks are one word in an envelope."""
_BATCH = 32


def chosen(request_id: str, rate: float) -> bool:
    """Whether a call is in the sample: true for a share of `rate` of all ids, and always the same for one id."""
    drawn = hashlib.blake2b(request_id.encode(), digest_size=8, person=b"llmr sample").digest()
    return int.from_bytes(drawn, "big") < rate * 2**64


@value
class Terms:
    """What a tenant agreed to."""

    rate: float
    keep_days: int
    redactor: Redactor
    vault: Vault | None
    """Seals what is kept; None keeps it in the clear."""


@value
class SamplePolicy:
    """What may be kept, by a configuration."""

    terms: Mapping[str, Terms]
    """By tenant; one that is not here keeps nothing."""
    max_bytes: int

    @classmethod
    def of(cls, config: Config) -> SamplePolicy:
        """Raises `UsageError` when samples are to be encrypted and the package for it is not installed."""
        consents = {tenant_id: tenant.samples for tenant_id, tenant in config.tenants.items() if tenant.samples.consent}
        vault = vault_of(config.samples) if any(consent.encrypt for consent in consents.values()) else None
        return cls({name: _terms(each, vault) for name, each in consents.items()}, config.samples.max_bytes)


def _terms(consent: SampleConsent, vault: Vault | None) -> Terms:
    if consent.encrypt and (vault is None or vault.sealing is None):
        raise ConfigError("samples.key: set it, or nothing can be encrypted")
    return Terms(consent.rate, consent.keep_days, Redactor(consent.redact), vault if consent.encrypt else None)


class Tap:
    """Holds the bytes of one stream for its sample, up to a bound; beyond it, it lets go of all of them."""

    __slots__ = ("_blocks", "_left")

    def __init__(self, limit: int) -> None:
        self._blocks: list[bytes] | None = []
        self._left = limit

    def add(self, block: bytes) -> None:
        """Take bytes that the client was sent."""
        if self._blocks is not None:
            self._left -= len(block)
            self._blocks.append(block)
            if self._left < 0:
                self._blocks = None

    @property
    def answer(self) -> bytes | None:
        """All of it; None when it was too long."""
        return None if self._blocks is None else b"".join(self._blocks)


@value
class _Offer:
    entry: LedgerEntry
    request: ChatRequest
    answer: bytes | None
    size: int


class SampleBook:
    """Takes calls from one event loop and writes those that may be kept; the thread starts at the first of them.

    `policy` is replaced as a whole when the configuration changes. Nothing is lost without being counted.
    """

    def __init__(
        self,
        path: Path,
        policy: SamplePolicy,
        *,
        max_queue: int = 512,
        max_queued_bytes: int = 64 * 1024 * 1024,
        connect: Callable[[Path], sqlite3.Connection] = open_database,
    ) -> None:
        self.policy = policy
        self._path = path
        self._max_queue = max_queue
        self._max_queued_bytes = max_queued_bytes
        self._connect = connect
        self._connection: sqlite3.Connection | None = None
        self._queue: queue.SimpleQueue[_Offer | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        # Each is counted in one place only: what the loop counts, and what the thread does.
        self._refused: Counter[str] = Counter()
        self._done: Counter[str] = Counter()
        self._bytes_in = 0
        self._bytes_out = 0

    def wants(self, tenant_id: str, request: ChatRequest, request_id: str) -> bool:
        """Whether this call is in the sample if it is answered. No I/O, some microseconds."""
        terms = self.policy.terms.get(tenant_id)
        return terms is not None and request.endpoint != "embeddings" and chosen(request_id, terms.rate)

    def tap(self, tenant_id: str, request: ChatRequest, request_id: str) -> Tap | None:
        """What collects the bytes of a stream that is in the sample; None for all others, of which nothing is held."""
        if not request.stream or not self.wants(tenant_id, request, request_id):
            return None
        return Tap(_STREAM_FACTOR * self.policy.max_bytes)

    def offer(self, entry: LedgerEntry, request: ChatRequest, answer: bytes | None) -> None:
        """Tell of a call that is in the books. Never waits and never raises; keeps references, makes no copy.

        Args:
            answer: the JSON body that the client was sent, or all events of its stream (`Tap.answer`). None where
                they are not at hand: then the request alone is kept.
        """
        if not _answered(entry) or not self.wants(entry.tenant_id, request, entry.request_id):
            return
        most = self.policy.max_bytes
        size = _least_bytes(request)
        if size > most or (answer is not None and len(answer) > most * (_STREAM_FACTOR if request.stream else 1)):
            self._refused["too_large"] += 1
            return
        size += len(answer or b"")
        full = self._bytes_in - self._bytes_out + size > self._max_queued_bytes
        if self._closed or full or self._queue.qsize() >= self._max_queue:
            self._refused["dropped"] += 1
            return
        self._bytes_in += size
        self._queue.put(_Offer(entry, request, answer, size))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="llmrouter-samples", daemon=True)
            self._thread.start()

    def counts(self) -> dict[str, int]:
        """What has become of the calls that were chosen, since the start.

        `kept`; `too_large`, over `samples.max_bytes`; `unfit`, which cannot be masked or is no answer; `withdrawn`,
        whose tenant's consent had gone; `dropped`, which came faster than they could be written; `failed`, which the
        store would not take.
        """
        return {name: self._refused[name] + self._done[name] for name in _OUTCOMES}

    @property
    def queued(self) -> int:
        """Calls that the thread has not taken yet."""
        return self._queue.qsize()

    async def aclose(self) -> None:
        """Write what is queued and end the thread; what is offered afterwards is dropped. Harmless when repeated."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        open_still = True
        while open_still:
            batch = [self._queue.get()]
            while len(batch) < _BATCH and self._queue.qsize():
                batch.append(self._queue.get())
            offers = [each for each in batch if each is not None]
            open_still = len(offers) == len(batch)
            self._write([sample for each in offers if (sample := self._prepared(each)) is not None])
            self._bytes_out += sum(each.size for each in offers)
        self._disconnect()

    def _prepared(self, offer: _Offer) -> NewSample | None:
        policy = self.policy
        terms = policy.terms.get(offer.entry.tenant_id)
        if terms is None:
            self._done["withdrawn"] += 1
            return None
        try:
            made = _made(offer, terms, policy.max_bytes)
        except Unreadable as error:
            self._done["unfit"] += 1
            _log.debug("request %s is no sample: %s", offer.entry.request_id, error)
            return None
        except Exception as error:  # noqa: BLE001 - the thread's outer edge; the trace could quote the request
            self._done["failed"] += 1
            _log.error("request %s could not be made a sample: %s", offer.entry.request_id, type(error).__name__)
            return None
        if made is None:
            self._done["too_large"] += 1
        return made

    def _write(self, samples: list[NewSample]) -> None:
        if not samples:
            return
        try:
            if self._connection is None:
                self._connection = self._connect(self._path)
            add_samples(self._connection, samples)
        except Exception as error:  # noqa: BLE001 - the thread's outer edge
            self._done["failed"] += len(samples)
            known = store_error(self._path, error) if isinstance(error, sqlite3.Error) else error
            # The text of any other error could quote a request.
            told = known.message if isinstance(known, RouterError) else type(known).__name__
            _log.error("%d samples were not written: %s", len(samples), told)
            self._disconnect()
        else:
            self._done["kept"] += len(samples)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


_OUTCOMES = ("kept", "too_large", "unfit", "withdrawn", "dropped", "failed")


def _answered(entry: LedgerEntry) -> bool:
    return entry.model_id is not None and entry.status == 200 and not entry.aborted and entry.error_code is None


def _least_bytes(request: ChatRequest) -> int:
    """Bytes that a request has at least, without writing it: its text, and pictures and files that stand in it."""
    if not request.media_parts:
        return request.text_bytes
    contents = (message.get("content") for message in request.fields.get("messages") or ())
    return request.text_bytes + sum(_inline(part) for parts in contents if isinstance(parts, list) for part in parts)


def _inline(part: Any) -> int:
    if isinstance(part, str):
        return len(part)
    return sum(_inline(each) for name, each in part.items() if name != "text") if isinstance(part, Mapping) else 0


def _made(offer: _Offer, terms: Terms, max_bytes: int) -> NewSample | None:
    """The sample as it is written; None when request or answer is too large."""
    entry = offer.entry
    if len(orjson.dumps(dict(offer.request.fields))) > max_bytes:
        return None
    counts: Counter[str] = Counter()
    request = orjson.dumps(kept_request(offer.request.fields, terms.redactor, counts))
    answer = None
    if offer.answer is not None:
        answer = orjson.dumps(kept_answer(offer.answer, terms.redactor, counts, stream=offer.request.stream))
        if len(answer) > max_bytes:
            return None
    vault = terms.vault
    assert entry.model_id is not None
    return NewSample(
        info=SampleInfo(
            request_id=entry.request_id,
            ts=entry.ts,
            tenant_id=entry.tenant_id,
            key_id=entry.key_id,
            endpoint=entry.endpoint,
            tier=entry.tier,
            model_id=entry.model_id,
            routing_version=entry.routing_version,
            config_version=entry.config_version,
            redacted=dict(counts),
            sealed_by=vault.sealing if vault is not None else None,
            inclusion_probability=terms.rate,
            expires_at=entry.ts + timedelta(days=terms.keep_days),
        ),
        user_digest=user_digest(entry.tenant_id, entry.user_id) if entry.user_id is not None else None,
        request=_stored(request, "request", entry.request_id, vault),
        answer=None if answer is None else _stored(answer, "answer", entry.request_id, vault),
    )


def _stored(content: bytes, part: str, request_id: str, vault: Vault | None) -> str | bytes:
    return content.decode() if vault is None else vault.seal(content, request_id=request_id, part=part)
