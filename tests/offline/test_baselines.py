"""What a learned router must beat."""

import numpy as np

from llmrouter.offline.baselines import BASELINES, baseline_scores, complexity
from llmrouter.offline.curves import Pair, measure
from llmrouter.routing.ask import Ask

EASY = ("hi", "What is the capital of Peru?", "Thanks, that was it", "define osmosis")
HARD = (
    "Prove that the algorithm terminates, derive its complexity and compare. First state the theorem, then explain.",
    "```python\ndef run(items):\n    return [x for x in items if x == 3]\n```\nWhy does this fail? Explain step 1.",
    "Evaluate \\int_0^1 x^2 + 3x = ? Then justify why the polynomial has no further root, and analyse its shape.",
)


def test_rules_tell_plain_questions_from_hard_ones():
    assert max(complexity(Ask(text)) for text in EASY) < min(complexity(Ask(text)) for text in HARD)


def test_a_long_history_and_tools_make_a_request_harder_for_the_rules():
    assert complexity(Ask("go on", history="x" * 3000, tools="search: finds pages" * 40)) > complexity(Ask("go on"))


def test_every_baseline_scores_every_row_and_chance_and_the_oracle_are_the_ends():
    rng = np.random.default_rng(0)
    weak, strong = (rng.random(200) < 0.5).astype(float), (rng.random(200) < 0.8).astype(float)
    scores = baseline_scores([Ask("x" * row) for row in range(200)], strong - weak)
    assert tuple(scores) == BASELINES
    found = {name: measure(score, Pair(weak, strong)).apgr for name, score in scores.items()}
    assert found["random"] == 0.5
    assert found["oracle"] is not None
    assert all(each is not None and each <= found["oracle"] for each in found.values())


def test_no_rows_have_no_scores():
    assert all(len(score) == 0 for score in baseline_scores([], np.array([])).values())
