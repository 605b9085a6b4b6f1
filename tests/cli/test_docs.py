"""The pages that cog writes are up to date, and nothing is left out of them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from llmrouter.cli import build_app
from llmrouter.config import Config

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_reference", DOCS / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def written(page: str) -> str:
    """What cog last wrote into a page."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return text.partition("]]] -->\n")[2].partition("<!-- [[[end]]] -->")[0].strip()


def test_the_page_of_commands_is_up_to_date(reference: ModuleType):
    assert written("cli.md") == reference.cli_reference().strip()


def test_the_page_of_settings_is_up_to_date(reference: ModuleType):
    assert written("configuration.md") == reference.configuration_reference().strip()


def test_every_command_has_its_own_part_of_the_page(reference: ModuleType):
    for name in reference.command_names(build_app()):
        assert f"\n## llmrouter {name}\n" in (DOCS / "cli.md").read_text(encoding="utf-8")


def test_every_section_of_the_configuration_is_on_the_page(reference: ModuleType):
    """A class that joins the configuration must join `sections`, too."""
    listed = {section.__name__ for _, section in reference.sections()}
    assert listed == set(Config.model_json_schema()["$defs"])
