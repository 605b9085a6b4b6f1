from datetime import UTC, datetime, time, timedelta

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from llmrouter.routing.conditions import MATCH_KEYS, PATTERN_LIMIT, compile_match
from llmrouter.routing.match import REGEX_TEXT_LIMIT, Match
from tests.routing.rig import NOON, facts


def compiled(match) -> Match:
    found, problems = compile_match(match, "rules[0].match")
    assert not problems
    return found


def params(match) -> list[str]:
    """Paths of all problems, without the rule's own."""
    return [
        problem.param.removeprefix("rules[0].match").lstrip(".")
        for problem in compile_match(match, "rules[0].match")[1]
    ]


def test_an_empty_match_holds_for_everything():
    assert compiled({}).holds(facts())


@pytest.mark.parametrize("wanted", ["code", ["math", "code"], ("code",)])
def test_intent_takes_one_name_or_several(wanted):
    match = compiled({"intent": wanted})
    assert match.holds(facts(intent="code"))
    assert not match.holds(facts(intent="chat"))


def test_the_unknown_intent_can_be_matched():
    assert compiled({"intent": "unknown"}).holds(facts())


def test_tenant_and_tier_compare_with_the_verified_principal_and_the_tier_asked_for():
    assert compiled({"tenant": "acme", "tier": ["auto", "economy"]}).holds(facts())
    assert not compiled({"tenant": "globex"}).holds(facts())
    assert not compiled({"tier": "economy"}).holds(facts())


def test_every_tag_named_must_have_one_of_its_values():
    match = compiled({"tag": {"team": ["search", "ads"], "stage": "prod"}})
    assert match.holds(facts(tags={"team": "ads", "stage": "prod", "other": "x"}))
    assert not match.holds(facts(tags={"team": "ads"}))
    assert not match.holds(facts(tags={"team": "hr", "stage": "prod"}))


@pytest.mark.parametrize(
    ("tokens", "holds"),
    [(99, False), (100, True), (199, True), (200, False)],
)
def test_input_tokens_includes_min_and_excludes_max(tokens, holds):
    assert compiled({"input_tokens": {"min": 100, "max": 200}}).holds(facts(tokens=tokens)) is holds


def test_two_neighbouring_token_ranges_meet_without_gap_or_overlap():
    short, long = compiled({"input_tokens": {"max": 500}}), compiled({"input_tokens": {"min": 500}})
    for tokens in (0, 499, 500, 501, 10**6):
        assert short.holds(facts(tokens=tokens)) is not long.holds(facts(tokens=tokens))


def test_stream_tells_streamed_requests_from_whole_ones():
    assert compiled({"stream": True}).holds(facts(stream=True))
    assert not compiled({"stream": True}).holds(facts())
    assert compiled({"stream": False}).holds(facts())


def test_needs_holds_when_the_request_needs_at_least_those():
    match = compiled({"needs": ["tools", "vision"]})
    assert match.holds(facts(needs=frozenset({"tools", "vision", "n"})))
    assert not match.holds(facts(needs=frozenset({"tools"})))


def test_regex_searches_anywhere_in_the_last_user_turn():
    match = compiled({"regex": r"\brefund\b"})
    assert match.holds(facts("I want a refund now"))
    assert not match.holds(facts("refunded"))


def test_regex_minds_the_case_unless_told_otherwise():
    assert not compiled({"regex": "refund"}).holds(facts("REFUND"))
    assert compiled({"regex": {"pattern": "refund", "ignore_case": True}}).holds(facts("REFUND"))
    assert compiled({"regex": "(?i)refund"}).holds(facts("REFUND"))


def test_regex_knows_unicode_and_survives_lone_surrogates():
    assert compiled({"regex": r"^\pL+ß$"}).holds(facts("Grüß"))
    assert not compiled({"regex": "x"}).holds(facts("\ud800"))


def test_regex_looks_at_a_bounded_part_of_the_text():
    match = compiled({"regex": "needle"})
    assert match.holds(facts("." * (REGEX_TEXT_LIMIT - 6) + "needle"))
    assert not match.holds(facts("." * (REGEX_TEXT_LIMIT - 5) + "needle"))


def test_a_regex_that_kills_backtracking_engines_is_harmless():
    assert not compiled({"regex": r"^(a+)+$"}).holds(facts("a" * 4000 + "!"))


def at(moment: str) -> datetime:
    return datetime.fromisoformat(moment).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("moment", "holds"),
    [
        ("2026-12-01T08:59", False),
        ("2026-12-01T09:00", True),
        ("2026-12-01T16:59", True),
        ("2026-12-01T17:00", False),
        ("2026-12-05T12:00", False),  # a Saturday
    ],
)
def test_time_includes_from_and_excludes_to(moment, holds):
    match = compiled({"time": {"days": ["mon", "tue", "wed", "thu", "fri"], "from": "09:00", "to": "17:00"}})
    assert match.holds(facts(now=at(moment))) is holds


@pytest.mark.parametrize(
    ("moment", "holds"),
    [
        ("2026-12-04T21:59", False),  # Friday
        ("2026-12-04T22:00", True),
        ("2026-12-05T05:59", True),  # Saturday morning is still Friday's window
        ("2026-12-05T06:00", False),
        ("2026-12-05T23:00", False),  # Saturday has no window of its own
        ("2026-12-04T03:00", False),  # Friday morning would be Thursday's
    ],
)
def test_a_window_past_midnight_belongs_to_the_day_it_starts_on(moment, holds):
    match = compiled({"time": {"days": "fri", "from": "22:00", "to": "06:00"}})
    assert match.holds(facts(now=at(moment))) is holds


def test_sunday_night_reaches_into_monday():
    match = compiled({"time": {"days": ["sun"], "from": "22:00", "to": "06:00"}})
    assert match.holds(facts(now=at("2026-12-07T01:00")))


def test_time_is_local_to_its_zone_and_follows_summer_time():
    match = compiled({"time": {"from": "09:00", "to": "10:00", "timezone": "Europe/Warsaw"}})
    assert match.holds(facts(now=at("2026-12-01T08:30")))
    assert match.holds(facts(now=at("2026-07-01T07:30")))
    assert not match.holds(facts(now=at("2026-07-01T08:30")))


def test_time_without_hours_means_the_whole_day():
    weekend = compiled({"time": {"days": ["sat", "sun"]}})
    assert weekend.holds(facts(now=at("2026-12-05T00:00")))
    assert weekend.holds(facts(now=at("2026-12-06T23:59")))
    assert not weekend.holds(facts(now=NOON))


@given(st.integers(0, 1439), st.integers(0, 1439), st.integers(0, 7 * 1440 - 1))
def test_a_daily_window_and_its_complement_cover_every_minute_once(start, end, minute):
    """Outside [from, to) is exactly inside [to, from)."""
    assume(start != end)
    clock = [f"{at // 60:02}:{at % 60:02}" for at in (start, end)]
    inside = compiled({"time": {"from": clock[0], "to": clock[1]}})
    outside = compiled({"time": {"from": clock[1], "to": clock[0]}})
    moment = facts(now=NOON + timedelta(minutes=minute))
    assert inside.holds(moment) is not outside.holds(moment)


def test_conditions_are_anded_and_failures_name_each_that_fails():
    match = compiled({"intent": "code", "tag": {"team": "ads"}, "input_tokens": {"max": 10}, "regex": "x"})
    assert not match.holds(facts("secret words", intent="code"))
    assert match.failures(facts("secret words", intent="code")) == (
        "tag.team: wants 'ads', request has no such tag",
        "input_tokens: wants 0 up to but not 10, request has 100",
        "regex: wants a match of 'x' in the last user turn, request has none",
    )


@pytest.mark.parametrize(
    ("match", "wanted"),
    [
        ({"intnt": "code"}, ["intnt"]),
        ({"intent": []}, ["intent"]),
        ({"intent": 3}, ["intent"]),
        ({"intent": ["code", 3]}, ["intent"]),
        ({"intent": ""}, ["intent"]),
        ({"tenant": None}, ["tenant"]),
        ({"tier": {}}, ["tier"]),
        ({"tag": "team"}, ["tag"]),
        ({"tag": {}}, ["tag"]),
        ({"tag": {"a": [], "b": 1}}, ["tag.a", "tag.b"]),
        ({"input_tokens": 5}, ["input_tokens"]),
        ({"input_tokens": {}}, ["input_tokens"]),
        ({"input_tokens": {"mni": 5, "max": "9"}}, ["input_tokens.mni", "input_tokens.max"]),
        ({"input_tokens": {"min": True}}, ["input_tokens.min"]),
        ({"input_tokens": {"min": -1}}, ["input_tokens.min"]),
        ({"input_tokens": {"min": 5, "max": 5}}, ["input_tokens"]),
        ({"input_tokens": {"max": 0}}, ["input_tokens"]),
        ({"needs": "tols"}, ["needs"]),
        ({"stream": "yes"}, ["stream"]),
        ({"stream": 1}, ["stream"]),
        ({"time": {}}, ["time"]),
        ({"time": {"days": ["fry"], "from": "9:00", "to": "25:00", "timezone": "Mars/Base", "til": "1"}},
         ["time.til", "time.days", "time.from", "time.to", "time.timezone"]),
        ({"time": {"from": "08:00", "to": "08:00"}}, ["time"]),
        ({"time": {"from": time(8, 0)}}, ["time.from"]),
        ({"time": {"from": "24:01"}}, ["time.from"]),
        ({"time": {"from": "1²:00"}}, ["time.from"]),
        ({"time": {"timezone": "Europe"}}, ["time.timezone"]),
        ({"time": {"timezone": 3}}, ["time.timezone"]),
        ({"regex": ""}, ["regex"]),
        ({"regex": "a" * (PATTERN_LIMIT + 1)}, ["regex"]),
        ({"regex": "("}, ["regex"]),
        ({"regex": r"(?=look)"}, ["regex"]),
        ({"regex": r"(a)\1"}, ["regex"]),
        ({"regex": r"((a{100}){100}){100}"}, ["regex"]),
        ({"regex": r"((\pL{9}){9}){9}"}, ["regex"]),
        ({"regex": r"a.{0,101}b.{100,}c"}, ["regex"]),
        ({"regex": "\ud800"}, ["regex"]),
        ({"regex": {"pattern": "a", "flags": "i"}}, ["regex"]),
        ({"regex": {"pattern": "a", "ignore_case": "yes"}}, ["regex"]),
        ({"regex": ["a"]}, ["regex"]),
        ("intent", [""]),
        (None, [""]),
    ],
)  # fmt: skip
def test_a_fault_names_its_key(match, wanted):
    assert params(match) == wanted


def test_all_faults_are_named_at_once_and_say_what_to_do():
    _, problems = compile_match({"intnt": "x", "regex": "(", "needs": ["tols"], "stream": 1}, "rules[7].match")
    assert [str(problem) for problem in problems] == [
        "rules[7].match.intnt: no such condition; did you mean 'intent'?",
        "rules[7].match.needs: no capability 'tols'; did you mean 'tools'?",
        "rules[7].match.stream: must be true or false, not 1",
        "rules[7].match.regex: missing ): ( (RE2 syntax: no look-around, no back-references)",
    ]


_INNER_KEYS = st.text(max_size=3) | st.sampled_from(
    ["min", "max", "from", "to", "days", "timezone", "pattern", "ignore_case"]
)


@given(st.dictionaries(st.sampled_from([*MATCH_KEYS, "other"]), st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_INNER_KEYS, inner, max_size=3),
    max_leaves=6)))  # fmt: skip
def test_any_json_compiles_or_is_refused_with_a_path(match):
    """Whatever an admin sends, there's no crash: either a match that can be asked, or problems that name keys."""
    found, problems = compile_match(match, "rules[0].match")
    if problems:
        assert all(problem.param.startswith("rules[0].match") and problem.message for problem in problems)
    else:
        assert found.holds(facts("text")) is not bool(found.failures(facts("text")))
