"""Numbers that a router reads off an ask: hashed words and character runs, and a few dozen counts.

Everything is numpy on the bytes of the text; no step walks over words or characters in Python. A polynomial hash of
every prefix (modulo 2^64) gives the hash of any span by one subtraction and one multiplication, so all runs of n bytes,
all words and all pairs of words are hashed at once. The hash goes into a bucket by its upper bits. An ask has a bucket
or has it not; how often does not count.

Only a window of the text is read: its first `HEAD` and last `TAIL` characters, since an ask stands before or behind
what is pasted with it. Lengths are those of the whole text.

What these functions give for a text is what weights in artefacts were fitted to: whoever changes it raises
`FEATURE_VERSION`.
"""

from __future__ import annotations

import math
import re
import unicodedata
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from llmrouter.routing.ask import Ask
from llmrouter.types import value

__all__ = [
    "CHAR_BITS",
    "FEATURE_VERSION",
    "HAND",
    "HEAD",
    "MOST_TERMS",
    "TAIL",
    "WORD_BITS",
    "Features",
    "Terms",
    "features_of",
    "terms_of",
]

FEATURE_VERSION = 1
WORD_BITS = 16
CHAR_BITS = 15
"""Logarithms of the numbers of buckets."""
HEAD, TAIL = 2600, 1000
"""Characters of the text that are read."""
_RUN = 4
"""Bytes of a run."""
_SHORT, _CONTEXT = 80, 400
"""An ask shorter than this many characters, such as "why?", is read with so many of what was said before."""
_TOOLS = 600
"""Characters of the tools' description that are read."""
_MOST_BYTES = 8192
MOST_TERMS = 2 * _MOST_BYTES + 2 * _TOOLS * 4
"""More words and pairs, or runs, than an ask can have."""

HAND = (
    "length",
    "words",
    "word_length",
    "lines",
    "sentences",
    "questions",
    "digits",
    "numbers",
    "long_numbers",
    "upper",
    "spaces",
    "punctuation",
    "brackets",
    "operators",
    "backslashes",
    "quotes",
    "dollars",
    "other_script",
    "indented",
    "distinct_words",
    "long_words",
    "options",
    "last_line_share",
    "last_line",
    "code",
    "tools",
    "turns",
    "history",
    "cap",
)
"""Names of the counts, in the order of `Features.hand`."""

_Words = NDArray[np.uint64]


@value
class Features:
    """What is known of one ask."""

    words: NDArray[np.intp]
    """Buckets of words and pairs of words, each once, below `2**WORD_BITS`."""
    chars: NDArray[np.intp]
    """Buckets of runs of bytes, each once, below `2**CHAR_BITS`."""
    hand: NDArray[np.float64]
    """The counts that `HAND` names."""


@value
class Terms:
    """The words and pairs of words of an ask, in their order, with their buckets; pairs follow single words."""

    buckets: NDArray[np.intp]
    texts: tuple[str, ...]


def features_of(ask: Ask) -> Features:
    """Read an ask; the same text gives the same numbers on every machine."""
    given = _window(ask)
    original = np.frombuffer(_bytes(given), dtype=np.uint8)
    kinds = _KIND.take(original)
    read = _Read.of(given)
    begins, ends = read.words()
    hashes = read.hashes(begins, ends)
    terms = _with_pairs(hashes)
    if ask.tools:
        extra = _Read.of(ask.tools[:_TOOLS])
        terms = np.concatenate((terms, _with_pairs(extra.hashes(*extra.words())) ^ _OFFERED))
    words = _distinct(_bucket(terms, WORD_BITS), 1 << WORD_BITS)
    chars = _distinct(_bucket(read.runs(), CHAR_BITS), 1 << CHAR_BITS)
    return Features(words, chars, _hand(ask, given, kinds, begins, ends, len(words)))


def terms_of(ask: Ask) -> Terms:
    """The words and pairs behind `Features.words`, for explanations; repeats stay, and tools are left out."""
    read = _Read.of(_window(ask))
    begins, ends = read.words()
    buckets = _bucket(_with_pairs(read.hashes(begins, ends)), WORD_BITS)
    raw = read.text
    singles = [raw[begin:end].decode(errors="replace") for begin, end in zip(begins, ends, strict=True)]
    pairs = [f"{first} {second}" for first, second in pairwise(singles)]
    return Terms(buckets, (*singles, *pairs))


@value
class _Read:
    """Bytes of a text in the one spelling that is hashed, with the hash of every prefix."""

    text: bytes
    codes: NDArray[np.uint8]
    prefixes: _Words
    """Shape (n + 1,): of the first i bytes."""

    @classmethod
    def of(cls, text: str) -> _Read:
        lowered = text.lower()
        if not lowered.isascii():
            lowered = unicodedata.normalize("NFKC", lowered)
        folded = _bytes(lowered).translate(_FOLDED)
        codes = np.frombuffer(folded, dtype=np.uint8)
        terms = _CODE.take(codes)
        terms *= _DOWN[: len(codes)]
        prefixes = np.zeros(len(codes) + 1, dtype=np.uint64)
        np.add.accumulate(terms, out=prefixes[1:])
        return cls(folded, codes, prefixes)

    def hashes(self, begins: NDArray[np.intp], ends: NDArray[np.intp]) -> _Words:
        """Of the bytes from each begin up to each end: equal for equal bytes wherever they stand."""
        return (self.prefixes.take(ends) - self.prefixes.take(begins)) * _UP.take(begins)

    def runs(self) -> _Words:
        """Of every run of `_RUN` bytes."""
        starts = max(len(self.codes) + 1 - _RUN, 0)
        return (self.prefixes[_RUN:] - self.prefixes[:starts]) * _UP[:starts]

    def words(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Where each word begins and ends. A Chinese, Japanese or Korean character is one, as is a symbol or emoji."""
        inside = np.zeros(len(self.codes) + 2, dtype=np.bool_)
        _IN_WORD.take(self.codes, out=inside[1:-1])
        edges = (inside[1:] != inside[:-1]).nonzero()[0]
        if self.text.isascii():
            return edges[::2], edges[1::2]
        begins = np.zeros(len(inside) - 1, dtype=np.bool_)
        begins[edges[::2]] = True
        wide, widest = self.codes >= _WIDE, self.codes >= _WIDEST
        begins[:-1] |= wide
        begins[3:-1] |= (wide & ~widest)[:-3]
        begins[4:-1] |= widest[:-4]
        begins &= inside[1:]
        # A word also ends where the next one begins.
        ends = (inside[:-1] & ~inside[1:]) | (begins & inside[:-1])
        return begins.nonzero()[0], ends.nonzero()[0]


def _window(ask: Ask) -> str:
    text = ask.text
    if len(text) < _SHORT and ask.history:
        text = f"{ask.history[-_CONTEXT:]}\n{text}"
    return text if len(text) <= HEAD + TAIL else f"{text[:HEAD]}\n{text[-TAIL:]}"


def _bytes(text: str) -> bytes:
    """UTF-8 of at most so many bytes; halves of characters, which JSON can carry, become question marks."""
    return text.encode("utf-8", "replace")[:_MOST_BYTES]


def _with_pairs(hashes: _Words) -> _Words:
    return np.concatenate((hashes, (hashes[:-1] * _FIRST) ^ (hashes[1:] * _SECOND)))


def _bucket(hashes: _Words, bits: int) -> NDArray[np.intp]:
    """Spread over the buckets; the lower bits of a polynomial are weak, the upper ones of the product are not."""
    return ((hashes * _SPREAD) >> np.uint64(64 - bits)).view(np.int64)


def _distinct(buckets: NDArray[np.intp], most: int) -> NDArray[np.intp]:
    """Each bucket once, in no special but always the same order.

    The last to write its number into a bucket is the one that counts. The slots need no clearing: only those are read
    that have been written.
    """
    slots = np.empty(most, dtype=np.uint16)
    numbers = np.arange(len(buckets), dtype=np.uint16)
    slots[buckets] = numbers
    return np.asarray(buckets[slots.take(buckets) == numbers])


def _hand(
    ask: Ask,
    given: str,
    kinds: NDArray[np.uint8],
    begins: NDArray[np.intp],
    ends: NDArray[np.intp],
    distinct: int,
) -> NDArray[np.float64]:
    counts = np.bincount(kinds, minlength=_KINDS).tolist()
    size = max(len(kinds), 1)
    words = max(len(begins), 1)
    long = np.count_nonzero(ends - begins > _LONG)
    digits = kinds == _DIGIT
    # Almost every number has two edges.
    numbers = (np.count_nonzero(digits[1:] != digits[:-1]) + 1) // 2
    stripped = given.rstrip()
    lines = given.count("\n") + 1
    options = len(_OPTION.findall(given)) if "B" in given else 0
    tail = len(stripped) - (stripped.rfind("\n") + 1)
    return np.array(
        (
            math.log1p(len(ask.text)),
            math.log1p(len(begins)),
            (counts[_LETTER] + counts[_UPPER] + counts[_DIGIT] + counts[_OTHER]) / words,
            math.log1p(lines),
            math.log1p(given.count(". ") + given.count("\u3002")),
            math.log1p(given.count("?") + given.count("\uff1f")),
            counts[_DIGIT] / size,
            math.log1p(numbers),
            math.log1p(counts[_DIGIT] / max(numbers, 1)),
            counts[_UPPER] / size,
            counts[_SPACE] / size,
            counts[_MARK] / size,
            counts[_BRACKET] / size,
            counts[_OPERATOR] / size,
            math.log1p(counts[_BACKSLASH]),
            math.log1p(counts[_QUOTE]),
            math.log1p(counts[_DOLLAR]),
            counts[_OTHER] / size,
            math.log1p(given.count("\n  ") + given.count("\n\t")),
            distinct / (2.0 * words),
            long / words,
            float(options),
            tail / max(len(stripped), 1),
            math.log1p(tail),
            float("def " in given or "```" in given or "return" in given or "{" in given),
            math.log1p(len(ask.tools)),
            math.log1p(ask.turns),
            math.log1p(len(ask.history)),
            0.0 if ask.max_output_tokens is None else math.log1p(ask.max_output_tokens),
        )
    )


_OPTION = re.compile(r"\n\(?[A-J][.):] ")
_LONG = 8
_WIDE, _WIDEST = 0xE2, 0xF0
"""First bytes of a character of three or four bytes that is a word of its own."""
_KINDS = 11
_LETTER, _UPPER, _DIGIT, _SPACE, _MARK, _BRACKET, _OPERATOR, _BACKSLASH, _QUOTE, _DOLLAR, _OTHER = range(_KINDS)


def _kinds() -> NDArray[np.uint8]:
    kinds = np.full(256, _MARK, dtype=np.uint8)
    for kind, members in (
        (_LETTER, b"abcdefghijklmnopqrstuvwxyz"),
        (_UPPER, b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
        (_DIGIT, b"0123456789"),
        (_SPACE, b" \t\r\n\x0b\x0c"),
        (_BRACKET, b"()[]{}"),
        (_OPERATOR, b"+-*/=<>^%|&~"),
        (_BACKSLASH, b"\\"),
        (_QUOTE, b"'\"`"),
        (_DOLLAR, b"$"),
        (_OTHER, bytes(range(0x80, 0x100))),
    ):
        kinds[np.frombuffer(members, dtype=np.uint8)] = kind
    return kinds


def _numbers(count: int, seed: int) -> _Words:
    """Odd numbers that look random (the splitmix64 sequence), the same everywhere."""
    with np.errstate(over="ignore"):
        state = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return (state ^ (state >> np.uint64(31))) | np.uint64(1)


def _powers(base: int, count: int) -> _Words:
    factors = np.full(count, base, dtype=np.uint64)
    factors[0] = 1
    return np.cumprod(factors, dtype=np.uint64)


_KIND = _kinds()
_IN_WORD = np.isin(_KIND, (_LETTER, _UPPER, _DIGIT, _OTHER))
_FOLDED = bytes(
    ord("0") if kind == _DIGIT else ord(" ") if kind == _SPACE or byte < 0x20 or byte == 0x7F else byte
    for byte, kind in enumerate(_KIND.tolist())
)
"""Digits are all alike, and so is white space."""
_CODE = _numbers(256, 1)
_BASE = int(_numbers(1, 2)[0])
_UP = _powers(_BASE, _MOST_BYTES + 1)
_DOWN = _powers(pow(_BASE, -1, 1 << 64), _MOST_BYTES + 1)
_FIRST, _SECOND, _SPREAD, _OFFERED = (np.uint64(each) for each in _numbers(4, 3).tolist())
