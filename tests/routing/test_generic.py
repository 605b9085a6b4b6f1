"""The artefact in the package: made from the example labels, bound to roles, and it promises nothing."""

import subprocess
import sys
from pathlib import Path

from llmrouter.offline.label_reader import read_labels
from llmrouter.offline.roles import Roles
from llmrouter.offline.train import labels_digest
from llmrouter.routing.artifact import generic_artefact
from llmrouter.routing.ask import Ask, ask_of
from llmrouter.routing.evidence import Offers, Prediction
from llmrouter.routing.policy import policy_of
from llmrouter.routing.predictor import Predictor

EXAMPLES = Path(__file__).parents[2] / "examples" / "labels"


def test_it_says_that_it_is_generic_and_promises_nothing():
    manifest = generic_artefact().manifest
    assert manifest["generic"] is True
    assert manifest["guarantee"] is None
    assert manifest["policy_parameters"]["certified"] is None


def test_it_was_trained_on_the_example_labels_as_they_are():
    """Whoever changes them trains it anew: examples/labels/README.md has the command."""
    labels = read_labels([EXAMPLES / "train.jsonl.gz"], Roles.given("small,large,frontier", EXAMPLES / "roles.json"))
    assert generic_artefact().manifest["data"]["digest"] == labels_digest(labels)


def test_it_is_small():
    folder = Path(sys.modules["llmrouter.routing.artifact"].__file__ or "").parent / "generic"
    assert sum(each.stat().st_size for each in folder.iterdir()) < 1_600_000


def test_it_predicts_sensibly_and_calls_what_it_does_not_know_strange():
    predictor = Predictor.of(generic_artefact())
    easy = predictor.predict(Ask("Tom has 3 apples and buys 4 more. How many apples does Tom have now?"))
    assert set(easy.quality) >= {"small", "large", "frontier"}
    assert all(0 <= each <= 1 for each in easy.quality.values())
    assert easy.quality["small"] < easy.quality["frontier"]
    hard = predictor.predict(
        Ask("Let R be a Noetherian ring. Which of the following statements about R[x] is true?\nA. a")
    )
    assert hard.quality["small"] < easy.quality["small"]
    foreign = predictor.predict(Ask("Проверь, пожалуйста, договор аренды и перечисли все риски для арендатора."))
    assert foreign.novelty > easy.novelty


def test_a_cap_on_the_answer_makes_nothing_strange():
    predictor, text = Predictor.of(generic_artefact()), "Tom has 3 apples and buys 4 more. How many apples has he now?"
    assert predictor.predict(Ask(text, max_output_tokens=160)).novelty == predictor.predict(Ask(text)).novelty < 0.9


def test_a_system_prompt_makes_nothing_strange():
    predictor, text = (
        Predictor.of(generic_artefact()),
        "Tom has 3 apples and buys 4 more. How many apples has he now?" * 2,
    )
    said = [{"role": "system", "content": "You are a helpful assistant."}, {"role": "user", "content": text}]
    assert predictor.predict(ask_of(said)).novelty == predictor.predict(Ask(text)).novelty < 0.95


def test_what_is_strange_goes_to_the_best_model():
    offers = Offers(frozenset({"small", "large", "frontier"}), frozenset({"agreement"}), 3, "number")
    strange = Prediction({"small": 0.99, "large": 0.99, "frontier": 0.99}, novelty=1.0)
    move = policy_of(generic_artefact()).first(strange, offers)
    assert (move.action, move.role) == ("route", "frontier")


def test_loading_and_deciding_needs_nothing_of_the_training_extra():
    script = (
        "import sys\n"
        "from llmrouter.routing.artifact import generic_artefact\n"
        "from llmrouter.routing.predictor import Predictor\n"
        "from llmrouter.routing.policy import policy_of\n"
        "from llmrouter.routing.ask import Ask\n"
        "a = generic_artefact(); Predictor.of(a).predict(Ask('hello')); policy_of(a)\n"
        "print(sorted({'sklearn', 'scipy', 'datasets', 'pandas', 'matplotlib'} & set(sys.modules)))\n"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout.strip() == "[]"
