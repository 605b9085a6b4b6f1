"""Free text: folded for equality, and an embedding of hashed character n-grams for likeness."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["embed", "fold", "like", "like_by"]

Floats: TypeAlias = NDArray[np.float64]

LIKENESS = 0.8
"""Cosine from which two texts are held to say the same; with numbers and negations equal."""
_FEW_WORDS = 24
"""Of a text up to so many words each one may matter: there the words must be the same, save the small ones."""

_LONGEST = 12_000
_EMBEDDED = 4_000
"""Bytes of a text that are embedded: its beginning and its end."""
_DIMENSIONS = 2048
_GRAMS = (3, 5)
# Plain `re`: neither pattern can go back more than one step, and it is ten times as fast here as the other one.
_NUMBER = r"-?\d+(?:[.,:/]\d+)*"
_BETWEEN = (
    r"\s\x00-\x20!-/:-@\[-`{-\xbf\xd7\xf7\u060c\u061b\u061f\u06d4\u0964\u0965\u2000-\u206f\u20a0-\u20cf\u2190-\u2bff"
    r"\u3000-\u303f"
)
"""What stands between words: space, punctuation and symbols; whatever else there is belongs to one."""
_WORDS = re.compile(rf"{_NUMBER}|[^\d{_BETWEEN}]+|[+=<>%$#@\u20ac\xa3]")
_NUMBERS = re.compile(_NUMBER)
_NEGATIONS = frozenset(
    """no not never none nor neither without cannot nicht kein keine nie ne pas jamais sans nunca sin non mai
    senza""".split()
)
_SMALL = frozenset(
    """a an the is are was were be been it its this that these those of in on at to for by with from and as so thus
    therefore hence then there here have has had do does did will would can could i you we they he she der die das ein
    eine ist sind le la les un une est sont el los las es son de du des et und y e o il lo""".split()
)


def fold(text: str) -> str:
    """Words and numbers only, without capitals; what is past some 12,000 characters is left out."""
    folded = unicodedata.normalize("NFKC", text[:_LONGEST]).casefold()
    folded = unicodedata.normalize("NFKC", folded).replace("n't", " not").replace("n\u2019t", " not")
    return " ".join(_WORDS.findall(folded))


def embed(folded: str) -> Floats:
    """A unit vector of 2,048 dimensions for a folded text; equal texts have equal ones, on every machine."""
    data = folded.encode("utf-8", "replace")
    if len(data) > _EMBEDDED:
        data = data[: _EMBEDDED // 2] + b" " + data[-_EMBEDDED // 2 :]
    letters = np.frombuffer(b" " + data + b" ", dtype=np.uint8).astype(np.uint64)
    counts = np.zeros(_DIMENSIONS)
    for size in _GRAMS:
        if len(letters) < size:
            continue
        grams = np.zeros(len(letters) - size + 1, dtype=np.uint64)
        for offset in range(size):
            grams = grams * np.uint64(1_000_003) + letters[offset : offset + len(grams)]
        grams ^= grams >> np.uint64(29)
        grams *= np.uint64(0x9E37_79B9_7F4A_7C15)
        counts += np.bincount((grams >> np.uint64(53)).astype(np.intp), minlength=_DIMENSIONS)
    weights = np.log1p(counts)
    length = float(np.sqrt(weights @ weights))
    vector: Floats = weights / length if length > 0 else weights
    return vector


def like(one: str, other: str, least: float = LIKENESS) -> bool:
    """Whether two folded texts say nearly the same; never where their numbers or their negations differ."""
    if one == other:
        return True
    if not one or not other or _guards(one) != _guards(other):
        return False
    words, others = one.split(), other.split()
    if min(len(words), len(others)) <= _FEW_WORDS:
        return set(words) - _SMALL == set(others) - _SMALL
    return float(embed(one) @ embed(other)) >= least


def like_by(embed: Callable[[str], Floats], least: float) -> Callable[[str, str], bool]:
    """A likeness for `agreement.vote` that goes by another embedding, e.g. a sentence encoder's; the guards stay.

    Args:
        embed: a vector of any length for a folded text; called twice for each comparison.
        least: cosine from which two texts say the same.
    """

    def alike(one: str, other: str) -> bool:
        if one == other:
            return True
        if _guards(one) != _guards(other):
            return False
        first, second = embed(one), embed(other)
        lengths = float(np.sqrt((first @ first) * (second @ second)))
        return lengths > 0 and float(first @ second) / lengths >= least

    return alike


def _guards(folded: str) -> tuple[frozenset[str], bool]:
    odd = sum(word in _NEGATIONS for word in folded.split()) % 2 == 1
    return frozenset(_NUMBERS.findall(folded)), odd
