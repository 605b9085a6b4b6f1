"""Answers in one form per kind, so that those that say the same are equal however they are written.

An answer is first searched for what it comes to (a box, a tag, "the answer is", the last number); what is found is then
written in one way. Two answers that mean the same may still come out different; they then count as disagreement, which
costs money and never quality. Units are read over: "5 km" and "5 m" are both 5. Percent signs too: 25 % is 25.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence

from llmrouter.routing import number_form
from llmrouter.routing.choice_form import choice
from llmrouter.routing.code_form import code_of, code_text
from llmrouter.routing.evidence import AnswerKind
from llmrouter.routing.final_answer import boxed, final_answer, in_utf8, without_thinking
from llmrouter.routing.json_form import json_text, read_json, same_calls, value_text
from llmrouter.routing.text_form import fold

__all__ = ["NORMALISER_VERSION", "canonical"]

NORMALISER_VERSION = 1
"""Changes with every change that can make two answers equal or different; an artefact is bound to it."""

_LONGEST = 200_000
_ROUNDS = 6
_LONGEST_FORM = 24_000
_SHORT = 80
_TESTED = "tests: "
_CLOSED = frozenset(
    """yes no true false ja nein oui non sí si sim não да нет positive negative neutral entailment contradiction
    はい いいえ 是 否""".split()
)

Tests = Callable[[str], str | None]


def canonical(
    kind: AnswerKind,
    text: str,
    tool_calls: Sequence[tuple[str, str]] = (),
    *,
    options: Mapping[str, str] | None = None,
    run_tests: Tests | None = None,
) -> str | None:
    """What an answer comes to, in one form; None where it holds no usable answer.

    What comes out stays as it is when it goes in again. Takes time in proportion to the text, at most some ten
    milliseconds; never raises.

    Args:
        tool_calls: name and arguments (JSON text) of each call.
        options: of a choice: letter → text of each option, so that an answer may quote the option.
        run_tests: of code: told the code, says how its tests come out; code with the same outcome is the same.
    """
    text = without_thinking(in_utf8(text[:_LONGEST]))
    if kind == "tool_call" and tool_calls:
        text = same_calls([(in_utf8(name), in_utf8(arguments)) for name, arguments in tool_calls]) or ""
    if kind == "code" and run_tests is not None and text.strip():
        outcome = run_tests(code_of(text))
        return None if outcome is None else _TESTED + outcome
    read = _readers(options)[kind]
    form = _bounded(read(text))
    for _ in range(_ROUNDS):
        again = None if form is None else _bounded(read(form))
        if again == form:
            return form
        form = again
    return None


def _readers(options: Mapping[str, str] | None) -> dict[AnswerKind, Callable[[str], str | None]]:
    return {
        "number": _number,
        "choice": lambda text: choice(text, options),
        "label": _label,
        "json": _json,
        "tool_call": _call,
        "code": lambda text: code_text(code_of(text)),
        "text": lambda text: fold(text) or None,
    }


def _bounded(form: str | None) -> str | None:
    """The form, or the digest of one that is long or would not be read again whole."""
    if form is None or (len(form) <= _LONGEST_FORM and without_thinking(form) == form):
        return form
    return "sha256:" + hashlib.sha256(form.encode("utf-8", "replace")).hexdigest()


def _number(text: str) -> str | None:
    bare = text.strip()
    if not bare:
        return None
    if len(bare) <= _SHORT:
        whole = number_form.number(bare)
        if whole is None and "boxed" not in bare:
            whole = number_form.formula(bare)
        if whole is not None:
            return whole
    marked = final_answer(text)
    if marked is None:
        return None if number_form.undecided(bare[-400:]) else number_form.last_number(text)
    exact = number_form.number(marked)
    if exact is not None:
        return exact
    if boxed(text) == marked:
        return number_form.expression(marked)
    if number_form.undecided(marked):
        return None
    formula = number_form.formula(marked) if len(marked) <= _SHORT else None
    if formula is not None:
        return formula
    first = number_form.last_number(marked) if "=" in marked else number_form.first_number(marked)
    return first or number_form.last_number(text)


def _label(text: str) -> str | None:
    bare = text.strip()
    marked = final_answer(text)
    lines = [line for line in bare.splitlines() if line.strip()]
    if marked is None and lines:
        short = (each for each in (lines[-1], lines[0]) if len(each) <= _SHORT)
        marked = bare if len(lines) == 1 else next(short, bare)
    if marked is None:
        return None
    folded = fold(marked)
    first = fold(marked.replace(";", ",").replace(".", ",").partition(",")[0])
    return first if first in _CLOSED else folded or None


def _json(text: str) -> str | None:
    form = json_text(text)
    return form if form is not None else (fold(text) or None)


def _call(text: str) -> str | None:
    """A call that a model wrote into its text instead; else what it says in place of a call."""
    found = read_json(text) if "{" in text else None
    if found is not None:
        given = found[0] if isinstance(found[0], list) else [found[0]]
        calls = [each for each in given if isinstance(each, dict) and isinstance(each.get("name"), str)]
        if calls and len(calls) == len(given):
            return _calls(calls)
    return fold(text) or None


def _calls(calls: list[dict[str, object]]) -> str | None:
    forms = []
    for call in calls:
        arguments = call.get("arguments", call.get("parameters", {}))
        form = value_text({"name": call["name"], "arguments": arguments})
        if form is None:
            return None
        forms.append(form)
    return f"[{','.join(sorted(forms))}]"
