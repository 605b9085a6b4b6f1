import json
from pathlib import Path

import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st

from llmrouter.routing import intent
from llmrouter.routing.intent import INTENTS, label

PROMPTS = [
    json.loads(line)
    for line in (Path(__file__).parent / "intent_prompts.jsonl").read_text(encoding="utf-8").splitlines()
]
"""`development` was looked at while the signs were written, `held_out` only to count; one author wrote both."""


@pytest.mark.parametrize(("which", "least"), [("development", 0.95), ("held_out", 0.85)])
def test_the_labeller_gets_the_stated_share_of_prompts_right(which, least):
    rows = [row for row in PROMPTS if row["set"] == which]
    right = [row for row in rows if label(row["text"], has_tools=row["has_tools"]) == row["label"]]
    assert len(rows) >= 40
    assert len(right) / len(rows) >= least


@pytest.mark.parametrize("which", ["development", "held_out"])
def test_both_sets_have_every_label(which):
    assert {row["label"] for row in PROMPTS if row["set"] == which} == set(INTENTS)


def test_every_vote_names_a_label_and_signs_that_exist_and_every_sign_votes():
    used = {sign for _, _, first, second in intent._VOTES for sign in (first, second) if sign is not None}
    assert {label for label, _, _, _ in intent._VOTES} == set(INTENTS) - {"tool_use", "unknown"}
    assert used == set(intent._SIGNS)


@pytest.mark.parametrize("name", intent._SIGNS)
def test_every_sign_is_a_pattern_that_the_automaton_took(name):
    """`re2.Set.Add` answers -1 for a bad pattern instead of raising, which would shift all later signs."""
    signs = re2.Set.SearchSet()
    assert signs.Add(intent._SIGNS[name]) == 0


def test_tools_on_offer_make_a_question_a_look_up_but_leave_work_on_text_alone():
    assert label("What's the capital of Peru?") == "qa"
    assert label("What's the capital of Peru?", has_tools=True) == "tool_use"
    assert label("Translate to German: good night", has_tools=True) == "translation"


def test_the_ask_is_found_before_and_behind_a_long_paste():
    paste = "The committee met and talked about parking. " * 400
    assert label("Summarize the following minutes.\n\n" + paste) == "summarization"
    assert label(paste + "\n\nSummarize the minutes above.") == "summarization"


def test_only_a_bounded_part_of_the_text_is_looked_at():
    quiet = "lorem ipsum " * 200
    assert label(quiet + "Translate this into French." + quiet) == "unknown"


def test_letter_case_does_not_matter():
    assert label("TRANSLATE TO FRENCH: HELLO") == "translation"


@given(st.text(), st.booleans())
def test_any_text_gets_one_of_the_labels(text, has_tools):
    assert label(text, has_tools=has_tools) in INTENTS
