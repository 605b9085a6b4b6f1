"""Masking personal data: nothing generated survives, ordinary text does, and no text takes long."""

from __future__ import annotations

import ipaddress
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrouter.database import migrate
from llmrouter.quality.redaction import DEEPEST, Redactor, Unreadable
from llmrouter.tenancy.keys import KeyStore
from llmrouter.tenancy_sections import REDACT_KINDS

ALL = Redactor(REDACT_KINDS)


def masked(text: str) -> str:
    return ALL.text(text, Counter())


def found(text: str) -> dict[str, int]:
    counts: Counter[str] = Counter()
    ALL.text(text, counts)
    return dict(counts)


def _check_digit(digits: str) -> str:
    total = sum(int(digit) if at % 2 else sum(divmod(2 * int(digit), 10)) for at, digit in enumerate(reversed(digits)))
    return str(-total % 10)


def _grouped(digits: str, separator: str) -> str:
    return separator.join(digits[at : at + 4] for at in range(0, len(digits), 4))


cards = st.from_regex(r"[3-6][0-9]{11,17}", fullmatch=True).map(lambda digits: digits + _check_digit(digits))
anything = st.text(max_size=40)


@given(anything, st.emails(), anything)
def test_no_email_survives_whatever_stands_around_it(before: str, email: str, after: str):
    assert email not in masked(before + email + after)


@given(anything, st.emails(), anything)
def test_no_email_survives_in_the_arguments_of_a_tool_call(before: str, email: str, after: str):
    arguments = json.dumps({"to": before + email + after, before + email: [email]})
    request = {"messages": [{"tool_calls": [{"function": {"name": "send", "arguments": arguments}}]}]}
    kept = ALL.value(request, Counter())
    text = kept["messages"][0]["tool_calls"][0]["function"]["arguments"]
    assert email not in text
    assert email not in str(json.loads(text))


@given(
    st.text("abc ?!\n", max_size=20),
    cards,
    st.sampled_from(["", " ", "-", "\u00a0"]),
    st.sampled_from(["", " 12/29", " 123"]),
)
def test_no_card_number_survives(before: str, card: str, separator: str, after: str):
    written = _grouped(card, separator) if separator else card
    assert written not in masked(f"{before}{written}{after}")


@given(st.text("xyz ?\n", max_size=20), st.ip_addresses(), st.sampled_from(["", ".", ", ok", "/24", ":"]))
def test_no_address_of_a_machine_survives(before: str, address: Any, after: str):
    if isinstance(address, ipaddress.IPv6Address) and int(address) <= 0xFFFF:
        return
    space = " " if before else ""
    assert str(address) not in masked(f"{before}{space}{address}{after}")


@given(st.integers(0, 10**18 - 1), st.booleans())
def test_no_account_number_survives(number: int, spaced: bool):
    account = f"{number:018}"
    check = 98 - int(f"{account}131400") % 97
    iban = f"DE{check:02}{account}"
    written = _grouped(iban, " ") if spaced else iban
    assert found(f"Pay to {written} BIC COBADEFFXXX, please") == {"iban": 1}
    assert written not in masked(f"Pay to {written} BIC COBADEFFXXX, please")


def test_a_key_of_the_gateway_itself_is_masked(tmp_path: Path):
    store = tmp_path / "store.db"
    migrate(store)
    key, _ = KeyStore(store, b"pepper").create("default")
    assert masked(f"curl -H 'x: {key}'") == "curl -H 'x: [key]'"


@given(
    st.lists(
        st.sampled_from(["+49", " ", "a@b.co", "4111 1111 1111 1111", "10.0.0.1", "[", "\\", "ü", "key="]), max_size=12
    )
)
def test_a_masked_text_has_nothing_left_to_mask(parts: list[str]):
    once = masked("".join(parts))
    assert masked(once) == once


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Write to alice@example.com, please.", "Write to [email], please."),
        ("Write to Zoë.Müller@büro.example!", "Write to [email]!"),
        ("see mailto:alice%40example.com?x", "see mailto:[email]?x"),
        ("ask root@[10.1.2.3]", "ask [email]"),
        ("alice\uff20example.com", "[email]"),
        ("Call +49 (151) 123-45678 now", "Call [phone] now"),
        ("Call 555-123-4567 or (212) 555-0123", "Call [phone] or [phone]"),
        ("Ruf 0151 23456789 an", "Ruf [phone] an"),
        ("Ruf +49\u00a0151\u2011234\u2011567 an", "Ruf [phone] an"),
        ("card 4111 1111 1111 1111 12/26", "card [card] 12/26"),
        ("amex 3782-822463-10005.", "amex [card]."),
        ("from 192.168.0.17:443", "from [ip]:443"),
        ("at host:2001:db8::1.", "at host:[ip]."),
        ("use sk-proj-abcdefghijklmnop1234 here", "use [key] here"),
        ("AKIAIOSFODNN7EXAMPLE", "[key]"),
        ("Authorization: Bearer abcdefghijklmnop.qrst", "Authorization: Bearer [key]"),
        ('{"password": "hunter2", broken', '{"password": "[key]", broken'),
        ("my password is hunter2!", "my password is [key]"),
        ("api_key=9f8e7d6c5b4a", "api_key=[key]"),
        ("https://bob:s3cret@db.example/x", "https://bob:[key]@db.example/x"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE", "[key]"),
        ("-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----\nend", "[key]\nend"),
    ],
)
def test_what_is_masked_and_what_stands_around_it(text: str, expected: str):
    assert masked(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "What is 123456789 * 987654321?",
        "pi is 3.14159265358979, half of it 1.5707963",
        "the years 1999 2001 2003 2005 2007",
        "3 1 4 1 5 9 2 6 5 3 5 8 9 7 9 3 2 3 8 4",
        "at 12:30:45 on 2024-01-15T10:30:00+01:00",
        "std::vector<int> and xs[::2] and ys[::-1]",
        "token = tokenizer.next()",
        "version 1.2.3 of the @decorator",
        "DE12 is no account, nor is GB 2024",
        "timestamp 1764590000000",
    ],
)
def test_ordinary_text_is_left_alone(text: str):
    assert masked(text) == text


def test_only_the_kinds_that_were_asked_for_are_masked():
    counts: Counter[str] = Counter()
    assert Redactor(["email"]).text("a@b.example from 10.0.0.1", counts) == "[email] from 10.0.0.1"
    assert counts == {"email": 1}
    assert not Redactor([]).masks


def test_json_inside_json_is_read_before_it_is_searched_and_stays_json():
    inner = '{"to": "bob\\u0040example.com", "text": "Hi\\nal@b.example", "card": 4111111111111111}'
    counts: Counter[str] = Counter()
    kept = ALL.value({"messages": [{"content": json.dumps([inner])}]}, counts)
    [text] = json.loads(kept["messages"][0]["content"])
    assert json.loads(text) == {"to": "[email]", "text": "Hi\n[email]", "card": "[card]"}
    assert counts == {"email": 2, "card": 1}


def test_json_with_nothing_to_mask_keeps_its_very_text():
    text = '{ "a" : 1.0,\n "b": "c" }'
    assert ALL.value({"x": text}, Counter()) == {"x": text}


def test_keys_are_masked_and_none_of_two_is_lost():
    kept = ALL.value({"by": {"a@b.example": 1, "c@d.example": 2}}, Counter())
    assert kept == {"by": {"[email]": 1, "[email] 2": 2}}


def test_the_value_itself_is_left_as_it_is():
    given_value = {"messages": [{"content": "a@b.example"}]}
    ALL.value(given_value, Counter())
    assert given_value == {"messages": [{"content": "a@b.example"}]}


def test_what_is_nested_too_deeply_is_not_said_to_be_masked():
    deep: Any = "a@b.example"
    for _ in range(DEEPEST + 1):
        deep = [deep]
    with pytest.raises(Unreadable):
        ALL.value(deep, Counter())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@given(json_values)
def test_a_masked_value_has_the_shape_of_what_it_was(value: Any):
    def shape(each: Any) -> Any:
        if isinstance(each, dict):
            return [shape(inner) for inner in each.values()]
        return [shape(inner) for inner in each] if isinstance(each, list) else None

    assert shape(ALL.value(value, Counter())) == shape(value)


HOSTILE = ["4", "4 ", "4111 ", "DE89 ", "a@", "a@b.", "::", "1:", "+1 ", "0", "password=", "://:", "1.1.", '"', "sk-"]
HOSTILE += ["-----BEGIN PRIVATE KEY-----", "eyJaaaaaaaa.", "(", "[", '{"a":', "a@b.example "]


@pytest.mark.parametrize("unit", HOSTILE)
def test_the_time_for_hostile_text_grows_with_its_length_only(unit: str):
    """Twice the text takes about twice the time of this thread, however busy the machine is; backtracking, four times
    or worse. The floor keeps what takes no time at all from being compared."""

    def seconds(length: int) -> float:
        text = (unit * (length // len(unit) + 1))[:length]
        start = time.thread_time()
        ALL.value({"x": text}, Counter())
        return time.thread_time() - start

    short = min(seconds(32 * 1024) for _ in range(2))
    assert seconds(256 * 1024) < 20 * short + 0.1


@pytest.mark.parametrize("datum", ["+49 30 12345678", "192.168.1.17", "DE89370400440532013000", "sk-" + "abcd" * 6])
def test_a_datum_behind_an_escaped_line_break_is_found_in_json_that_stands_in_prose(datum: str):
    text = "The record: " + json.dumps({"note": f"see\n{datum}"})
    assert datum not in masked(text)
    assert masked(text).startswith('The record: {"note": "see\\n[')


def test_an_email_with_escaped_letters_is_masked_whole():
    text = "The record: " + json.dumps({"to": "jörg.müller@bücher.example"})
    assert masked(text) == 'The record: {"to": "[email]"}'


@pytest.mark.parametrize("email", ["bob&#x40;example.com", "bob&commat;example.com", "bob\uff20example\uff0ecom"])
def test_an_email_is_found_in_the_spelling_of_html_and_in_full_width(email: str):
    assert masked(f"to {email} now") == "to [email] now"


@given(anything, st.emails(), anything)
def test_reading_escapes_never_unmasks_what_stands_there_plainly(before: str, email: str, after: str):
    assert email not in masked(f"\\n{before}\\u00fc{email}\\t{after}")
