"""Where an answer says what it comes to: the last box, tag, field or sentence that is marked as the answer.

Everything here takes time in proportion to the text, or looks only at its last few thousand characters.
"""

from __future__ import annotations

import json
from typing import Any

import re2

__all__ = ["FinalAnswer", "boxed", "final_answer", "in_utf8", "json_field", "sentence", "tagged", "without_thinking"]

_TAIL = 3000
"""Characters from the end in which a marked sentence is looked for."""
_LONGEST = 2000
"""Of what is taken as the answer."""
_LONGEST_JSON = 50_000
_FIELDS = ("final_answer", "answer", "result", "output", "label", "category", "class", "choice", "value", "prediction")
_THOUGHT_ENDS = ("</think>", "</thinking>", "</reasoning>")
_TAGS = (("<answer>", "</answer>"), ("[answer]", "[/answer]"), ("<final>", "</final>"), ("<result>", "</result>"))

_NEAR_END, _NEAR_START = 400, 200
"""Bytes. A mark in the midst of a longer answer belongs to a step on the way."""
_STRONG = r"\b(?:answer|respuesta|resposta|risposta|antwort)\b|réponse|ответ|答案|答え|正解|정답|الجواب|उत्तर"
_WEAK = r"\b(?:result|solution|output|label|category|ergebnis)\b|lösung|solución"
_VERB = r"\b(?:is|are|would be|ist|lautet|est|es)\b|:|\x{ff1a}|=|é\b|è\b|[是为為は은는]"
_MARK = re2.compile(rf"(?i)(?:{_STRONG}|({_WEAK}))[^\n:\x{{ff1a}}=.?!;]{{0,48}}?(?:{_VERB})")
_HASHES = re2.compile(r"(?m)^[ \t]*####[ \t]*(\S.*)$")
_MARKDOWN = " \t\r\n*_`\"'"

FinalAnswer = str
"""What stands behind the mark, up to the end of its line or bracket; the trimmings still around it."""


def in_utf8(text: str) -> str:
    """The text with lone surrogates, which JSON may carry and nothing else can write, made into question marks."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def without_thinking(text: str) -> str:
    """What follows the model's open reasoning, where it shows any."""
    for end in _THOUGHT_ENDS:
        at = text.rfind(end)
        if at >= 0:
            return text[at + len(end) :]
    return text


def final_answer(text: str) -> FinalAnswer | None:
    """The answer that is marked as final, by the surest mark that is there; None where nothing is marked."""
    for read in (json_field, boxed, tagged, _hashes, sentence):
        found = read(text)
        if found is not None:
            return found
    return None


def json_field(text: str) -> FinalAnswer | None:
    """The field of a JSON object that holds the answer, where the whole text is such an object."""
    bare = text.strip()
    if bare.startswith("```"):
        bare = bare.strip("`").removeprefix("json").strip()
    if not (bare.startswith("{") and bare.endswith("}")) or len(bare) > _LONGEST_JSON:
        return None
    try:
        parsed: Any = json.loads(bare)
    except (ValueError, RecursionError):
        return None
    if not isinstance(parsed, dict):
        return None
    names = {str(name).casefold().replace(" ", "_"): value for name, value in parsed.items()}
    for field in _FIELDS:
        value = names.get(field)
        if isinstance(value, str):
            return value[:_LONGEST]
        if isinstance(value, int | float | bool | list) or (isinstance(value, dict) and value):
            return _written(value)
    return None


def _written(value: Any) -> str | None:
    try:
        return json.dumps(value, ensure_ascii=False)[:_LONGEST]
    except (ValueError, RecursionError):
        return None


def boxed(text: str) -> FinalAnswer | None:
    r"""What the last `\boxed{…}` or `\fbox{…}` holds."""
    at = max(text.rfind("\\boxed{"), text.rfind("\\fbox{"))
    if at < 0:
        return None
    start = text.index("{", at) + 1
    depth = 1
    for position in range(start, min(len(text), start + _LONGEST)):
        letter = text[position]
        depth += (letter == "{") - (letter == "}")
        if depth == 0:
            return text[start:position]
    return None


def tagged(text: str) -> FinalAnswer | None:
    """What stands in the last pair of answer tags, or behind an opening one that is never closed."""
    tail = text[-_TAIL:]
    lowered = tail.casefold() if tail.isascii() else tail.translate(_TO_LOWER)
    for opening, closing in _TAGS:
        at = lowered.rfind(opening)
        if at >= 0:
            start = at + len(opening)
            end = lowered.find(closing, start)
            return tail[start : end if end >= 0 else start + _LONGEST].strip()
    return None


_TO_LOWER = {ord(letter): letter.lower() for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}


def _hashes(text: str) -> FinalAnswer | None:
    marked = _HASHES.findall(text[-_TAIL:])
    return str(marked[-1])[:_LONGEST] if marked else None


def sentence(text: str) -> FinalAnswer | None:
    """What stands behind "the answer is", in several languages; the next line where its own is empty.

    Of several the last one, if it is near the end or opens the answer; "the result is" and the like only near the end.
    """
    skipped = max(len(text) - _TAIL, 0)
    # As bytes: with text, each match would be counted through from the beginning again.
    tail = text[-_TAIL:].encode("utf-8", "replace")
    marks = [(found.end(), found.group(1) is not None) for found in _MARK.finditer(tail)]
    for end, weak in reversed(marks):
        if len(tail) - end > _NEAR_END and (weak or skipped + end > _NEAR_START):
            continue
        for line in tail[end:].decode("utf-8", "replace").lstrip(_MARKDOWN + ":\uff1a").splitlines()[:3]:
            if line.strip(_MARKDOWN):
                return line.strip()[:_LONGEST]
    return None
