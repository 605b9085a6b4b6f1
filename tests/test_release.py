"""The version is said once, and the changelog knows it."""

from __future__ import annotations

import re
from pathlib import Path

import llmrouter

ROOT = Path(__file__).parent.parent


def test_the_changelog_begins_with_the_packages_version():
    versions = re.findall(r"^## \[(\d[^\]]*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == llmrouter.__version__


def test_the_changelog_has_an_unreleased_part_on_top():
    headings = re.findall(r"^## \[([^\]]*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased"
