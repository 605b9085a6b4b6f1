"""Compiles a rule's `match`: each key into a `Condition`, each fault into a `Problem` that names the key.

The keys, all optional and ANDed: `intent`, `tenant`, `tier`, `tag`, `input_tokens`, `needs`, `stream`, `time`, `regex`.
They are asked in that order, so that what costs most is asked last.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from zoneinfo import ZoneInfo

import re2

from llmrouter.config import CAPABILITIES
from llmrouter.routing.match import Condition, Facts, Match
from llmrouter.routing.problems import Problem, did_you_mean

__all__ = [
    "DAYS",
    "MATCH_KEYS",
    "PATTERN_LIMIT",
    "REPEAT_LIMIT",
    "compile_match",
    "compile_pattern",
    "names_of",
    "pattern_of",
]

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
PATTERN_LIMIT = 1024
"""Characters of a regex."""
REPEAT_LIMIT = 200
"""What the counts of a regex such as `{3,50}` may add up to. RE2 never backtracks, but its time per character grows
with the counts: nested ones took 0.14 s on a hostile text of full length, patterns without them take microseconds."""
_COUNTS = re.compile(r"\{(\d+)(?:,(\d*))?\}")


def compile_match(match: Any, at: str) -> tuple[Match, tuple[Problem, ...]]:
    """Compile the match of one rule; `at` is its path in problems, e.g. `rules[3].match`.

    With problems, the match has no condition for the keys at fault and must not be used.
    """
    if not isinstance(match, Mapping):
        return Match.of(()), (Problem(at, f"must be a table of conditions, not {_shown(match)}"),)
    problems = [
        Problem(f"{at}.{key}", f"no such condition{did_you_mean(key, MATCH_KEYS)}")
        for key in match
        if key not in _COMPILERS
    ]
    conditions: list[Condition] = []
    for key, compiler in _COMPILERS.items():
        if key in match:
            found, faults = compiler(key, match[key], f"{at}.{key}")
            conditions += found
            problems += faults
    return Match.of(tuple(conditions)), tuple(problems)


_Compiled = tuple[list[Condition], list[Problem]]


def names_of(value: Any) -> tuple[str, ...]:
    """The names of a condition that takes one name or a list of them; empty when it is neither."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list | tuple) and all(isinstance(name, str) for name in value):
        return tuple(value)
    return ()


def _names(value: Any, at: str) -> tuple[frozenset[str], list[Problem]]:
    names = names_of(value)
    if not names:
        wrong = "must name at least one" if value in ([], ()) else f"must be a name or a list, not {_shown(value)}"
        return frozenset(), [Problem(at, wrong)]
    if not all(names):
        return frozenset(), [Problem(at, "holds an empty name")]
    return frozenset(names), []


def _one_of(read: Callable[[Facts], str]) -> Callable[[str, Any, str], _Compiled]:
    def compiled(key: str, value: Any, at: str) -> _Compiled:
        names, problems = _names(value, at)
        if problems:
            return [], problems
        wanted = " or ".join(map(repr, sorted(names)))
        return [Condition(key, lambda facts: read(facts) in names, wanted, lambda facts: repr(read(facts)))], []

    return compiled


def _tag(key: str, value: Any, at: str) -> _Compiled:
    if not isinstance(value, Mapping) or not value:
        return [], [Problem(at, f"must be a table of tag names and values, not {_shown(value)}")]
    conditions: list[Condition] = []
    problems: list[Problem] = []
    for name, wanted in value.items():
        values, faults = _names(wanted, f"{at}.{name}")
        problems += faults
        if not faults:
            conditions.append(_tag_condition(f"{key}.{name}", str(name), values))
    return conditions, problems


def _tag_condition(key: str, name: str, values: frozenset[str]) -> Condition:
    return Condition(
        key,
        lambda facts: facts.tags.get(name) in values,
        " or ".join(map(repr, sorted(values))),
        lambda facts: repr(facts.tags[name]) if name in facts.tags else "no such tag",
    )


def _input_tokens(key: str, value: Any, at: str) -> _Compiled:
    if not isinstance(value, Mapping) or not value:
        return [], [Problem(at, f"must be a table with min, max or both, not {_shown(value)}")]
    problems = [
        Problem(f"{at}.{name}", f"no such bound{did_you_mean(name, ('min', 'max'))}")
        for name in value
        if name not in ("min", "max")
    ]
    problems += [
        Problem(f"{at}.{name}", f"must be a whole number from 0 up, not {_shown(bound)}")
        for name, bound in value.items()
        if name in ("min", "max") and (not isinstance(bound, int) or isinstance(bound, bool) or bound < 0)
    ]
    if problems:
        return [], problems
    low, high = value.get("min", 0), value.get("max")
    if high is not None and low >= high:
        return [], [Problem(at, f"holds for nothing: min {low} is included, max {high} is not")]
    test = (
        (lambda facts: facts.input_tokens >= low) if high is None else (lambda facts: low <= facts.input_tokens < high)
    )
    wanted = f"{low} or more" if high is None else f"{low} up to but not {high}"
    return [Condition(key, test, wanted, lambda facts: str(facts.input_tokens))], []


def _needs(key: str, value: Any, at: str) -> _Compiled:
    names, problems = _names(value, at)
    problems += [
        Problem(at, f"no capability {name!r}{did_you_mean(name, CAPABILITIES)}")
        for name in sorted(names - CAPABILITIES)
    ]
    if problems:
        return [], problems
    wanted = " and ".join(sorted(names))
    return [Condition(key, lambda facts: names <= facts.needs, wanted, lambda facts: _listed(facts.needs))], []


def _stream(key: str, value: Any, at: str) -> _Compiled:
    if not isinstance(value, bool):
        return [], [Problem(at, f"must be true or false, not {_shown(value)}")]
    return [
        Condition(key, lambda facts: facts.stream is value, str(value).lower(), lambda f: str(f.stream).lower())
    ], []


@dataclass(frozen=True, slots=True)
class _Window:
    """A daily window in local wall-clock time; one that passes midnight belongs to the day on which it starts."""

    days: frozenset[int]
    start: int
    """First minute of the day that is inside."""
    end: int
    """First minute that is outside again."""
    zone: ZoneInfo

    def holds(self, facts: Facts) -> bool:
        day, minute = facts.local(self.zone)
        if self.start < self.end:
            return self.start <= minute < self.end and day in self.days
        return (minute >= self.start and day in self.days) or (minute < self.end and (day - 1) % 7 in self.days)

    def words(self) -> str:
        days = "any day" if len(self.days) == len(DAYS) else ", ".join(DAYS[day] for day in sorted(self.days))
        return f"{days} from {_clock(self.start)} to {_clock(self.end)} {self.zone.key}"

    def found(self, facts: Facts) -> str:
        day, minute = facts.local(self.zone)
        return f"{DAYS[day]} {_clock(minute)} {self.zone.key}"


_TIME_KEYS = ("days", "from", "to", "timezone")


def _time(key: str, value: Any, at: str) -> _Compiled:
    if not isinstance(value, Mapping) or not value:
        return [], [Problem(at, f"must be a table with some of {', '.join(_TIME_KEYS)}, not {_shown(value)}")]
    problems = [
        Problem(f"{at}.{name}", f"no such key{did_you_mean(name, _TIME_KEYS)}")
        for name in value
        if name not in _TIME_KEYS
    ]
    days, faults = _days(value.get("days", DAYS), f"{at}.days")
    problems += faults
    start, faults = _minute(value.get("from", "00:00"), f"{at}.from")
    problems += faults
    end, faults = _minute(value.get("to", "24:00"), f"{at}.to")
    problems += faults
    zone, faults = _zone(value.get("timezone", "UTC"), f"{at}.timezone")
    problems += faults
    if not problems and start == end:
        problems.append(Problem(at, "from and to are equal; leave both out for the whole day"))
    if problems or zone is None:
        return [], problems
    window = _Window(days, start, end, zone)
    return [Condition(key, window.holds, window.words(), window.found)], []


def _days(value: Any, at: str) -> tuple[frozenset[int], list[Problem]]:
    names, problems = _names(value, at)
    problems += [Problem(at, f"no day {name!r}{did_you_mean(name, DAYS)}") for name in sorted(names - set(DAYS))]
    return (frozenset(), problems) if problems else (frozenset(DAYS.index(name) for name in names), [])


def _minute(value: Any, at: str) -> tuple[int, list[Problem]]:
    if isinstance(value, str) and len(value) == 5 and value[2] == ":" and (value[:2] + value[3:]).isdecimal():
        hour, minute = int(value[:2]), int(value[3:])
        if minute < 60 and 60 * hour + minute <= 24 * 60:
            return 60 * hour + minute, []
    return 0, [Problem(at, f'must be a time of day in quotes such as "18:30", not {_shown(value)}')]


def _zone(value: Any, at: str) -> tuple[ZoneInfo | None, list[Problem]]:
    try:
        return ZoneInfo(value), []
    except (KeyError, ValueError, OSError, TypeError):  # what ZoneInfo raises for unknown names, folders and non-names
        return None, [Problem(at, f"no time zone {_shown(value)}; name one of the IANA list such as 'Europe/Warsaw'")]


def pattern_of(value: Any) -> tuple[str, bool] | None:
    """Pattern and `ignore_case` of a `regex` condition, given as a string or a table; None when it is neither."""
    if isinstance(value, str):
        return value, False
    if isinstance(value, Mapping) and value.keys() <= {"pattern", "ignore_case"}:
        pattern, ignore_case = value.get("pattern"), value.get("ignore_case", False)
        if isinstance(pattern, str) and isinstance(ignore_case, bool):
            return pattern, ignore_case
    return None


def compile_pattern(pattern: str, *, ignore_case: bool = False) -> Any:
    """Compile for one purpose, to know whether a text matches: no groups are kept, which makes RE2 faster.

    Raises:
        re2.error: the pattern is not RE2's syntax.
    """
    options = re2.Options()
    options.never_capture = True
    options.log_errors = False
    options.case_sensitive = not ignore_case
    return re2.compile(pattern, options)


def _regex(key: str, value: Any, at: str) -> _Compiled:
    given = pattern_of(value)
    if given is None:
        return [], [Problem(at, f"must be a pattern or {{pattern, ignore_case}}, not {_shown(value)}")]
    pattern, ignore_case = given
    if not 0 < len(pattern) <= PATTERN_LIMIT:
        return [], [Problem(at, f"must have 1 to {PATTERN_LIMIT} characters, has {len(pattern)}")]
    try:
        compiled = compile_pattern(pattern, ignore_case=ignore_case)
    except (re2.error, UnicodeEncodeError) as error:
        return [], [Problem(at, f"{_re2_words(error)} (RE2 syntax: no look-around, no back-references)")]
    repeats = sum(int(most or least) for least, most in _COUNTS.findall(pattern))
    if repeats > REPEAT_LIMIT:
        return [], [Problem(at, f"repeat counts add up to {repeats}, at most {REPEAT_LIMIT} are allowed")]
    search = compiled.search
    condition = Condition(
        key,
        lambda facts: facts.some_regex_may_hold and search(facts.text) is not None,
        f"a match of {pattern!r} in the last user turn",
        lambda _: "none",
    )
    return [condition], []


def _re2_words(error: Exception) -> str:
    given = error.args[0] if error.args else str(error)
    return given.decode("utf-8", "replace") if isinstance(given, bytes) else str(error)


def _clock(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"


def _listed(names: frozenset[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _shown(value: Any) -> str:
    return repr(value)[:80]


_COMPILERS: Mapping[str, Callable[[str, Any, str], _Compiled]] = {
    "intent": _one_of(lambda facts: facts.intent),
    "tenant": _one_of(lambda facts: facts.tenant_id),
    "tier": _one_of(lambda facts: facts.tier_id),
    "tag": _tag,
    "input_tokens": _input_tokens,
    "needs": _needs,
    "stream": _stream,
    "time": _time,
    "regex": _regex,
}
MATCH_KEYS = tuple(_COMPILERS)
