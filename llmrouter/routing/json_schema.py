"""Whether a JSON value fits a JSON schema, as far as this reads one; what it cannot check it names and lets pass.

The subset is what response formats and tools use: types, enumerations, objects, lists, numbers, strings with patterns,
combinations, conditions and references inside the schema. Time is bounded: past the budget the rest counts as
unchecked.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import re2

from llmrouter.types import value

__all__ = ["SchemaReport", "check_schema"]

_BUDGET = 20_000
"""Steps; a small answer takes some tens, and combinations of combinations would take for ever."""
_DEEPEST = 64
_LONGEST_PATTERN = 1000
_MOST_FAULTS = 8
_IGNORED = frozenset(
    """$schema $id $defs definitions $comment title description default examples deprecated readOnly writeOnly name
    strict nullable then else $anchor example""".split()
)


@value
class SchemaReport:
    """What was found; a value fits where there are no faults."""

    faults: tuple[str, ...] = ()
    """Where and what, e.g. `$.items[2].price: not a number`; the first few."""
    unchecked: tuple[str, ...] = ()
    """Keywords that were met and not checked, e.g. `format`."""

    @property
    def fits(self) -> bool:
        return not self.faults


def check_schema(given: Any, schema: Any) -> SchemaReport:
    """Check a parsed JSON value; raises nothing, whatever the schema is."""
    checker = _Checker(schema)
    try:
        faults = checker.faults(given, schema, "$", 0)
    except RecursionError:
        return SchemaReport((), ("depth",))
    return SchemaReport(tuple(faults[:_MOST_FAULTS]), tuple(sorted(checker.unchecked)))


_Faults = list[str]


class _Checker:
    """One check: the root that references point into, and the budget."""

    def __init__(self, root: Any) -> None:
        self.unchecked: set[str] = set()
        self._root = root
        self._left = _BUDGET

    def faults(self, given: Any, schema: Any, at: str, depth: int) -> _Faults:
        self._left -= 1
        if self._left < 0 or depth > _DEEPEST:
            self.unchecked.add("size" if self._left < 0 else "depth")
            return []
        if schema is True or schema is None:
            return []
        if schema is False:
            return [f"{at}: not allowed"]
        if not isinstance(schema, Mapping):
            self.unchecked.add("schema")
            return []
        if given is None and schema.get("nullable") is True:
            return []
        found: _Faults = []
        for keyword, wanted in schema.items():
            check = _CHECKS.get(keyword)
            if check is not None:
                found += check(self, given, wanted, schema, at, depth + 1)
            elif keyword not in _IGNORED and not _is_subordinate(keyword):
                self.unchecked.add(str(keyword)[:64])
        return found

    def fits(self, given: Any, schema: Any, depth: int) -> bool | None:
        """None where that hangs on what is not checked."""
        before = set(self.unchecked)
        self.unchecked = set()
        found = self.faults(given, schema, "$", depth)
        unsure = bool(self.unchecked)
        self.unchecked |= before
        return False if found else None if unsure else True

    def referred(self, reference: Any) -> Any:
        """What a local reference points to; True, which all fits, where it is none or points nowhere."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            self.unchecked.add("$ref")
            return True
        node = self._root
        for step in reference[1:].split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(node, Mapping) and name in node:
                node = node[name]
            elif isinstance(node, list) and name.isdecimal() and int(name[:9]) < len(node):
                node = node[int(name[:9])]
            else:
                self.unchecked.add("$ref")
                return True
        return node


_Check = Callable[[_Checker, Any, Any, Mapping[str, Any], str, int], _Faults]


def _is_subordinate(keyword: Any) -> bool:
    """Keywords that the check of another one reads."""
    return keyword in ("minContains", "maxContains", "additionalItems")


def _is_number(given: Any) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool)


def _is_type(given: Any, name: Any) -> bool:
    if name == "integer":
        return _is_number(given) and (isinstance(given, int) or (math.isfinite(given) and given == int(given)))
    if name == "number":
        return _is_number(given)
    types: dict[Any, type] = {"string": str, "boolean": bool, "object": dict, "array": list, "null": type(None)}
    return isinstance(given, types[name]) if isinstance(name, str) and name in types else True


def _type(checker: _Checker, given: Any, wanted: Any, _schema: Mapping[str, Any], at: str, _depth: int) -> _Faults:
    names = wanted if isinstance(wanted, list) else [wanted]
    if any(not isinstance(name, str) for name in names):
        checker.unchecked.add("type")
        return []
    return [] if any(_is_type(given, name) for name in names) else [f"{at}: not of type {' or '.join(names)[:60]}"]


def _key(given: Any) -> str:
    """Equal for values that JSON schema holds equal: 1 and 1.0, but not 1 and true."""
    return json.dumps(_whole(given), sort_keys=True)


def _whole(given: Any) -> Any:
    if isinstance(given, float) and math.isfinite(given) and given == int(given):
        return int(given)
    if isinstance(given, list):
        return [_whole(each) for each in given]
    if isinstance(given, dict):
        return {name: _whole(each) for name, each in given.items()}
    return given


def _enum(checker: _Checker, given: Any, wanted: Any, _schema: Mapping[str, Any], at: str, _depth: int) -> _Faults:
    if not isinstance(wanted, list):
        checker.unchecked.add("enum")
        return []
    return [] if _key(given) in map(_key, wanted) else [f"{at}: none of the allowed values"]


def _const(_checker: _Checker, given: Any, wanted: Any, _schema: Mapping[str, Any], at: str, _depth: int) -> _Faults:
    return [] if _key(given) == _key(wanted) else [f"{at}: not the value it must be"]


def _required(_checker: _Checker, given: Any, wanted: Any, _schema: Mapping[str, Any], at: str, _depth: int) -> _Faults:
    if not isinstance(given, dict) or not isinstance(wanted, list):
        return []
    return [f"{at}: lacks {str(name)[:60]}" for name in wanted if isinstance(name, str) and name not in given]


def _properties(checker: _Checker, given: Any, wanted: Any, _schema: Mapping[str, Any], at: str, depth: int) -> _Faults:
    if not isinstance(given, dict) or not isinstance(wanted, Mapping):
        return []
    found: _Faults = []
    for name, schema in wanted.items():
        if name in given:
            found += checker.faults(given[name], schema, f"{at}.{str(name)[:60]}", depth)
    return found


def _pattern_properties(
    checker: _Checker, given: Any, wanted: Any, _schema: Mapping[str, Any], at: str, depth: int
) -> _Faults:
    if not isinstance(given, dict) or not isinstance(wanted, Mapping):
        return []
    found: _Faults = []
    for pattern, schema in wanted.items():
        for name, each in given.items():
            if _matches(checker, pattern, name):
                found += checker.faults(each, schema, f"{at}.{name[:60]}", depth)
    return found


def _additional(checker: _Checker, given: Any, wanted: Any, schema: Mapping[str, Any], at: str, depth: int) -> _Faults:
    if not isinstance(given, dict) or wanted is True:
        return []
    named = schema.get("properties")
    patterns = schema.get("patternProperties")
    known = set(named) if isinstance(named, Mapping) else set()
    found: _Faults = []
    for name, each in given.items():
        if name in known or any(_matches(checker, one, name) for one in (patterns or ())):
            continue
        if wanted is False:
            found.append(f"{at}: has {name[:60]}, which is not allowed")
        else:
            found += checker.faults(each, wanted, f"{at}.{name[:60]}", depth)
    return found


def _property_names(
    checker: _Checker, given: Any, wanted: Any, _schema: Mapping[str, Any], at: str, depth: int
) -> _Faults:
    names = given if isinstance(given, dict) else ()
    return [fault for name in names for fault in checker.faults(name, wanted, at, depth)]


def _items(checker: _Checker, given: Any, wanted: Any, schema: Mapping[str, Any], at: str, depth: int) -> _Faults:
    if not isinstance(given, list):
        return []
    if isinstance(wanted, list):
        return _prefix_items(checker, given, wanted, schema, at, depth)
    prefix = schema.get("prefixItems")
    start = len(prefix) if isinstance(prefix, list) else 0
    found: _Faults = []
    for position in range(start, len(given)):
        found += checker.faults(given[position], wanted, f"{at}[{position}]", depth)
    return found


def _prefix_items(
    checker: _Checker, given: Any, wanted: Any, _schema: Mapping[str, Any], at: str, depth: int
) -> _Faults:
    if not isinstance(given, list) or not isinstance(wanted, list):
        return []
    pairs = enumerate(zip(given, wanted, strict=False))
    return [
        fault
        for position, (each, schema) in pairs
        for fault in checker.faults(each, schema, f"{at}[{position}]", depth)
    ]


def _unique(_checker: _Checker, given: Any, wanted: Any, _schema: Mapping[str, Any], at: str, _depth: int) -> _Faults:
    if not isinstance(given, list) or wanted is not True:
        return []
    return [] if len(set(map(_key, given))) == len(given) else [f"{at}: an item stands there twice"]


def _contains(checker: _Checker, given: Any, wanted: Any, schema: Mapping[str, Any], at: str, depth: int) -> _Faults:
    if not isinstance(given, list):
        return []
    fits = [checker.fits(each, wanted, depth) for each in given]
    least, most = schema.get("minContains", 1), schema.get("maxContains", len(given))
    if None in fits or not _is_number(least) or not _is_number(most):
        return []
    return [] if least <= fits.count(True) <= most else [f"{at}: holds {fits.count(True)} items of a kind"]


def _limit(size: Callable[[Any], Any], within: Callable[[Any, Any], bool], says: str) -> _Check:
    """A check of a number that `size` reads off a value; None there is no business of this keyword."""

    def check(checker: _Checker, given: Any, wanted: Any, _schema: Mapping[str, Any], at: str, _depth: int) -> _Faults:
        measured = size(given)
        if measured is None:
            return []
        if not _is_number(wanted):
            checker.unchecked.add("limit")
            return []
        return [] if within(measured, wanted) else [f"{at}: {says} {wanted}"]

    return check


def _number(given: Any) -> Any:
    return given if _is_number(given) else None


def _length(given: Any) -> Any:
    return len(given) if isinstance(given, str) else None


def _count(given: Any) -> Any:
    return len(given) if isinstance(given, list) else None


def _size(given: Any) -> Any:
    return len(given) if isinstance(given, dict) else None


def _divides(given: float, step: float) -> bool:
    if step == 0:
        return True
    if isinstance(given, int) and isinstance(step, int):
        return given % step == 0
    times = float(given) / float(step)
    return not math.isfinite(times) or abs(times - round(times)) < 1e-9


def _pattern(checker: _Checker, given: Any, wanted: Any, _schema: Mapping[str, Any], at: str, _depth: int) -> _Faults:
    if not isinstance(given, str):
        return []
    return [] if _matches(checker, wanted, given, unsure=True) else [f"{at}: does not match the pattern"]


def _matches(checker: _Checker, pattern: Any, text: str, *, unsure: bool = False) -> bool:
    """Whether a pattern is found; `unsure` where it is none, or one that only a backtracking engine reads."""
    checked = isinstance(pattern, str) and len(pattern) <= _LONGEST_PATTERN
    options = re2.Options()
    options.log_errors = False
    try:
        found = re2.compile(pattern.encode("utf-8", "replace"), options) if checked else None
    except re2.error:
        found = None
    if found is None:
        checker.unchecked.add("pattern")
        return unsure
    return found.search(text.encode("utf-8", "replace")) is not None


def _all_of(checker: _Checker, given: Any, wanted: Any, _schema: Mapping[str, Any], at: str, depth: int) -> _Faults:
    schemas = wanted if isinstance(wanted, list) else ()
    return [fault for schema in schemas for fault in checker.faults(given, schema, at, depth)]


def _any_of(checker: _Checker, given: Any, wanted: Any, _schema: Mapping[str, Any], at: str, depth: int) -> _Faults:
    if not isinstance(wanted, list) or not wanted:
        return []
    for schema in wanted:
        if checker.fits(given, schema, depth) is not False:
            return []
    return [f"{at}: fits none of the alternatives"]


def _one_of(checker: _Checker, given: Any, wanted: Any, _schema: Mapping[str, Any], at: str, depth: int) -> _Faults:
    if not isinstance(wanted, list) or not wanted:
        return []
    fits = [checker.fits(given, schema, depth) for schema in wanted]
    if fits.count(True) > 1:
        return [f"{at}: fits more than one of the alternatives"]
    return [] if True in fits or None in fits else [f"{at}: fits none of the alternatives"]


def _not(checker: _Checker, given: Any, wanted: Any, _schema: Mapping[str, Any], at: str, depth: int) -> _Faults:
    return [f"{at}: fits what it must not"] if checker.fits(given, wanted, depth) is True else []


def _if(checker: _Checker, given: Any, wanted: Any, schema: Mapping[str, Any], at: str, depth: int) -> _Faults:
    fits = checker.fits(given, wanted, depth)
    if fits is None:
        return []
    return checker.faults(given, schema.get("then" if fits else "else", True), at, depth)


def _dependent(
    _checker: _Checker, given: Any, wanted: Any, _schema: Mapping[str, Any], at: str, _depth: int
) -> _Faults:
    if not isinstance(given, dict) or not isinstance(wanted, Mapping):
        return []
    needed = {one for name, others in wanted.items() if name in given and isinstance(others, list) for one in others}
    return [f"{at}: lacks {str(name)[:60]}" for name in sorted(map(str, needed)) if name not in given]


def _ref(checker: _Checker, given: Any, wanted: Any, _schema: Mapping[str, Any], at: str, depth: int) -> _Faults:
    return checker.faults(given, checker.referred(wanted), at, depth)


_CHECKS: dict[str, _Check] = {
    "type": _type,
    "enum": _enum,
    "const": _const,
    "required": _required,
    "properties": _properties,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional,
    "propertyNames": _property_names,
    "items": _items,
    "prefixItems": _prefix_items,
    "uniqueItems": _unique,
    "contains": _contains,
    "minimum": _limit(_number, lambda one, other: one >= other, "less than"),
    "maximum": _limit(_number, lambda one, other: one <= other, "more than"),
    "exclusiveMinimum": _limit(_number, lambda one, other: one > other, "not more than"),
    "exclusiveMaximum": _limit(_number, lambda one, other: one < other, "not less than"),
    "multipleOf": _limit(_number, _divides, "not a multiple of"),
    "minLength": _limit(_length, lambda one, other: one >= other, "shorter than"),
    "maxLength": _limit(_length, lambda one, other: one <= other, "longer than"),
    "minItems": _limit(_count, lambda one, other: one >= other, "fewer items than"),
    "maxItems": _limit(_count, lambda one, other: one <= other, "more items than"),
    "minProperties": _limit(_size, lambda one, other: one >= other, "fewer fields than"),
    "maxProperties": _limit(_size, lambda one, other: one <= other, "more fields than"),
    "pattern": _pattern,
    "allOf": _all_of,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "not": _not,
    "if": _if,
    "dependentRequired": _dependent,
    "$ref": _ref,
}
