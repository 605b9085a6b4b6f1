"""Usage of a stream, wherever an engine reports it."""

from typing import Any

import pytest

from llmrouter.gateway.usage import UsageTally


def counts(prompt: int, completion: int, **more: Any) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion, **more}


def tallied(*notes: tuple[dict[str, Any], Any], n: int, one_prompt: bool = True) -> dict[str, Any] | None:
    tally = UsageTally(n, one_prompt=one_prompt)
    for usage, choices in notes:
        tally.note(usage, choices)
    return tally.total()


FIRST, SECOND = [{"index": 0}], [{"index": 1}]


def test_no_report_is_none():
    assert tallied(n=1) is None
    assert tallied(n=2) is None


@pytest.mark.parametrize("choices", [[], None, FIRST, [{"index": 0, "delta": {}}]])
def test_g005_the_last_report_of_one_choice_counts_wherever_it_stands(choices):
    last = counts(5, 3, prompt_tokens_details={"cached_tokens": 4})
    assert tallied((counts(5, 1), FIRST), (counts(5, 2), []), (last, choices), n=1) == last


def test_one_report_for_all_choices_counts_as_it_is():
    whole = counts(5, 7, prompt_tokens_details={"cached_tokens": 4})
    assert tallied((whole, []), n=2) == whole


def test_a_report_for_all_choices_wins_over_running_counts_of_each():
    """vLLM with continuous usage."""
    notes = [(counts(5, 1), FIRST), (counts(5, 1), SECOND), (counts(5, 2), FIRST), (counts(5, 3), [])]
    assert tallied(*notes, n=2) == counts(5, 3)


def test_reports_of_each_choice_add_up_and_share_their_prompt():
    """llama.cpp, chat."""
    assert tallied((counts(5, 2), []), (counts(5, 3), []), n=2) == counts(5, 5)


def test_reports_of_each_prompt_add_up_with_what_was_cached():
    """llama.cpp, completions of two prompts."""
    details = {"prompt_tokens_details": {"cached_tokens": 1}}
    notes = [(counts(5, 2, **details), FIRST), (counts(7, 3, **details), SECOND)]
    assert tallied(*notes, n=2, one_prompt=False) == counts(12, 5, prompt_tokens_details={"cached_tokens": 2})


def test_a_chunk_of_several_choices_reports_for_all():
    assert tallied((counts(5, 2), [*FIRST, *SECOND]), (counts(5, 4), [*FIRST, *SECOND]), n=2) == counts(5, 4)


@pytest.mark.parametrize("odd", [{}, {"prompt_tokens": None}, {"completion_tokens": "7"}, {"prompt_tokens_details": 7}])
@pytest.mark.parametrize("one_prompt", [True, False])
def test_odd_reports_count_as_nothing(odd, one_prompt):
    total = tallied((odd, FIRST), (counts(5, 3), SECOND), n=2, one_prompt=one_prompt)
    assert total == counts(5, 3)
