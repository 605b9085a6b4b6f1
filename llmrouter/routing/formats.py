"""What is wrong with an answer's form, whatever it says: the checks that need no other answer and no label."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from llmrouter.routing.final_answer import without_thinking
from llmrouter.routing.json_schema import check_schema
from llmrouter.types import ChatRequest, Observation

__all__ = ["FAULTS", "format_faults", "is_refusal", "repeats"]

FAULTS = (
    "empty",
    "truncated",
    "refusal",
    "json",
    "schema",
    "tool_arguments",
    "unknown_tool",
    "missing_tool",
    "repetition",
    "control_tokens",
)
"""All that `format_faults` can find, in its order."""

_LONGEST_JSON = 200_000
_OPENING = 240
_LONGEST_REFUSAL = 1500
"""Characters; a longer text that begins with an excuse goes on to say something."""
_SCANNED = 50_000
_TAIL = 1500
_LEAST_RUN, _LEAST_REPEATS = 300, 6

# Plain `re`: the pattern has no nested repeats and sees only a few hundred characters.
_UNABLE = (
    r"(?:(?:i'm|i am) (?:so |very |really |truly )?sorry,? ?(?:but )?|sorry,? ?(?:but )?|i apologi[sz]e,? ?(?:but )?|"
    r"unfortunately,? |as an ai(?: language model| assistant)?,? ?)?"
    r"(?:i (?:can't|cannot|can not|won't|will not|must decline to|decline to)|"
    r"(?:i'm|i am) (?:unable to|not able to|not allowed to|not comfortable|not permitted to))(?: be able to)?,?\s+"
    r"(?:help|assist|provid|fulfil|comply|creat|generat|writ|engag|discuss|support|continu|do that|answer that|"
    r"answer this|share|produc|offer|with that|with this|participate|complete th)"
    r"|i (?:must|have to) (?:respectfully )?decline"
)
_UNABLE_ELSEWHERE = {
    r"(?:es )?tut mir (?:sehr )?leid,? (?:aber )?": r"helfen|beantworten|erfüllen|erstellen|unterstützen",
    r"(?:je suis )?désolée?,? (?:mais )?je ne (?:peux|suis)": r"aider|répondre|fournir|créer|faire cela",
    r"lo siento,? (?:pero )?no puedo": r"ayudar|asistir|proporcionar|responder|cumplir|crear|generar|hacer eso",
    r"(?:desculpe|sinto muito|lamento),? (?:mas )?(?:eu )?não posso": r"ajudar|fornecer|responder|criar|atender",
    r"mi dispiace,? (?:ma )?non posso": r"aiutar|fornir|rispond|crear|soddisf",
    r"het spijt me,? ": r"helpen|beantwoorden|voldoen",
    r"(?:przykro mi|przepraszam),? (?:ale )?nie mogę": r"pomóc|odpowiedzieć|spełnić|udzielić",
    r"(?:извините|простите|к сожалению),? (?:но )?я не могу": r"помочь|выполнить|ответить|предоставить|создать",
    r"(?:很|非常)?(?:抱歉|对不起|對不起)\W*(?:但)?我?(?:不能|无法|無法)": r"帮|協助|协助|提供|回答|满足|生成|讨论|执行",
    r"(?:申し訳(?:ありません|ございません)|すみません)": r"できません|できかねます|いたしかねます|お答え",
    r"죄송(?:합니다|하지만|합니다만)": r"수 없습니다|어렵습니다",
}
"""How a refusal begins → what must follow in the same sentence."""
_REFUSAL = re.compile(
    rf"^\W*(?:{_UNABLE}|"
    + "|".join(rf"{opening}[^.\n]{{0,80}}?(?:{verbs})" for opening, verbs in _UNABLE_ELSEWHERE.items())
    + ")"
)
_CONTROL = re.compile(
    r"<\|[A-Za-z_0-9]{2,40}\|>|<\uff5c[^<>\uff5c\n]{2,40}\uff5c>|\[/?INST\]|<</?SYS>>|<(?:start|end)_of_turn>|"
    r"</s>\s*$|<eos>\s*$|<unk><unk>"
)
_WRITTEN_CALL = re.compile(r"^\s*(?:<tool_call>|<function=|\[TOOL_CALLS\]|<\|python_tag\|>|<function_call>)")
_RULES = frozenset("-_=+|.*#~ \t\r\n:0123456789,;[]()")
"""Characters whose runs are tables, rules and data, not a model that has lost its way."""


def format_faults(request: ChatRequest, observation: Observation, choice: int = 0) -> tuple[str, ...]:
    """Of `FAULTS`, those that a choice has; never raises.

    What was cut off is `truncated` and is not blamed for being half a JSON text. Schemas are checked as far as
    `json_schema` reads them. Of a stream that goes on, only what is there already is judged.
    """
    found = set(_faults(request, observation, choice))
    return tuple(fault for fault in FAULTS if fault in found)


def _faults(request: ChatRequest, seen: Observation, choice: int) -> Iterator[str]:
    text = seen.texts[choice] if choice < len(seen.texts) else ""
    calls = seen.tool_calls[choice] if choice < len(seen.tool_calls) else ()
    finish = seen.finish[choice] if choice < len(seen.finish) else None
    said = without_thinking(text)
    if (choice < len(seen.refused) and seen.refused[choice]) or (not calls and is_refusal(said)):
        yield "refusal"
    elif seen.whole and not calls and not said.strip():
        yield "empty"
    if finish == "length":
        yield "truncated"
    if repeats(text):
        yield "repetition"
    if _leaks(text, request.last_user_text):
        yield "control_tokens"
    if seen.whole and finish != "length":
        if not calls and said.strip():
            yield from _json_faults(request.fields.get("response_format"), said)
        yield from _tool_faults(request.fields, text, calls)


def is_refusal(text: str) -> bool:
    """Whether a text begins with one of the set phrases of refusing, in a dozen languages, and is short.

    Conservative: other words for it go unseen, "I cannot find an error" is none.
    """
    if len(text) > _LONGEST_REFUSAL:
        return False
    return _REFUSAL.match(text[:_OPENING].replace("\u2019", "'").casefold()) is not None


def repeats(text: str) -> bool:
    """Whether a text ends in a loop: the same piece at least six times over, 300 characters or more of it."""
    tail = text[: -_TAIL - 1 : -1]
    if len(tail) < _LEAST_RUN:
        return False
    borders = [0] * len(tail)
    border = 0
    for end in range(1, len(tail)):
        while border and tail[end] != tail[border]:
            border = borders[border - 1]
        border += tail[end] == tail[border]
        borders[end] = border
        run = end + 1
        period = run - border
        if run >= _LEAST_RUN and period * _LEAST_REPEATS <= run and not _RULES.issuperset(tail[:period]):
            return True
    return False


def _leaks(text: str, asked: str) -> bool:
    """Whether a marker of a chat template stands in a text whose ask does not speak of it."""
    if "<" not in text and "[" not in text:
        return False
    return any(each.group().strip() not in asked for each in _CONTROL.finditer(text[:_SCANNED]))


def _json_faults(wanted: Any, text: str) -> Iterator[str]:
    kind = wanted.get("type") if isinstance(wanted, Mapping) else None
    if kind not in ("json_object", "json_schema"):
        return
    found = _parsed(text)
    if found is None:
        yield "json"
        return
    if kind == "json_object":
        if not isinstance(found[0], dict):
            yield "json"
        return
    described = wanted.get("json_schema")
    schema = described.get("schema") if isinstance(described, Mapping) else None
    if schema is not None and not check_schema(found[0], schema).fits:
        yield "schema"


def _tool_faults(fields: Mapping[str, Any], text: str, calls: Sequence[tuple[str, str]]) -> Iterator[str]:
    tools = dict(_tools(fields))
    for name, arguments in calls:
        if name not in tools:
            yield "unknown_tool"
            continue
        schema = tools[name]
        if schema is _FREE:
            continue
        found = _parsed(arguments) if arguments.strip() else ({},)
        if found is None or not isinstance(found[0], dict) or not check_schema(found[0], schema).fits:
            yield "tool_arguments"
    wanted = _wanted_tool(fields)
    called = [name for name, _ in calls]
    lacks_it = wanted is not None and (wanted not in called if wanted else not called)
    if lacks_it or (tools and not calls and _WRITTEN_CALL.match(text[:_OPENING]) is not None):
        yield "missing_tool"


_FREE = object()
"""Instead of a schema, for a custom tool: its input is any text."""


def _tools(fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Name and parameters' schema of each tool."""
    given = fields.get("tools")
    for tool in given if isinstance(given, list) else ():
        if not isinstance(tool, Mapping):
            continue
        function, custom = tool.get("function"), tool.get("custom")
        if isinstance(function, Mapping):
            yield str(function.get("name")), function.get("parameters")
        elif isinstance(custom, Mapping):
            yield str(custom.get("name")), _FREE
    functions = fields.get("functions")
    for function in functions if isinstance(functions, list) else ():
        if isinstance(function, Mapping):
            yield str(function.get("name")), function.get("parameters")


def _wanted_tool(fields: Mapping[str, Any]) -> str | None:
    """The tool that must be called; `""` for any, None where the model may choose."""
    choice = fields.get("tool_choice") or fields.get("function_call")
    if choice == "required":
        return ""
    if not isinstance(choice, Mapping):
        return None
    if choice.get("type") == "allowed_tools":
        allowed = choice.get("allowed_tools")
        return "" if isinstance(allowed, Mapping) and allowed.get("mode") == "required" else None
    for named in (choice.get("function"), choice.get("custom"), choice):
        if isinstance(named, Mapping) and isinstance(named.get("name"), str):
            return str(named["name"])
    return None


def _parsed(text: str) -> tuple[Any] | None:
    if len(text) > _LONGEST_JSON:
        return None
    try:
        return (json.loads(text, parse_constant=_refuse),)
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")
