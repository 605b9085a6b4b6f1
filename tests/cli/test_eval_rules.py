"""What the rules of a configuration would do with labelled requests."""

import pytest

from llmrouter.cli.eval_rules import configured_rules
from llmrouter.errors import UsageError
from llmrouter.offline.labels import LabelSet
from tests.cli.command import two_models
from tests.offline.label_rows import labels_of

RULE = """
[[routing.rules]]
rule_id = "proofs"
match = { regex = "prove" }
tier_role = "large"
"""


def labels() -> LabelSet:
    return labels_of({"small": [1, 0, 1], "large": [1, 1, 1]}, asks=["hello", "prove it", "what?"])


def test_each_row_goes_where_the_rules_send_it(tmp_path):
    found = configured_rules("rules", two_models(tmp_path, RULE), None, labels(), ["small", "large"])
    assert [found.roles[position] for position in found.choice] == ["small", "large", "small"]
    assert found.notes() == []


def test_a_row_that_goes_to_a_role_without_scores_counts_as_not_decided(tmp_path):
    found = configured_rules("rules", two_models(tmp_path, RULE), "auto", labels(), ["small", "frontier"])
    assert found.choice.tolist() == [0, -1, 0]
    assert found.missing == 1


def test_a_tier_that_is_not_there_is_named_with_those_that_are(tmp_path):
    with pytest.raises(UsageError, match=r"--tier 'best': the configuration has auto"):
        configured_rules("rules", two_models(tmp_path), "best", labels(), ["small", "large"])
