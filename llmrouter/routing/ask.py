"""What a router looks at: the ask of a request, apart from the history and the boilerplate around it.

Agent harnesses wrap a short ask in much text of their own: reminders and descriptions of the environment in tags,
instructions that come again with every turn, diffs, logs and output of tools. That text says little about how hard the
ask is, so it is left out and only counted. What is left out is recognised by its form, never by its language.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from llmrouter.types import ChatRequest, value

__all__ = ["Ask", "ask_of", "read_ask"]


@value
class Ask:
    """The parts of a request that its difficulty may depend on; all text as it came, in Unicode."""

    text: str
    """The last user turn, without what is recognised as an agent harness's boilerplate."""
    history: str = ""
    """A short extract of the earlier turns and of the system prompt, most recent last."""
    tools: str = ""
    """Names and descriptions of the tools offered; empty when none are."""
    turns: int = 1
    """User turns, with the last one."""
    boilerplate: int = 0
    """Characters of the last user turn that were left out of `text`."""
    max_output_tokens: int | None = None


def read_ask(request: ChatRequest) -> Ask:
    """The ask of a parsed request. It never fails: parts of a shape it does not know are passed over."""
    fields = request.fields
    given = fields.get("messages")
    if given is None:
        given = request.last_user_text
    offered = fields.get("tools") or fields.get("functions") or ()
    return ask_of(given, offered, max_output_tokens=request.max_output_tokens)


def ask_of(given: Any, tools: Any = (), *, max_output_tokens: int | None = None) -> Ask:
    """The ask of a row of labels or of a request.

    Args:
        given: a prompt, or messages as the API takes them.
        tools: a text that describes them, or a list as the API takes it.
    """
    if isinstance(given, str):
        text, left_out = _without_boilerplate(given, "")
        return Ask(text, "", _tools(tools), 1, left_out, max_output_tokens)
    messages = given if isinstance(given, Sequence) else ()
    turns = [(str(each.get("role")), _text(each.get("content"))) for each in messages if isinstance(each, Mapping)]
    last = next((at for at in range(len(turns) - 1, -1, -1) if turns[at][0] == "user" and turns[at][1]), None)
    if last is None:
        return Ask("", _history(turns), _tools(tools), 0, 0, max_output_tokens)
    before = turns[:last]
    said = next((text for role, text in reversed(before) if role == "user"), "")
    text, left_out = _without_boilerplate(turns[last][1], said)
    count = 1 + sum(role == "user" for role, _ in before)
    return Ask(text, _history(before), _tools(tools), count, left_out, max_output_tokens)


_REPEATED = 200
"""Characters from which on a paragraph that has been said before is taken for instructions that come every time."""
_LINES = 8
"""Lines of a diff, a log or a trace from which on they are taken for an attachment."""
_OF_A_TURN, _OF_ALL = 240, 1200
_OF_TOOLS = 2000

_LONGEST = 60_000
"""Characters of a turn that are looked at; of a longer one, the middle is passed over."""
_MOST_TAGS = 256

_ASKS = re.compile(r"<(user_query|user_request|userRequest|user_message|task|query|question|feedback|request)>")
"""Tags in which harnesses put what the user himself wrote."""

_WRAPPED = re.compile(
    r"<((?:system|environment|user|tool|function|workspace|project|editor|command|local-command|git|open|recent|recently"
    r"|attached|additional|cursor|custom|selected|current|visible|linter|terminal|file|directory|code)"
    r"[-_](?:reminder|details|context|info|results?|output|name|message|args|stdout|stderr|status|files?|data|rules"
    r"|layout|instructions?|contents?|selection|errors?|state|structure|tree|viewed_files|attachments?|snippets?"
    r"|documents?|viewed|history|directory|listing|memory|summary|calls?)"
    r"|env|context|instructions|INSTRUCTIONS|reminder|attachments|editorContext|reminderInstructions|gitStatus)"
    r"(?:\s[^<>]{0,200})?>"
)
"""What harnesses add on their own, in tags of its own."""

_DIFF = re.compile(
    r"^(?:diff --git |--- |@@ )[^\n]*\n"
    r"(?:(?:[ +@\\-]|index |diff --git |new file |deleted file |similarity |rename )[^\n]*\n)+",
    re.M,
)

_ATTACHED = re.compile(
    r"[ \t]+at \S|[ \t]+File \""  # a trace
    r"|\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d|\[?(?:TRACE|DEBUG|INFO|WARN|WARNING|ERROR|FATAL)\b"  # a log
    r"|[-dl](?:[r-][w-][xsStT-]){3}"  # a listing of files
    r"|[ ]*\d+[→|\t]"  # numbered lines of a file
)
"""How a line of an attachment begins."""


def _without_boilerplate(text: str, said_before: str) -> tuple[str, int]:
    """The text without what is recognised as boilerplate, and how many characters that was. An ask that would vanish
    stays as it is."""
    kept = text
    if len(text) > _LONGEST:
        kept = f"{text[: _LONGEST * 2 // 3]}\n{text[-_LONGEST // 3 :]}"
    if "</" in kept:
        own = [inside for _, _, inside in _tagged(kept, _ASKS) if inside.strip()]
        kept = "\n".join(own) if own else _without(kept, _tagged(kept, _WRAPPED))
    if kept.count("\n") >= _LINES:
        kept = _without_attached(kept)
        if "\n@@ " in kept:
            kept = _DIFF.sub("\n", f"{kept}\n")
    if said_before and len(kept) >= _REPEATED:
        said_before = said_before[:_LONGEST]
        parts = kept.split("\n\n")
        kept = "\n\n".join(part for part in parts if len(part) < _REPEATED or part not in said_before)
    if kept is text:
        return text, 0
    kept = kept.strip()
    if not kept:
        return text, 0
    return kept, max(len(text.strip()) - len(kept), 0)


def _without_attached(text: str) -> str:
    """Leaves out runs of lines that look like an attachment's."""
    lines = text.split("\n")
    kept: list[str] = []
    run: list[str] = []
    for line in lines:
        if _ATTACHED.match(line):
            run.append(line)
            continue
        if run:
            kept += run if len(run) < _LINES else [""]
            run = []
        kept.append(line)
    kept += run if len(run) < _LINES else [""]
    return text if len(kept) == len(lines) else "\n".join(kept)


def _tagged(text: str, opening: re.Pattern[str]) -> Iterator[tuple[int, int, str]]:
    """Where each tag begins, where its closing one ends, and what stands between; in linear time, whatever the text."""
    at, seen = 0, 0
    never_closed: set[str] = set()
    while seen < _MOST_TAGS and (found := opening.search(text, at)):
        seen += 1
        name, at = found.group(1), found.end()
        end = -1 if name in never_closed else text.find(f"</{name}>", at)
        if end < 0:
            never_closed.add(name)
            continue
        yield found.start(), end + len(name) + 3, text[at:end]
        at = end + len(name) + 3


def _without(text: str, parts: Iterable[tuple[int, int, str]]) -> str:
    kept, at = [], 0
    for begin, end, _ in parts:
        kept.append(text[at:begin])
        at = end
    return "\n".join([*kept, text[at:]]) if at else text


def _history(turns: Sequence[tuple[str, str]]) -> str:
    """The beginning of every turn, as far back as there is room, after the beginning of the system prompt."""
    if not turns:
        return ""
    rules = [text[:_OF_A_TURN] for role, text in turns[:2] if role in ("system", "developer")]
    room = _OF_ALL - sum(map(len, rules))
    said: list[str] = []
    for role, text in reversed(turns):
        if role not in ("user", "assistant") or not text:
            continue
        part = text[:_OF_A_TURN]
        room -= len(part)
        if room < 0:
            break
        said.append(part)
    return "\n".join([*rules, *reversed(said)])


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    texts = [part.get("text") for part in content if isinstance(part, Mapping)]
    return "\n".join(text for text in texts if isinstance(text, str))


def _tools(given: Any) -> str:
    if isinstance(given, str):
        return given[:_OF_TOOLS]
    if not isinstance(given, Sequence):
        return ""
    lines: list[str] = []
    room = _OF_TOOLS
    for each in given:
        body = each.get("function", each) if isinstance(each, Mapping) else None
        if not isinstance(body, Mapping) or room <= 0:
            continue
        line = f"{body.get('name') or ''}: {body.get('description') or ''}"[:room]
        room -= len(line)
        lines.append(line)
    return "\n".join(lines)
