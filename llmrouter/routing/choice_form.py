"""Which of some options an answer picks: a letter, several, or a digit, however it is written."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping

import re2

from llmrouter.routing.final_answer import final_answer

__all__ = ["choice", "fold_option"]

_NOUN = r"(?i:options?|choices?|letters?|alternatives?|opción|opção)"
_NAMED = r"(?:(?i:the )?(?i:correct |best |right )?" + _NOUN + r"\s*:?\s*)?"
_OPEN = r"[\s*_`\"'(\[{$<]*"
_MORE = r"(?:\s*(?:,|;|/|&|\+|\band\b|\bund\b|\by\b|\bet\b)\s*(?:and\s+)?\(?([A-Z])\)?)"
_LETTER = re2.compile(
    rf"^{_OPEN}(?:\\(?:text|textbf|mathrm|mathbf|boxed)\s*\{{\s*)*{_NAMED}{_OPEN}"
    r"([A-Z])((?:[^\p{L}\p{N}].*)?)$"
)
_AGAIN = re2.compile(r"^" + _MORE + r"((?:[^\p{L}\p{N}].*)?)$")
_LOWER = re2.compile(r"^[\s*_`\"'\[{]*(?:\(([a-z])\)|([a-z])[)\]}*.]*$|([a-z])\)(?:\s|$))")
_DIGIT = re2.compile(r"^[\s*_`\"'(\[{$]*" + _NAMED + r"[\s(]*([1-9])[\s)\]}*.$]*$")
_PROSE = re2.compile(r"^['\x{2019} ]\s*\p{Ll}")
_JOINED = re2.compile(r"^['\x{2019} ]\s*(?:is|are|and|or|because|since|as|would be|-)\b")
_BRACKETED = re2.compile(r"\(([A-Z])\)")
_BOLD = re2.compile(r"\*\*\(?([A-Z])\)?[.:)]?(?:\s[^*\n]*)?\*\*")
_PICKED = r"(?i:\b(?:option|choice|select|choose|pick|letter|alternative|opción|opção)s?)"
_NAMED_LETTER = re2.compile(_PICKED + r"(?: (?i:is))?:?\s+[\"'(*]*([A-Z])\b")
_LONE = re2.compile(r"(?:^|[^\p{L}\p{N}'\x{2019}])([B-HJ-Z])(?:[^\p{L}\p{N}'\x{2019}]|$)")
_LONE_IN = 60
_LONGEST_OPTION = 120
_WORDS = re2.compile(r"[\p{L}\p{M}\p{N}.+%-]+")


def choice(text: str, options: Mapping[str, str] | None = None) -> str | None:
    """The letter (`B`), letters (`A,C`) or digit picked; a short text in its own folded form where it names none.

    Args:
        options: letter → text of each option, so that an answer may quote the option instead.
    """
    if len(text) == 1 and "A" <= text <= "Z":
        return text
    marked = final_answer(text)
    for segment in (marked, _first_line(text), _last_line(text)):
        if segment is None:
            continue
        found = _letters(segment) or _quoted(segment, options)
        if found is not None:
            return found
    tail = text[-1500:]
    for pattern in (_NAMED_LETTER, _BOLD, _BRACKETED):
        picked = [each.group(1) for each in pattern.finditer(tail)]
        if picked:
            return str(picked[-1])
    bare = (marked or text).strip()
    alone: list[str] = _LONE.findall(bare) if len(bare) <= _LONE_IN else []
    if len(set(alone)) == 1:
        return alone[0]
    return (fold_option(bare) or None) if len(bare) <= _LONGEST_OPTION else None


def fold_option(text: str) -> str:
    """Words without capitals, punctuation and markdown."""
    folded = unicodedata.normalize("NFKC", text[: _LONGEST_OPTION * 4]).casefold()
    return " ".join(_WORDS.findall(folded)).strip(".")


def _letters(segment: str) -> str | None:
    segment = segment[:400].replace("\n", " ")
    found = _LETTER.match(segment)
    if found is not None:
        letters, rest = [found.group(1)], found.group(2)
        if letters[0] in "AI" and _PROSE.match(rest) is not None and _JOINED.match(rest) is None:
            return None
        rest = rest.lstrip(")*")
        while len(letters) < 26 and (more := _AGAIN.match(rest)) is not None:
            letters.append(more.group(1))
            rest = more.group(2)
        return ",".join(sorted(set(letters)))
    lower = _LOWER.match(segment)
    if lower is not None:
        return str(lower.group(1) or lower.group(2) or lower.group(3)).upper()
    digit = _DIGIT.match(segment)
    return str(digit.group(1)) if digit is not None else None


def _quoted(segment: str, options: Mapping[str, str] | None) -> str | None:
    if not options:
        return None
    said = fold_option(segment)
    equal = [letter for letter, option in options.items() if fold_option(option) == said]
    return equal[0] if len(equal) == 1 else None


def _first_line(text: str) -> str:
    return text.lstrip()[:400].partition("\n")[0]


def _last_line(text: str) -> str:
    return text.rstrip()[-400:].rpartition("\n")[2]
