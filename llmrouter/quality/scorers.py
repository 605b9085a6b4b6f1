"""Scorers: how good an answer is against what was expected, decided by rules that give the same every time.

Each finds the final answer in a text first, behind a reasoning model's thoughts where they stand in it: after the last
`Answer:`, `answer is`, `####` or in the last `\\boxed{}`, else where such an answer usually stands. That short answer
is given back too, because agreement compares it.
"""

from __future__ import annotations

import ast
import math
import re
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import orjson

from llmrouter.quality.labels import Faulty
from llmrouter.types import value

__all__ = ["SCORERS", "Scored", "Scorer", "scorer_of"]


@value
class Scored:
    """What a scorer makes of one answer."""

    score: float
    """From 0 to 1."""
    answer: str | None
    """The short answer that was found; None where there is none, or the scorer looks at the whole text."""


class Scorer(Protocol):
    """Scores answers to one item; made by a factory that has checked what is expected."""

    def __call__(self, text: str) -> Scored:
        """Score one answer; any text gives a score, and the same one gives the same."""


def scorer_of(given: Any, expected: Any) -> Scorer:
    """The scorer that `scorer` and `expected` of a golden item stand for.

    Args:
        given: a name of `SCORERS`, or an object with `type` and the scorer's options.

    Raises:
        Faulty: the scorer or an option is not known, or what is expected does not fit.
    """
    options = dict(given) if isinstance(given, Mapping) else {"type": given}
    name = options.pop("type", None)
    if not isinstance(name, str) or (factory := SCORERS.get(name)) is None:
        raise Faulty(f"scorer: {name!r:.60} is none of {', '.join(SCORERS)}")
    known = _OPTIONS.get(factory, ())
    for option in options:
        if option not in known:
            raise Faulty(f"scorer.{option}: is no option of {name}; it has {', '.join(known) or 'none'}")
    scorer = factory(expected, options)
    return lambda text: scorer(_THOUGHTS.sub("", text))


_MARK = re.compile(r"(?:\banswer\b[^\w\n]{0,4}(?:is\b|:)|\bthe answer\b[^\w\n]{0,4}|####)[^\S\n]*:?", re.IGNORECASE)
_BOXED = re.compile(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}")
_THOUGHTS = re.compile(r"^.*</think(?:ing)?>", re.DOTALL)
_FENCE = re.compile(r"```[\w+-]*\n(.*?)```", re.DOTALL)
_NUMBER = re.compile(
    r"(?:(?<![\w)])[-+])?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d{1,3}(?!\w))?"
)
_LONGEST_LITERAL = 20_000


def _final(text: str) -> str | None:
    """What stands in the last box, or after the last mark up to the end of its line (of the next, if that is empty)."""
    boxes = _BOXED.findall(text)
    if boxes:
        return str(boxes[-1]).strip()
    marks = list(_MARK.finditer(text))
    if not marks:
        return None
    rest = text[marks[-1].end() :].strip()
    return rest.split("\n", 1)[0].strip(" \t*`") or None


def _plain(text: str) -> str:
    return unicodedata.normalize("NFKC", text).replace("\u2212", "-")


def _number(expected: Any, options: Mapping[str, Any]) -> Scorer:
    wanted = _to_number(expected)
    if wanted is None:
        raise Faulty(f"expected: must be a number, not {expected!r:.60}")
    tolerance = options.get("tolerance", 1e-6)
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not 0 <= tolerance < 1:
        raise Faulty(f"scorer.tolerance: must be a number from 0 up to 1, not {tolerance!r:.60}")

    def score(text: str) -> Scored:
        found = _number_in(_plain(text))
        if found is None:
            return Scored(0.0, None)
        return Scored(float(math.isclose(found, wanted, rel_tol=tolerance, abs_tol=1e-9)), _written(found))

    return score


def _to_number(given: Any) -> float | None:
    if isinstance(given, bool):
        return None
    if isinstance(given, int | float):
        return float(given) if math.isfinite(given) else None
    return _number_in(_plain(given)) if isinstance(given, str) else None


def _number_in(text: str) -> float | None:
    """The first number of the final answer, else the last of the text."""
    final = _final(text)
    found = _NUMBER.findall(final) if final is not None else []
    chosen = found[0] if found else next(reversed(_NUMBER.findall(text)), None)
    if chosen is None:
        return None
    number = float(chosen.replace(",", ""))
    return number if math.isfinite(number) else None


def _written(number: float) -> str:
    whole = number.is_integer() and abs(number) < 1e15  # beyond that, not every whole number has a float
    return str(int(number)) if whole else repr(number)


def _choice(expected: Any, options: Mapping[str, Any]) -> Scorer:
    choices = options.get("choices", "ABCDEFGHIJ")
    letters = "".join(choices) if isinstance(choices, list) and all(isinstance(c, str) for c in choices) else choices
    if not isinstance(letters, str) or not re.fullmatch("[A-Z]{2,26}", letters):
        raise Faulty(f"scorer.choices: must be letters such as ABCD, not {choices!r:.60}")
    wanted = expected.strip().upper() if isinstance(expected, str) else expected
    if not isinstance(wanted, str) or len(wanted) != 1 or wanted not in letters:
        raise Faulty(f"expected: must be one of the letters {letters}, not {expected!r:.60}")

    def score(text: str) -> Scored:
        found = _letter_in(_plain(text), letters)
        return Scored(float(found == wanted), found)

    return score


def _letter_in(text: str, letters: str) -> str | None:
    one = f"([{letters}])"
    final = _final(text)
    tries = [] if final is None else [(rf"^[\W_]*{one}(?![\w'])", final)]
    tries += [
        (rf"^[\W_]*{one}[\W_]*$", text),
        (rf"^[\W_]*{one}[).:]\s", text),
        (rf"\({one}\)", text),
        (rf"(?m)^[\W_]*{one}[\W_]*$", text),
        (rf"\b(?![AI]\s+[a-z]){one}\b(?!')", text),
    ]
    for pattern, place in tries:
        if found := re.findall(pattern, place):
            return str(found[-1])
    return None


def _exact(expected: Any, options: Mapping[str, Any]) -> Scorer:
    wanted = {_normal(each) for each in _texts(expected)}
    after = _after(options)

    def score(text: str) -> Scored:
        found = _normal(_behind(text, after))
        return Scored(float(found in wanted), found or None)

    return score


def _contains(expected: Any, options: Mapping[str, Any]) -> Scorer:
    wanted = [_normal(each) for each in _texts(expected)]
    after = _after(options)

    def score(text: str) -> Scored:
        found = _normal(_behind(text, after))
        return Scored(float(all(each in found for each in wanted)), None)

    return score


def _regex(expected: Any, options: Mapping[str, Any]) -> Scorer:
    import re2

    if not isinstance(expected, str) or not expected:
        raise Faulty(f"expected: must be a regular expression, not {expected!r:.60}")
    quiet = re2.Options()
    quiet.log_errors = False
    try:
        pattern = re2.compile(expected, quiet)
    except re2.error as error:
        raise Faulty(f"expected: {expected!r:.60} is no regular expression: {_words(error)}") from None
    after = _after(options)

    def score(text: str) -> Scored:
        found = pattern.search(_behind(text, after).encode(errors="replace").decode())
        return Scored(float(found is not None), None if found is None else found.group(0))

    return score


def _words(error: Exception) -> str:
    said = error.args[0] if error.args else error
    return said.decode(errors="replace") if isinstance(said, bytes) else str(said)


def _json(expected: Any, _: Mapping[str, Any]) -> Scorer:
    wanted = None if expected is None else _canonical_json(expected)

    def score(text: str) -> Scored:
        found = _json_in(text)
        return Scored(float(found is not None and wanted in (None, found)), found)

    return score


def _json_in(text: str) -> str | None:
    """The JSON that the text is, or the last fenced block, or what stands between the outermost brackets."""
    blocks = _FENCE.findall(text)
    for each in (text, *reversed(blocks), _bracketed(text)):
        try:
            return _canonical_json(orjson.loads(each))
        except (orjson.JSONDecodeError, RecursionError):
            continue
    return None


def _bracketed(text: str) -> str:
    starts = [at for at in (text.find("{"), text.find("[")) if at >= 0]
    return text[min(starts) : max(text.rfind("}"), text.rfind("]")) + 1] if starts else ""


def _canonical_json(given: Any) -> str:
    """Equal for values that are equal as JSON: keys in any order, 1 and 1.0 the same, true and 1 not."""
    return orjson.dumps(_whole_numbers(given), option=orjson.OPT_SORT_KEYS).decode()


def _whole_numbers(given: Any) -> Any:
    if isinstance(given, float) and given.is_integer() and abs(given) < 2**53:
        return int(given)
    if isinstance(given, dict):
        return {name: _whole_numbers(each) for name, each in given.items()}
    return [_whole_numbers(each) for each in given] if isinstance(given, list) else given


def _python_literal(expected: Any, _: Mapping[str, Any]) -> Scorer:
    wanted = _literal(expected) if isinstance(expected, str) else None
    if wanted is None:
        raise Faulty(f"expected: must be a Python literal as text, such as \"[1, 'a']\", not {expected!r:.60}")

    def score(text: str) -> Scored:
        found = _literal_in(text)
        return Scored(float(found == wanted), found)

    return score


def _literal_in(text: str) -> str | None:
    final = _final(text)
    lines = [line for line in text.strip().splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    blocks = [block for block in _FENCE.findall(text) if block.strip()]
    tries = [final, blocks[-1].strip() if blocks else None, text.strip(), last, last.rpartition("==")[2]]
    for each in tries:
        if each is not None and (found := _literal(each.strip(" \t`*"))) is not None:
            return found
    return None


def _literal(text: str) -> str | None:
    """The literal, written in one way; None where the text is none."""
    if len(text) > _LONGEST_LITERAL:
        return None
    try:
        return repr(_sorted_sets(ast.literal_eval(text.strip())))
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return None


def _sorted_sets(given: Any) -> Any:
    """The value with its dicts in order of their keys, as equality does not mind the order; sets likewise."""
    if isinstance(given, dict):
        items = [(_sorted_sets(key), _sorted_sets(each)) for key, each in given.items()]
        return dict(sorted(items, key=lambda item: repr(item[0])))
    if isinstance(given, set):
        return ("set", *sorted((_sorted_sets(each) for each in given), key=repr))
    if isinstance(given, list):
        return [_sorted_sets(each) for each in given]
    return tuple(_sorted_sets(each) for each in given) if isinstance(given, tuple) else given


def _texts(expected: Any) -> list[str]:
    texts = [expected] if isinstance(expected, str) else expected
    if not isinstance(texts, list) or not texts or not all(isinstance(each, str) and each for each in texts):
        raise Faulty(f"expected: must be a text or a list of texts, not {expected!r:.60}")
    return texts


def _after(options: Mapping[str, Any]) -> str | None:
    after = options.get("after")
    if after is not None and (not isinstance(after, str) or not after):
        raise Faulty(f"scorer.after: must be a text, not {after!r:.60}")
    return after


def _behind(text: str, mark: str | None) -> str:
    """What follows the last `mark`, to the end of its line; all of the text where it has none."""
    if mark is None or mark not in text:
        return text
    return text.rpartition(mark)[2].strip().split("\n", 1)[0]


def _normal(text: str) -> str:
    """The words alone: no capitals, one space, nothing but letters and digits at the ends."""
    return re.sub(r"^[\W_]+|[\W_]+$", "", " ".join(_plain(text).casefold().split()))


Factory = Callable[[Any, Mapping[str, Any]], Scorer]

SCORERS: Mapping[str, Factory] = {
    "number": _number,
    "numeric": _number,
    "choice": _choice,
    "exact": _exact,
    "contains": _contains,
    "json": _json,
    "regex": _regex,
    "python_literal": _python_literal,
}
"""Name → what makes the scorer of one item, from what is expected and the options."""

_OPTIONS: Mapping[Factory, tuple[str, ...]] = {
    _number: ("tolerance",),
    _choice: ("choices",),
    _exact: ("after",),
    _contains: ("after",),
    _regex: ("after",),
}
