"""What a prompt asks, apart from how it is laid out: rows that ask the same are never split from one another."""

from __future__ import annotations

import hashlib
import re
import unicodedata

__all__ = ["question_group"]

_OPTIONS = re.compile(
    r"^[ \t]*(?:\(?A[.):]\s.*?^[ \t]*\(?B[.):]\s|(?:options|choices|answer choices):)",
    re.IGNORECASE | re.MULTILINE | re.DOTALL,
)
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
    found = _OPTIONS.search(text)
    return text if found is None else text[: found.start()]


def _words(text: str) -> list[str]:
    return _WORDS.findall(unicodedata.normalize("NFKC", text).casefold())
