"""Masks personal data and secrets in text and in whole JSON values, in time that grows with their length alone.

Each kind is searched for with RE2, which never backtracks, and what a pattern cannot decide (check digits, whether
colons and digits are an address) is decided on the few bytes that it found. A mask may take in more than the datum
itself; it never leaves a part of one. What no pattern can know (names, streets, what a picture shows) stays.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any

import orjson
import re2

from llmrouter.tenancy_sections import RedactKind

__all__ = ["MEDIA", "USER", "Redactor", "Unreadable"]

MEDIA = "[media]"
"""Stands for pictures, sound and files, which cannot be searched."""
USER = "[user]"
"""Stands for the name that a request gives its end user."""

DEEPEST = 200
"""Levels of lists and objects inside one another."""
NESTED = 4
"""Levels of JSON that is text inside JSON, such as the arguments of a tool call."""

Spans = Iterator[tuple[int, int]]


class Unreadable(Exception):
    """The value holds something that cannot be searched, so it cannot be said to be masked."""


class Redactor:
    """Masks the kinds that it was made for; may be used by several threads."""

    def __init__(self, kinds: Iterable[RedactKind]) -> None:
        wanted = set(kinds)
        self._finders = [(kind, f"[{kind}]".encode(), finder) for kind, finder in _FINDERS.items() if kind in wanted]

    @property
    def masks(self) -> bool:
        """Whether there is anything to mask at all."""
        return bool(self._finders)

    def text(self, text: str, counts: Counter[str]) -> str:
        """The text with placeholders such as `[email]`; adds what was found to `counts`, by kind."""
        if len(text) < 6:  # shorter than any datum
            return text
        data = before = text.encode("utf-8", "replace")
        for kind, placeholder, find in self._finders:
            data = _masked(data, _found(data, find), placeholder, kind, counts)
        return text if data is before else data.decode("utf-8", "replace")

    def value(self, value: Any, counts: Counter[str]) -> Any:
        """A JSON value with all its text masked: keys, long numbers, and JSON that is itself text inside it too.

        Text that is JSON stays JSON. The argument is left as it is.

        Raises:
            Unreadable: it is nested too deeply to be searched.
        """
        return self._value(value, counts, depth=0, nested=0)

    def _value(self, value: Any, counts: Counter[str], depth: int, nested: int) -> Any:
        if depth > DEEPEST:
            raise Unreadable(f"nested more than {DEEPEST} levels deep")
        if isinstance(value, str):
            return self._maybe_json(value, counts, depth, nested)
        if isinstance(value, Mapping):
            masked: dict[str, Any] = {}
            for key, each in value.items():
                masked[_free(self.text(key, counts), masked)] = self._value(each, counts, depth + 1, nested)
            return masked
        if isinstance(value, list | tuple):
            return [self._value(each, counts, depth + 1, nested) for each in value]
        if isinstance(value, int) and not isinstance(value, bool) and depth > 1:
            return self._number(value, counts)
        return value

    def _maybe_json(self, text: str, counts: Counter[str], depth: int, nested: int) -> str:
        """In JSON, `\\u0040` is an @ and `\\n` before an address is no letter n: it is read before it is searched."""
        if nested < NESTED and text.lstrip()[:1] in ("{", "["):
            try:
                inner = orjson.loads(text)
            except orjson.JSONDecodeError:
                return self.text(text, counts)
            found: Counter[str] = Counter()
            masked = self._value(inner, found, depth + 2, nested + 1)
            counts.update(found)
            return orjson.dumps(masked).decode() if found else text
        return self.text(text, counts)

    def _number(self, number: int, counts: Counter[str]) -> int | str:
        digits = str(number)
        if len(digits) < 9:
            return number
        masked = self.text(digits, counts)
        return number if masked == digits else masked


def _free(key: str, taken: Mapping[str, Any]) -> str:
    """Two keys may be masked alike; none of them is lost."""
    if key not in taken:
        return key
    number = 2
    while f"{key} {number}" in taken:
        number += 1
    return f"{key} {number}"


def _masked(data: bytes, spans: Spans, placeholder: bytes, kind: str, counts: Counter[str]) -> bytes:
    parts: list[bytes] = []
    end = 0
    for start, stop in spans:
        if start < end:
            continue
        parts += (data[end:start], placeholder)
        end = stop
        counts[kind] += 1
    if not parts:
        return data
    return b"".join((*parts, data[end:]))


def _found(data: bytes, find: Callable[[bytes], Spans]) -> Spans:
    """What a finder finds in text as it is, and read as the JSON or program text that may stand in it."""
    plain = _ESCAPE.sub(_read, data) if b"\\" in data else data
    return find(data) if plain == data else _joined([*find(data), *find(plain)])


def _read(escape: Any) -> bytes:
    """An escape as what it stands for, in as many bytes: space, or letters of other scripts."""
    text: bytes = escape.group()
    if text[1:2] != b"u":
        return b"  "
    return text if int(text[2:], 16) < 0x80 else b"\xff" * len(text)


def _compiled(pattern: bytes, *, ignore_case: bool = False) -> Any:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.log_errors = False
    options.case_sensitive = not ignore_case
    return re2.compile(pattern, options)


# `\n` before an address is no letter n, and `\u00fc` in one is a letter.
_ESCAPE = _compiled(rb"\\(?:[nrtbfv]|u[0-9A-Fa-f]{4})")

# Letters of other scripts are bytes from 0x80 on. The sign in the middle may be full-width, or escaped in a URL, in
# HTML or in program text.
_AT = rb"(?:@|%40|\xef\xbc\xa0|&#64;|&#x40;|&commat;|\\u0040)"
_EMAIL = _compiled(
    rb"""(?:[A-Za-z0-9.!#$%&'*+/=?^_`{|}~\x80-\xff-]+|"[^"\r\n]{1,64}")"""
    + _AT
    + rb"(?:[A-Za-z0-9\x80-\xff_-]+(?:(?:\.|\xef\xbc\x8e)[A-Za-z0-9\x80-\xff_-]+)+|\[[0-9A-Za-z:.]{2,50}\])"
)

_PEM = _compiled(rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----|\z)")
# Secrets that say what they are.
_TOKEN = _compiled(
    rb"\b(?:sk-[A-Za-z0-9_-]{16,}|lr-[0-9a-f]{12}-[A-Za-z0-9_-]{20,}|gh[opsur]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}"
    rb"|glpat-[A-Za-z0-9_-]{16,}|(?:AKIA|ASIA)[0-9A-Z]{16}|AIza[0-9A-Za-z_-]{30,}|ya29\.[0-9A-Za-z_-]{20,}"
    rb"|xox[abeoprs]-[A-Za-z0-9-]{10,}|hf_[A-Za-z0-9]{20,}|npm_[A-Za-z0-9]{20,}|pypi-[A-Za-z0-9_-]{20,}"
    rb"|gsk_[A-Za-z0-9]{20,}|(?:sk|rk|pk|whsec)_(?:live_|test_)?[A-Za-z0-9]{16,}"
    rb"|SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}|dop_v1_[a-f0-9]{32,}"
    rb"|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?)"
)
# Secrets that only their surroundings tell: a header, an address, the name of a password, of a key.
_NAMED = _compiled(
    rb"\b(?:bearer|basic)[ \t]{1,4}([A-Za-z0-9._~+/=-]{16,})"
    rb"|://[^\s/:@\"'<>]{0,128}:([^\s/@\"'<>]{1,256})@"
    rb"|pass(?:wor[dt]|wd|phrase)[\"'`]?(?:[ \t]{0,3}(?::=|=>|[:=])[ \t]{0,3}|[ \t]{1,3}is[ \t]{1,3})"
    rb"[\"'`]?([^\s\"'`,;<>(){}\[\]]{4,})"
    rb"|(?:api[_ -]?key|access[_ -]?key|secret|token)[\"'`]?[ \t]{0,3}(?::=|=>|[:=])[ \t]{0,3}"
    rb"[\"'`]?([^\s\"'`,;<>(){}\[\]]{8,})",
    ignore_case=True,
)
_KEY_GROUP = 4
_DIGIT = _compiled(rb"[0-9]")


def _secrets(data: bytes) -> Spans:
    found = [match.span() for pattern in (_PEM, _TOKEN) for match in pattern.finditer(data)]
    for match in _NAMED.finditer(data):
        group = match.lastindex
        # `token = tokenizer.next` is program text; a key without any digit is rare.
        if group != _KEY_GROUP or _DIGIT.search(match.group(group)) is not None:
            found.append(match.span(group))
    yield from _joined(found)


def _joined(spans: Iterable[tuple[int, int]]) -> Spans:
    """In order; spans that overlap become one, so that no end of one is left over."""
    start, stop = 0, 0
    for each_start, each_stop in sorted(spans):
        if each_start >= stop:
            if stop:
                yield start, stop
            start = each_start
        stop = max(stop, each_stop)
    if stop:
        yield start, stop


def _emails(data: bytes) -> Spans:
    for match in _EMAIL.finditer(data):
        yield match.span()


_IBAN_LENGTHS = {
    name: length
    for length, names in {
        15: "NO",
        16: "BE",
        18: "DK FI FK FO GL NL SD",
        19: "MK SI",
        20: "AT BA EE KZ LT LU MN XK",
        21: "CH HR LI LV",
        22: "BG BH CR DE GB GE IE ME RS VA",
        23: "AE GI IL IQ OM SO TL",
        24: "AD CZ ES MD PK RO SA SE SK TN VG",
        25: "LY PT ST",
        26: "IS TR",
        27: "BI DJ FR GR IT MC MR SM",
        28: "AL AZ BY CY DO GT HU LB NI PL SV",
        29: "BR EG PS QA UA",
        30: "JO KW MU YE",
        31: "MT SC",
        32: "LC",
        33: "RU",
    }.items()
    for name in names.split()
}
_IBAN_HEAD = _compiled(rb"\b[A-Z]{2}[ ]?[0-9]{2}", ignore_case=True)
_IBAN_SEPARATORS = b" -.\t"


def _ibans(data: bytes) -> Spans:
    for match in _IBAN_HEAD.finditer(data):
        stop = _iban_end(data, match.start())
        if stop:
            yield match.start(), stop


def _iban_end(data: bytes, start: int) -> int:
    """Where the account number that begins here ends; 0 when there is none."""
    length = _IBAN_LENGTHS.get(data[start : start + 2].upper().decode("ascii"))
    if length is None:
        return 0
    taken = bytearray()
    at = start
    while len(taken) < length and at < min(len(data), start + 2 * length):
        if data[at] not in _IBAN_SEPARATORS:
            taken.append(data[at])
        at += 1
    if len(taken) < length or not taken.isalnum() or data[at : at + 1].isalnum():
        return 0
    rearranged = (taken[4:] + taken[:4]).decode("ascii")
    return at if int("".join(str(int(char, 36)) for char in rearranged)) % 97 == 1 else 0


_SPACE = rb"(?:[ .-]|\xc2\xa0|\xe2\x80[\x90-\x95\xaf])"
_DIGIT_GROUPS = _compiled(rb"[0-9](?:" + _SPACE + rb"?[0-9]){12,}")
_DIGIT_GROUP = _compiled(rb"[0-9]+")
_CARD_LEAST, _CARD_MOST = 13, 19
_LEAST_GROUP = 3
"""Digits of each group of a card but its last; lists of small numbers are no cards."""
_DOUBLED = (0, 2, 4, 6, 8, 1, 3, 5, 7, 9)
"""What a digit counts for when it is doubled and the digits of that are added."""


def _cards(data: bytes) -> Spans:
    for match in _DIGIT_GROUPS.finditer(data):
        yield from _cards_among(match.group(), match.start())


def _cards_among(run: bytes, offset: int) -> Spans:
    """Groups of digits that together pass the check of payment cards, wherever among other groups they stand."""
    groups = [match.span() for match in _DIGIT_GROUP.finditer(run)]
    digits = b"".join(run[start:stop] for start, stop in groups)
    begins = [0, *accumulate(stop - start for start, stop in groups)]
    checks = _Luhn(digits)
    first = 0
    while first < len(groups):
        last = _card_end(begins, first, checks) if digits[begins[first]] in b"23456" else None
        if last is None:
            first += 1
            continue
        yield offset + groups[first][0], offset + groups[last][1]
        first = last + 1


def _card_end(begins: list[int], first: int, checks: _Luhn) -> int | None:
    """The last group of the longest card that begins with this one."""
    found = None
    for last in range(first, len(begins) - 1):
        length = begins[last + 1] - begins[first]
        if length > _CARD_MOST:
            break
        if length >= _CARD_LEAST and checks.passes(begins[first], begins[last + 1]):
            found = last
        if begins[last + 1] - begins[last] < _LEAST_GROUP:
            break
    return found


class _Luhn:
    """The check of card numbers for any part of a run of digits, from sums that are made once."""

    def __init__(self, digits: bytes) -> None:
        values = [digit - 48 for digit in digits]
        self._sums = [
            [0, *accumulate(_DOUBLED[each] if (at + odd) % 2 else each for at, each in enumerate(values))]
            for odd in (0, 1)
        ]

    def passes(self, start: int, stop: int) -> bool:
        """The last digit counts as it is, the one before it doubled, and so on."""
        sums = self._sums[(stop - 1) % 2]
        return (sums[stop] - sums[start]) % 10 == 0


_OCTET = rb"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[0-9]{1,2})"
_IPV4 = _compiled(rb"\b(?:" + _OCTET + rb"\.){3}" + _OCTET + rb"\b")
_COLONS = _compiled(rb"[0-9A-Fa-f:.]{3,}")
_LONGEST_IPV6 = 64
_SLICES = 0xFFFF
"""The addresses `::` to `::ffff` are nobody's, and more often program text such as `[::2]`."""


def _addresses(data: bytes) -> Spans:
    found = [match.span() for match in _IPV4.finditer(data)]
    if b":" in data:
        found += [span for match in _COLONS.finditer(data) for span in _ipv6(data, *match.span())]
    yield from _joined(found)


def _ipv6(data: bytes, start: int, stop: int) -> Spans:
    """The address in a run of digits and colons, without the punctuation and the ends of words around it."""
    if data.count(b":", start, stop) < 2 or stop - start > _LONGEST_IPV6:
        return
    if data[start - 1 : start].isalnum():  # `std::vector`
        start = data.index(b":", start, stop)
    if data[stop : stop + 1].isalnum():
        stop = data.rindex(b":", start, stop) + 1
    run = data[start:stop]
    front = len(run) - len(run.lstrip(b"."))
    run = run.strip(b".")
    for text, skipped in ((run, 0), (run[:-1], 0), (run[1:], 1), (run[1:-1], 1)):
        try:
            address = ipaddress.IPv6Address(text.decode("ascii"))
        except ValueError:
            continue
        if int(address) > _SLICES:
            yield start + front + skipped, start + front + skipped + len(text)
        return


# A phone number is known by its form: a country code, a trunk 0, or the 3-3-4 of North America. Bare digits are left,
# or every sum and every identifier in a prompt would go.
_GAP = rb"(?:[ ./()-]|\xc2\xa0|\xe2\x80[\x90-\x95\xaf]){0,3}"
_PHONE = _compiled(
    rb"(?:^|[^0-9A-Za-z.,+])"
    rb"(\+[ ]?[1-9](?:" + _GAP + rb"[0-9]){6,14}"
    rb"|00[1-9](?:" + _GAP + rb"[0-9]){7,13}"
    rb"|\(?0[1-9][0-9]{1,4}\)?(?:" + _GAP + rb"[0-9]){5,10}"
    rb"|(?:\+?1"
    + _SPACE
    + rb"?)?(?:\([2-9][0-9]{2}\)[ ]?|[2-9][0-9]{2}"
    + _SPACE
    + rb")[0-9]{3}"
    + _SPACE
    + rb"[0-9]{4}"
    rb")\b"
)


def _phones(data: bytes) -> Spans:
    for match in _PHONE.finditer(data):
        yield match.span(1)


# Secrets first: a password in an address would else look like an e-mail.
_FINDERS: Mapping[RedactKind, Callable[[bytes], Spans]] = {
    "key": _secrets,
    "email": _emails,
    "iban": _ibans,
    "card": _cards,
    "ip": _addresses,
    "phone": _phones,
}
