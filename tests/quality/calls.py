"""Calls and their parts, for tests of samples."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from llmrouter.types import ChatRequest, LedgerEntry, Usage

__all__ = ["NOW", "answered", "body", "chat"]

NOW = datetime(2026, 12, 1, 12, 0, tzinfo=UTC)

_ENTRY = LedgerEntry(
    request_id="req_1",
    ts=NOW,
    tenant_id="a",
    key_id="k1",
    endpoint="chat",
    tier="auto",
    model_id="s",
    strategy="rules",
    reason="default",
    rule_id=None,
    routing_version=3,
    config_version=2,
    intent="unknown",
    tags={},
    stream=False,
    status=200,
    finish="stop",
    error_code=None,
    aborted=False,
    usage=Usage(),
    cost_usd=Decimal(0),
    reference_model_id=None,
    reference_cost_usd=None,
    queue_s=0.0,
    ttft_s=None,
    total_s=0.1,
)


def answered(request_id: str = "req_1", **fields: Any) -> LedgerEntry:
    """The entry of an answered call of tenant `a`, with some fields as given."""
    return replace(_ENTRY, request_id=request_id, **fields)


def chat(text: str = "Hi", *, stream: bool = False, **more: Any) -> ChatRequest:
    """A chat request with one message."""
    fields = {"model": "auto", "messages": [{"role": "user", "content": text}], **more}
    return ChatRequest(endpoint="chat", model="auto", fields=fields, stream=stream, text_bytes=len(text.encode()))


def body(text: str = "Hello") -> bytes:
    """The body of an answer."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return json.dumps({"id": "x", "object": "chat.completion", "choices": [choice]}).encode()
