"""What a prompt asks, apart from how it is laid out: rows that ask the same are never split from one another."""

from __future__ import annotations

import hashlib
import re
import unicodedata

__all__ = ["question_group"]

_HEADING = re.compile(r"^[ \t]*(?:options|choices|answer choices):", re.IGNORECASE | re.MULTILINE)
_FIRST = re.compile(r"^[ \t]*\(?A[.):]\s", re.IGNORECASE | re.MULTILINE)
_SECOND = re.compile(r"^[ \t]*\(?B[.):]\s", re.IGNORECASE | re.MULTILINE)
_WORDS = re.compile(r"\w+")
_LEAST = 3
"""Words; a shorter stem says too little, and the whole text stands for it."""


def question_group(text: str) -> str:
    """The same for texts that ask the same question: with other answer options, punctuation, spacing or capitals."""
    words = _words(_stem(text))
    if len(words) < _LEAST:
        words = _words(text) or [text]
    return "q-" + hashlib.blake2b(" ".join(words).encode(errors="surrogatepass"), digest_size=12).hexdigest()


def _stem(text: str) -> str:
    """The text up to its answer options."""
    heading = _HEADING.search(text)
    first = _FIRST.search(text)
    if first is not None and _SECOND.search(text, first.end()) is None:
        first = None
    return text[: min((found.start() for found in (heading, first) if found is not None), default=len(text))]


def _words(text: str) -> list[str]:
    return _WORDS.findall(unicodedata.normalize("NFKC", text).casefold())
