"""The command line as a whole: help, exit codes, where errors go."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from llmrouter import __version__
from llmrouter.cli import build_app
from tests.cli.command import llmrouter, two_models


def commands(app: typer.Typer, before: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], typer.models.CommandInfo]]:
    found = [((*before, command.name or ""), command) for command in app.registered_commands]
    for group in app.registered_groups:
        assert group.typer_instance is not None
        found += commands(group.typer_instance, (*before, str(group.typer_instance.info.name)))
    return found


ALL = commands(build_app())


def test_every_command_of_the_product_is_there():
    names = {" ".join(name) for name, _ in ALL}
    assert names >= {
        *("init", "serve", "doctor", "keys create", "keys list", "keys revoke"),
        *("rules list", "rules apply", "rules rollback", "rules explain", "config check", "config explain"),
    }


@pytest.mark.parametrize(
    ("name", "command"), ALL, ids=lambda value: "-".join(value) if isinstance(value, tuple) else ""
)
def test_every_command_says_what_it_does_and_shows_an_example(name: tuple[str, ...], command: typer.models.CommandInfo):
    told = llmrouter(*name, "--help")
    assert told.code == 0
    assert command.callback is not None
    summary = command.callback.__doc__ or ""
    assert summary.endswith(".")
    assert "\n" not in summary
    assert f"  llmrouter {' '.join(name)}" in told.out.partition("Example:")[2]


_REPORTING = "keys create,keys list,keys revoke,rules list,rules apply,rules rollback,rules explain,config check,doctor"


@pytest.mark.parametrize("name", [*_REPORTING.split(","), "config explain"])
def test_every_command_that_reports_knows_json(name: str):
    assert "--json" in llmrouter(*name.split(), "--help").out


def test_the_version_goes_to_standard_output():
    assert llmrouter("--version") == llmrouter("--version", "serve")
    assert llmrouter("--version").out == f"llmrouter {__version__}\n"


def test_an_expected_error_is_one_line_on_standard_error_without_a_traceback(tmp_path: Path):
    failed = llmrouter("config", "check", "--config", tmp_path / "missing.toml")
    assert (failed.code, failed.out) == (2, "")
    assert failed.err == f"error: {tmp_path}/missing.toml: no such file; `llmrouter init` writes one\n"


@pytest.mark.parametrize("arguments", [("--debug", "keys", "list"), ("keys", "list", "--debug")])
def test_debug_shows_where_an_error_comes_from_wherever_it_stands(arguments: tuple[str, ...], tmp_path: Path):
    failed = llmrouter(*arguments, "--config", tmp_path / "missing.toml")
    assert failed.code == 2
    assert "Traceback" in failed.err
    assert failed.err.splitlines()[-1].startswith("error: ")


def test_several_problems_are_several_lines(tmp_path: Path):
    path = two_models(tmp_path, "[server]\nworker = 2\n[log]\nlevel = 'loud'\n")
    failed = llmrouter("keys", "list", "--config", path)
    assert failed.code == 2
    assert [line.partition("llmrouter.toml: ")[2].split(":")[0] for line in failed.err.splitlines()] == [
        "server.worker",
        "log.level",
    ]


@pytest.mark.parametrize("arguments", [("rules", "rollback", "seven"), ("serv",), ("keys", "list", "--jsn"), ()])
def test_a_wrong_command_line_is_exit_code_2(arguments: tuple[str, ...]):
    failed = llmrouter(*arguments)
    assert failed.code == 2


def test_the_configuration_is_found_through_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LLMROUTER_CONFIG", str(two_models(tmp_path)))
    assert llmrouter("config", "check").code == 0


def test_without_a_word_the_file_is_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    two_models(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert llmrouter("config", "check").out == "llmrouter.toml: ok\n"


@pytest.mark.parametrize(
    "arguments",
    [("usage", "--tenant", "\udcff"), ("keys", "revoke", "\udcff"), ("samples", "show", "\udcff"), ("--\udcff",)],
)
def test_an_argument_that_is_no_text_is_one_line_and_exit_code_2(arguments: tuple[str, ...]):
    """What Python makes of the byte 0xff on a command line."""
    failed = llmrouter(*arguments)
    assert (failed.code, failed.out) == (2, "")
    assert failed.err == f"error: the argument {arguments[-1]!a} is not valid UTF-8\n"
