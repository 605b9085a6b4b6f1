"""A verifier for answers about a given text: are their figures, dates and quotations really in it?

A summary of a contract that names 30 days where the contract says 60 is wrong however well it reads, and the same slip
is rarely made twice. The score is the share of the answer's figures and quoted phrases that stand in the request;
there is none where the answer has neither. It does no arithmetic: keep it to tiers that summarise and extract.
"""

from __future__ import annotations

import re

from llmrouter.types import ChatRequest

_FIGURE = re.compile(r"\d+(?:[.,:/-]\d+)*")
_QUOTED = re.compile(r"[\"\u201c]([^\"\u201d\n]{4,200})[\"\u201d]")
_MOST = 50_000
"""Characters of either text; a verifier runs on the gateway's event loop."""


class Grounded:
    """Implements `llmrouter.routing.verifier.Verifier`."""

    async def score(self, request: ChatRequest, answer_text: str) -> float | None:
        """The share of the answer's figures and quotations that the request holds; None where there are none."""
        given = _words(" ".join(_texts(request)))[:_MOST]
        answer = answer_text[:_MOST]
        figures = set(_FIGURE.findall(given))
        claims = [each in figures for each in _FIGURE.findall(answer)]
        claims += [_words(quoted) in given for quoted in _QUOTED.findall(answer)]
        return sum(claims) / len(claims) if claims else None


def _texts(request: ChatRequest) -> list[str]:
    """What the request's messages say, without images and files."""
    texts: list[str] = []
    for message in request.fields.get("messages", ()):
        content = message.get("content")
        parts = content if isinstance(content, list) else [{"text": content}]
        texts += [part["text"] for part in parts if isinstance(part.get("text"), str)]
    return texts


def _words(text: str) -> str:
    return " ".join(text.casefold().split())
