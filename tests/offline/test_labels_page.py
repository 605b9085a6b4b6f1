"""The examples on the page about labels are read as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

from llmrouter.offline.label_items import read_golden
from llmrouter.offline.roles import Roles
from llmrouter.quality.scorers import SCORERS

PAGE = (Path(__file__).parents[2] / "docs" / "labels.md").read_text(encoding="utf-8")
ROLES, GOLDEN = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)


def test_the_roles_are_roles(tmp_path: Path):
    path = tmp_path / "roles.json"
    path.write_text(ROLES)
    assert Roles.load(path).of("gsm8k")["peer2"] == "qwen-7b"


def test_the_golden_items_are_items(tmp_path: Path):
    path = tmp_path / "golden.jsonl"
    path.write_text(GOLDEN)
    first, second = read_golden(path)
    assert first.scorer is not None
    assert second.scorer is not None
    assert first.scorer("So it takes 3 bolts.").score == 1
    assert second.scorer("B").score == 1


def test_every_scorer_is_on_the_page():
    assert all(f"`{name}`" in PAGE for name in SCORERS)
