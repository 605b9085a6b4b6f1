"""What the README says can be done can be done."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from llmrouter.cli import build_app
from tests.cli.command import llmrouter

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_its_configuration_passes_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    (text,) = blocks("toml")
    path = tmp_path / "llmrouter.toml"
    path.write_text(text, encoding="utf-8")
    checked = llmrouter("config", "check", "--config", path)
    assert (checked.code, checked.err) == (0, "")


def test_its_program_is_python():
    (program,) = blocks("python")
    compile(program, "README.md", "exec")


def test_every_command_is_in_the_table():
    app = build_app()
    commands = [command.name for command in app.registered_commands]
    for group in app.registered_groups:
        assert group.typer_instance is not None
        name = group.typer_instance.info.name
        commands += [f"{name} {command.name}" for command in group.typer_instance.registered_commands]
    table = "".join(line for line in README.splitlines() if line.startswith("| "))
    assert [name for name in commands if f"`{name}`" not in table and f"`llmrouter {name}`" not in table] == []


def test_every_file_and_part_that_it_links_to_exists():
    for link in re.findall(r"\]\(([^)]+)\)", README):
        path, _, part = link.partition("#")
        page = ROOT / path if path else ROOT / "README.md"
        assert page.exists(), link
        if part:
            headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
            assert part in anchors, link
