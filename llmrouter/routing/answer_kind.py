"""What kind of answer a request wants, told from its parameters and from the shape of the ask.

A table of signs like the labeller of intents, with its limits: it does not understand the text. The kind decides only
how answers are compared; a wrong one makes answers that agree look different, or the other way round for texts.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import re2

from llmrouter.routing.ask import Ask
from llmrouter.routing.evidence import AnswerKind
from llmrouter.types import ChatRequest

__all__ = ["kind_of", "kind_of_answers", "kind_of_text", "options_of"]

_HEAD, _TAIL = 1000, 700
"""Characters of an ask that are looked at; options and instructions stand at its ends."""
_SYSTEM = 700
_SHORT = 120
_OPTIONS_IN = 6000
_OPTION_MARKS = ".):"

_ASK = r"(?:^|[.!?:;,\n$\]}]\s*|\b(?:please|you|to|and|then|must|should)\s+)"
_SIGNS: Mapping[str, str] = {
    "literal": r"\[PYTHON\]|== ?\?\?|\bcomplete the assertion\b|\boutput of (?:this|the following) (?:code|function)",
    "json": r"\bjson\b|JSON",
    "give": (
        r"\b(?:return|respond|reply|answer|output|format|give|provide|produce|valid|only|object|array|gib|antworte|réponds|"
        r"responde|devuelve)\b|形式|格式|返回"
    ),
    "write": _ASK
    + r"(?:write|implement|create|develop|code|generate|build|complete|refactor|fix|debug|schreib\w*|écris|escribe)\b",
    "program": (
        r"\b(?:functions?|funktion|fonction|función|scripts?|programs?|programm|programme|"
        r"sql quer(?:y|ies)|regex|regular expression|algorithm|unit tests?|one-liner|bash command|python|javascript|"
        r"typescript|java|rust|golang|code)\b|\bc(?:\+\+|#)|函数|代码|関数|функци"
    ),
    "program start": r"(?m)^\s*(?:def \w+\(|func \w+\(|public (?:static )?\w+ \w+\()",
    "classify": _ASK
    + r"(?:classify|categori[sz]e|label (?:the|this|these|each|it)|klassifizier\w*|"
    + r"classifie[rz]?|clasifica|classifique)\b"
    + r"|分类|分類",
    "classes": (
        r"\b(?:one of (?:the following|these) (?:labels?|categories|classes|topics|intents)|yes or no|true or false|"
        r"ja oder nein|oui ou non|sí o no|one word|single word|what is the (?:sentiment|label|category)|"
        r"(?:positive|negative)(?:,| or|/) ?(?:or )?(?:negative|positive|neutral))\b|是或否|はいかいいえ"
    ),
    "count": (
        r"\b(?:how (?:many|much|far|fast|tall|old|long)|wie ?viele?|combien|cuánt[oa]s?|quant[oia]s?|quanti)\b|"
        r"сколько|多少|几个|幾つ|いくつ|何[個人枚円]|몇|कितन"
    ),
    "compute": _ASK
    + r"(?:calculate|compute|evaluate|solve|simplify|find|determine|berechne|calcule[rz]?|calcula|calcola|вычисл\w*)\b"
    + r"|计算|計算|계산|求",
    "quantity": (
        r"\b(?:value|sum|product|difference|remainder|probability|percent(?:age)?|average|mean|median|area|volume|"
        r"perimeter|length|distance|speed|number of|total|cost|price|profit|degree|angle|ratio|solutions?|roots?|"
        r"coefficient|maximum|minimum|smallest|largest|greatest|least)\b"
    ),
    "what": r"\b(?:what(?:'s| is| are| was| will be)|was ist|quel(?:le)? est|cuál es|qual è|qual é)\b|=\s*\?",
    "arithmetic": (
        r"\d\s*[-+*/\x{d7}\x{f7}^]\s*\d|\d (?:times|plus|minus|divided by|multiplied by) \d|\bsquare root of \d"
        r"|\d ?% of \d|=\s*\?"
    ),
    "formula": r"\$[^\s\d$]|\\(?:frac|dfrac|sqrt|sum|int|binom)\b|\\\(",
    "figures": r"\d|\b(?:two|three|four|five|six|seven|eight|nine|ten|twice|half|dozen)\b|\\frac|\$[^\s\d$]",
    "boxed": r"\\boxed",
    "option a": r"\(A\) \S",
    "option b": r"\(B\) \S",
    "letter": r"\b(?:correct (?:option|choice|letter)|multiple[- ]choice|letter of the (?:option|choice|answer))\b",
    "prose": (
        r"\b(?:prove|proof|show that|explain|describe|discuss|essay|summari[sz]e|translate|rewrite|story|poem|"
        r"list (?:the|all|some)|give (?:me )?(?:an example|examples|some|three|tips)|pros and cons|"
        r"write (?:an?|me|the|about))\b"
    ),
}


class _Signs:
    """All signs as one automaton, so that an ask is scanned once."""

    def __init__(self) -> None:
        options = re2.Options()
        options.never_capture = True
        options.log_errors = False
        options.case_sensitive = False
        self._names = list(_SIGNS)
        self._set = re2.Set.SearchSet(options)
        for name in self._names:
            self._set.Add(_SIGNS[name])
        self._set.Compile()

    def of(self, text: str) -> frozenset[str]:
        found: list[int] = self._set.Match(text.encode("utf-8", "replace")) or []
        return frozenset(self._names[index] for index in found)


@functools.cache
def _signs() -> _Signs:
    return _Signs()


def kind_of(request: ChatRequest) -> AnswerKind:
    """What kind of answer a request wants; never raises."""
    fields = request.fields
    if (fields.get("tools") and fields.get("tool_choice") != "none") or fields.get("functions"):
        return "tool_call"
    wanted = fields.get("response_format")
    if isinstance(wanted, Mapping) and wanted.get("type") in ("json_object", "json_schema"):
        return "json"
    if fields.get("guided_json") is not None:
        return "json"
    if fields.get("guided_choice"):
        return "label"
    return kind_of_text(request.last_user_text, _system(fields.get("messages")))


def kind_of_text(ask: str, system: str = "") -> AnswerKind:
    """What kind of answer an ask without tools and formats wants; `system` are its standing instructions."""
    if options_of(ask):
        return "choice"
    text = ask if len(ask) <= _HEAD + _TAIL else f"{ask[:_HEAD]}\n{ask[-_TAIL:]}"
    signs = _signs().of(text)
    standing = _signs().of(system[-_SYSTEM:]) if system else frozenset()
    if "literal" in signs:
        return "code"
    if {"json", "give"} <= signs or ({"json", "give"} <= standing and "write" not in signs):
        return "json"
    if "letter" in signs or {"option a", "option b"} <= signs:
        return "choice"
    if {"write", "program"} <= signs or "program start" in signs:
        return "code"
    if signs & {"classify", "classes"} or (standing & {"classify", "classes"} and "prose" not in signs):
        return "label"
    return "number" if _is_number(signs) else "text"


def _is_number(signs: frozenset[str]) -> bool:
    if "boxed" in signs:
        return True
    if "prose" in signs or "figures" not in signs:
        return False
    if "count" in signs:
        return True
    return bool(signs & {"what", "compute"}) and bool(signs & {"quantity", "arithmetic", "formula"})


def options_of(ask: str) -> dict[str, str]:
    """Letter → text of the options that an ask lists on lines of their own, `A` first; empty where it lists none."""
    options: dict[str, str] = {}
    for line in ask[-_OPTIONS_IN:].splitlines():
        bare = line.strip()
        letter, mark, start = (bare[1:2], bare[2:3], 3) if bare[:1] == "(" else (bare[:1], bare[1:2], 2)
        if mark not in _OPTION_MARKS or not mark or not "A" <= letter <= "Z" or not bare[start:]:
            continue
        if letter == "A":
            options = {}
        if letter == chr(ord("A") + len(options)):
            options[letter] = bare[start:].strip()
    return options if len(options) > 1 else {}


def kind_of_answers(ask: Ask, answers: Sequence[str | None]) -> AnswerKind:
    """What kind of answers a row of labels holds: short forms such as `3.0`, `I` or `[(3, 1)]`."""
    if ask.tools:
        return "tool_call"
    asked = kind_of_text(ask.text, ask.history)
    given = [each.strip() for each in answers if each is not None and each.strip()]
    if not given or asked in ("code", "json"):
        return asked
    if _most(len(each) == 1 and "A" <= each <= "Z" for each in given):
        return "choice"
    if _most(map(_is_figure, given)):
        return "number"
    if asked == "text" and all(len(each) <= _SHORT for each in given):
        return "label"
    return asked


def _most(hits: Iterable[bool]) -> bool:
    told = list(hits)
    return 2 * told.count(True) > len(told)


def _is_figure(answer: str) -> bool:
    try:
        float(answer[:64].replace(",", ""))
    except ValueError:
        return False
    return True


def _system(messages: Any) -> str:
    """The text of the first message where that is the system's."""
    first = messages[0] if isinstance(messages, list) and messages else None
    if not isinstance(first, Mapping) or first.get("role") not in ("system", "developer"):
        return ""
    content = first.get("content")
    return content if isinstance(content, str) else ""
