r"""Numbers as people and models write them, in one form: "1,200", "$1.200,00" and "\frac{2400}{2}" are 1200."""

from __future__ import annotations

import unicodedata
from decimal import Decimal, localcontext
from fractions import Fraction

import re2

__all__ = ["expression", "first_number", "formula", "last_number", "number", "undecided"]

_MOST_DIGITS = 300
_PLAIN = 20
_LONGEST_EXPRESSION = 200
_WINDOWS = (160, 1500)
"""Characters from the end in which the last number is looked for, the nearest ones first."""
_PLACES, _LEAST_PLACES = 6, 4
"""Significant digits of a number that is not whole, but at least so many decimals: 1/3 and 0.333333 are the same."""

_SPACES = "\u00a0\u2007\u2009\u202f"
_THIN = re2.compile("([0-9])[" + _SPACES + "]([0-9]{3})")
_NUMBER = re2.compile(
    r"(?P<sign>[-+]?)(?P<digits>\d{1,3}(?:['\x{2019}_]\d{3})+(?:[.,]\d+)?|\d+(?:[.,]\d+)*|\.\d+)"
    r"(?P<exponent>[eE][-+]?\d{1,3}\b)?"
)
_POWER_OF_TEN = re2.compile(r"^\s*(?:\*|\x{d7}|\\times|\\cdot)\s*10\s*\^\s*\{?\s*([-+]?\d{1,3})\s*\}?")
_OVER = re2.compile(r"^\s*/\s*(\d+)(?:[^\d.,/]|$)")
_MIXED = re2.compile(r"^(?:\s+|\s*\\?\s*)(?:(\d{1,9})\s*/\s*(\d{1,9})|\\frac\{(\d{1,9})\}\{(\d{1,9})\})(?:[^\d/]|$)")
_FRACTION = re2.compile(
    r"(?P<sign>[-+]?)\s*\\frac\s*(?:\{\s*(?P<top>[-+]?\d+)\s*\}|(?P<t>\d))"
    r"\s*(?:\{\s*(?P<bottom>[-+]?\d+)\s*\}|(?P<b>\d))"
)
_TEXT = re2.compile(r"\\(?:text|textbf|textrm|mathrm|mathbf|mbox|bf|rm)\s*\{([^{}]*)\}")
_NOISE = re2.compile(r"\\(?:left|right|displaystyle|quad|qquad|[!,;:> ])|\\[()\[\]]|\$")
_LONGEST_UNIT = 48
_UNIT_SIGNS = " \t\n%°€£¥₹$.²³/^\\-"
_LARGE = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12, "mn": 6, "bn": 9}
_LARGE_WORD = re2.compile(r"^[\s-]*(?i:(thousand|million|billion|trillion|mn|bn)\b|(k)\b)")
_WORDS = {
    word: value
    for value, word in enumerate(
        """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
        seventeen eighteen nineteen twenty""".split()
    )
}
_VULGAR = {"½": "1/2", "¼": "1/4", "¾": "3/4", "⅓": "1/3", "⅔": "2/3", "⅕": "1/5", "⅛": "1/8", "⅜": "3/8", "⅝": "5/8"}
_DATE = re2.compile(r"^\d{1,4}-\d{1,2}-\d{1,4}$")
_WORD = re2.compile(r"(?:^|[^\\\p{L}])\p{L}{3}")
_UNDECIDED = re2.compile(
    r"(?i)\b(?:cannot|can't|can not|could not|couldn't|impossible to|unable to|not enough|insufficient|no way to)\b"
    r"[^.\n]{0,40}\b(?:determin|answer|calculat|find|found|solv|information|data|know|tell|say|comput|simplif)"
)


def undecided(text: str) -> bool:
    """Whether a short answer says that there is none."""
    return _UNDECIDED.search(text[:400]) is not None


def number(text: str) -> str | None:
    """The one number that a short text is, with nothing but currency, unit and brackets around it; None otherwise."""
    if len(text) < _PLAIN and text.lstrip("-").isdecimal() and text.isascii() and text.count("-") == (text[0] == "-"):
        return str(int(text))
    bare = _clean(text[:1000]).strip()
    bare = bare.rpartition("=")[2].strip() if "=" in bare else bare
    bare = bare.strip("*_`\"' ").removesuffix(".").strip()
    word = _WORDS.get(bare.casefold())
    if word is not None:
        return str(word)
    if bare.casefold() in ("infinity", "infinite", "\\infty", "∞", "inf"):
        return "inf"
    lead = bare.lstrip("$€£¥₹~≈ ")
    if lead.startswith(("-$", "-€", "-£")):
        lead = "-" + lead[2:]
    read = _read(lead, 0)
    if read is None:
        return None
    value, end = read
    return _form(value) if _is_unit(lead[end:]) else None


def last_number(text: str) -> str | None:
    """The last number in a text, or in its last 1,500 characters; None where there is none."""
    for window in _WINDOWS:
        tail = text[-window:]
        if len(text) > window:
            tail = tail[tail.find(" ") + 1 :]  # what is cut in two may be a number
        found = _last_number(_clean(tail))
        if found is not None:
            return _form(found)
    return None


def _last_number(text: str) -> Fraction | None:
    found: Fraction | None = None
    at = 0
    while (start := _next_start(text, at)) is not None:
        read = _read(text, start)
        if read is None:
            at = _after_digits(text, start)
        else:
            found, at = read
    return found


def first_number(text: str) -> str | None:
    """The first number in a text; None where there is none."""
    cleaned = _clean(text[:1500])
    at = 0
    while (start := _next_start(cleaned, at)) is not None:
        read = _read(cleaned, start)
        if read is not None:
            return _form(read[0])
        at = _after_digits(cleaned, start)
    return None


def formula(text: str) -> str | None:
    """The form of a short text that is a formula, a tuple, a ratio or a date, and not words; None of any other."""
    bare = _clean(text).strip().strip("*_`. ")
    bracketed = bare[:1] in ("(", "[", "{", "\\") and "," in bare
    if not bracketed and not any(sign in bare for sign in "^\\:/*") and not _DATE.match(bare):
        return None
    return None if _WORD.search(bare) is not None else expression(text)


def expression(text: str) -> str | None:
    r"""A formula that is no plain number, in the form `\boxed{…}`: without spaces and the trimmings of LaTeX."""
    bare = _clean(text).replace("\\cdot", "*").replace("\\times", "*").replace("\\infty", "∞")
    bare = "".join(bare.split()).strip(".").removesuffix("\\")
    name, equals, rest = bare.partition("=")
    if equals and len(name) <= 2 and rest:
        bare = rest
    return f"\\boxed{{{bare}}}" if 0 < len(bare) <= _LONGEST_EXPRESSION else None


def _is_unit(text: str) -> bool:
    return len(text) <= _LONGEST_UNIT and all(letter.isalpha() or letter in _UNIT_SIGNS for letter in text)


def _clean(text: str) -> str:
    for vulgar, plain in _VULGAR.items():
        if vulgar in text:
            text = text.replace(vulgar, f" {plain}")
    text = text.replace("\\$", "").replace("\\%", "%").replace("{,}", ",").replace("\\dfrac", "\\frac")
    text = text.replace("\\tfrac", "\\frac").replace("^\\circ", "").replace("^{\\circ}", "")
    text = text.replace("\u2212", "-").replace("\u2013", "-").replace("\u2044", "/")
    if "\\" in text or "$" in text:
        text = _NOISE.sub("", _TEXT.sub(r" \1 ", text))
    return text if text.isascii() else unicodedata.normalize("NFKC", _THIN.sub(r"\1'\2", text))


def _next_start(text: str, at: int) -> int | None:
    """Where the next number begins, its sign or `\frac` included; a digit inside a name or an index is none."""
    for position in range(at, len(text)):
        letter = text[position]
        before = text[position - 1] if position else " "
        if letter == "\\" and text.startswith("\\frac", position):
            return position - 1 if before == "-" else position
        if "0" <= letter <= "9" and not (before.isalpha() or before in "_^"):
            signed = before == "-" and (position < 2 or text[position - 2] in " \t\n(=:$[{,*≈")
            return position - 1 if signed else position
        if letter == "." and before in " \t(=:$-" and text[position + 1 : position + 2].isdecimal():
            return position
    return None


def _after_digits(text: str, start: int) -> int:
    at = start + 1
    while at < len(text) and (text[at].isdecimal() or text[at] in ".,"):
        at += 1
    return at


def _read(text: str, start: int) -> tuple[Fraction, int] | None:
    """The number that begins there and where it ends."""
    rest = text[start : start + 700]
    fraction = _FRACTION.match(rest)
    if fraction is not None:
        top, bottom = fraction.group("top") or fraction.group("t"), fraction.group("bottom") or fraction.group("b")
        if int(bottom) == 0:
            return None
        sign = -1 if fraction.group("sign") == "-" else 1
        return sign * Fraction(int(top), int(bottom)), start + fraction.end()
    found = _NUMBER.match(rest)
    if found is None:
        return None
    value = _value(found.group("digits"))
    if value is None:
        return None
    exponent = found.group("exponent")
    if exponent is not None:
        value = _scaled(value, int(exponent[1:]))
    value, end = _extended(value, rest, found.end())
    return (-value if found.group("sign") == "-" else value), start + end


def _extended(value: Fraction, text: str, end: int) -> tuple[Fraction, int]:
    """With what follows the digits: a power of ten, a fraction's lower part, `million`."""
    rest = text[end:]
    power = _POWER_OF_TEN.match(rest)
    if power is not None:
        return _scaled(value, int(power.group(1))), end + power.end()
    over = _OVER.match(rest)
    if over is not None and int(over.group(1)) != 0:
        return value / int(over.group(1)), end + over.end(1)
    mixed = _MIXED.match(rest)
    if mixed is not None and value.denominator == 1:
        top, bottom = mixed.group(1) or mixed.group(3), mixed.group(2) or mixed.group(4)
        if int(bottom) != 0:
            return value + Fraction(int(top), int(bottom)), end + mixed.end(2 if mixed.group(2) else 4)
    large = _LARGE_WORD.match(rest)
    if large is not None:
        return _scaled(value, _LARGE[large.group(1).lower()] if large.group(1) else 3), end + large.end()
    return value, end


def _scaled(value: Fraction, exponent: int) -> Fraction:
    return value * Fraction(10) ** exponent


def _value(digits: str) -> Fraction | None:
    """Digits with separators; None where they are a version, a date or a list."""
    if len(digits) > _MOST_DIGITS:
        return None
    for each in (*_SPACES, " ", "'", "\u2019", "_"):
        digits = digits.replace(each, "")
    if "," in digits and "." in digits:
        decimal = "," if digits.rfind(",") > digits.rfind(".") else "."
        whole, _, part = digits.rpartition(decimal)
        thousands = "." if decimal == "," else ","
        if decimal in whole or not _grouped(whole.split(thousands)):
            return None
        return Fraction(f"{whole.replace(thousands, '')}.{part}")
    if "," in digits:
        parts = digits.split(",")
        if _grouped(parts) and parts[0] != "0":
            return Fraction(digits.replace(",", ""))
        return Fraction(digits.replace(",", ".")) if len(parts) == 2 else None
    if digits.count(".") > 1:
        parts = digits.split(".")
        return Fraction(digits.replace(".", "")) if _grouped(parts) and parts[0] != "0" else None
    return Fraction(digits)


def _grouped(parts: list[str]) -> bool:
    return 1 <= len(parts[0]) <= 3 and all(len(part) == 3 for part in parts[1:])


def _form(value: Fraction) -> str | None:
    if value.denominator == 1:
        return str(value.numerator) if abs(value.numerator) < 10**_MOST_DIGITS else None
    with localcontext() as context:
        context.prec = _MOST_DIGITS * 3
        exact = Decimal(value.numerator) / Decimal(value.denominator)
        places = max(_LEAST_PLACES, _PLACES - 1 - exact.adjusted())
        if places > _MOST_DIGITS:
            return "0"
        rounded = exact.quantize(Decimal(1).scaleb(-places))
        text = format(rounded, "f")
    text = text.rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text
