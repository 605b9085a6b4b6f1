"""The task file says what it does, what failed and how to go on; the pins are whole."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import tasks

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def pinned(name: str) -> dict[str, str]:
    """Package to version of one set of pins."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", text, re.MULTILINE))


def wanted(name: str) -> list[Requirement]:
    """What the project asks for in one set of pins."""
    words = list(PROJECT["project"]["dependencies"])
    if name != "base":
        words += [*PROJECT["project"]["optional-dependencies"]["engines-cpu"], *PROJECT["build-system"]["requires"]]
    if name == "dev":
        words += [word for group in ("test", "lint", "dev") for word in PROJECT["dependency-groups"][group]]
    return [Requirement(word) for word in words if isinstance(word, str)]


def test_help_names_every_task(capsys: pytest.CaptureFixture[str]):
    assert tasks.main(["--help"]) == 0
    told = capsys.readouterr().out
    assert [task for task in tasks.TASKS if not re.search(rf"^  {task}\b", told, re.MULTILINE)] == []


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ([], "which task?"),
        (["chekc"], "no task 'chekc'"),
        (["check", "--fast"], "check does not take --fast"),
        (["lock", "--downgrade"], "lock does not take --downgrade"),
    ],
)
def test_wrong_use_is_said_with_the_help(arguments: list[str], fault: str, capsys: pytest.CaptureFixture[str]):
    assert tasks.main(arguments) == 2
    told = capsys.readouterr()
    assert told.err == f"{fault}\n\n{tasks.HELP}"
    assert told.out == ""


def test_an_old_python_is_told_which_one_is_needed():
    script = (
        "import runpy, sys; sys.version_info = (3, 8, 18, 'final', 0); runpy.run_path('tasks.py', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("llmrouter needs Python 3.11 or newer, this is 3.8: ")


def test_an_old_python_gets_as_far_as_that_message():
    """Nothing in the file may be newer syntax than the oldest Python that the parser can play."""
    ast.parse((ROOT / "tasks.py").read_text(encoding="utf-8"), feature_version=(3, 7))


def test_a_python_without_ensurepip_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "ensurepip" else object())
    with pytest.raises(tasks.Failed, match=r"apt install python3\.\d+-venv"):
        tasks._make_venv(tmp_path / "venv")
    assert not (tmp_path / "venv").exists()


def test_a_step_that_fails_says_which_one_how_to_repeat_and_how_to_mend_it(capfd: pytest.CaptureFixture[str]):
    command = [sys.executable, "-c", "print('two findings'); raise SystemExit(3)"]
    with pytest.raises(tasks.Failed) as failed:
        tasks.run("lint", command, remedy="python3 tasks.py fix", env={"NO_COLOR": "1"})
    lines = str(failed.value).splitlines()
    assert lines[0] == "lint: exit code 3"
    assert lines[1].startswith("  repeat it: NO_COLOR=1 ")
    assert lines[1].endswith(" -c 'print('\"'\"'two findings'\"'\"'); raise SystemExit(3)'")
    assert lines[2] == "  mend it:   python3 tasks.py fix"
    assert capfd.readouterr().out == "==> lint\ntwo findings\n"


def test_a_quiet_step_shows_what_it_printed_only_when_it_fails(capfd: pytest.CaptureFixture[str]):
    tasks.run("build", [sys.executable, "-c", "print('chatter')"], quiet=True)
    told = capfd.readouterr()
    assert re.fullmatch(r"==> build\n    build: \d+\.\d s\n", told.out)
    assert told.err == ""
    with pytest.raises(tasks.Failed):
        tasks.run("build", [sys.executable, "-c", "print('why'); raise SystemExit(1)"], quiet=True)
    assert capfd.readouterr().err == "why\n"


def test_a_failed_task_ends_with_its_message_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def fails(_):
        raise tasks.Failed("tests: exit code 1")

    monkeypatch.setitem(tasks.TASKS, "check", (fails, ()))
    assert tasks.main(["check"]) == 1
    assert capsys.readouterr().err == "\nFAILED: tests: exit code 1\n"


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """A set-up that notes what it would do; its environment and pins lie in a folder of their own."""
    done: list[str] = []
    venv = tmp_path / ".venv"
    monkeypatch.setattr(tasks, "ROOT", tmp_path)
    monkeypatch.setattr(tasks, "VENV", venv)
    monkeypatch.setattr(tasks, "STAMP", venv / "stamp.json")
    monkeypatch.setattr(tasks, "REQUIREMENTS", tmp_path)
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    for name in tasks.PINS:
        (tmp_path / f"{name}.txt").write_text(name)

    def make(folder: Path) -> None:
        done.append("venv")
        (folder / "bin").mkdir(parents=True)
        (folder / "bin" / "python").touch()

    monkeypatch.setattr(tasks, "_make_venv", make)
    monkeypatch.setattr(tasks, "_install", lambda _, pins: done.append(pins))
    monkeypatch.setattr(tasks, "_call", lambda command, **_: done.append("project"))
    return done


def test_the_environment_is_made_once_and_used_again(installed: list[str]):
    tasks.set_up("demo")
    tasks.set_up("demo")
    assert installed == ["venv", "demo", "project"]


def test_an_environment_for_development_will_do_for_the_demo_but_not_the_other_way_round(installed: list[str]):
    tasks.set_up("demo")
    tasks.set_up("dev")
    tasks.set_up("demo")
    assert installed == ["venv", "demo", "project", "dev", "project"]


def test_changed_pins_are_installed_into_the_same_environment(installed: list[str], tmp_path: Path):
    tasks.set_up("dev")
    (tmp_path / "dev.txt").write_text("newer")
    tasks.set_up("dev")
    assert installed == ["venv", "dev", "project", "dev", "project"]


def test_another_python_gets_another_environment(installed: list[str], monkeypatch: pytest.MonkeyPatch):
    tasks.set_up("dev")
    monkeypatch.setattr(tasks, "_python_version", lambda: "3.99.0")
    (tasks.REQUIREMENTS / "dev.txt").write_text("newer")
    tasks.set_up("dev")
    assert installed == ["venv", "dev", "project", "venv", "dev", "project"]


def test_an_installation_that_failed_is_not_taken_for_done(installed: list[str], monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch:
        patch.setattr(tasks, "_call", lambda command, **_: (_ for _ in ()).throw(tasks.Failed("exit code 1")))
        with pytest.raises(tasks.Failed, match=r"set up .venv: exit code 1\n  repeat it: rm -r .venv; python3 "):
            tasks.set_up("dev")
    tasks.set_up("dev")
    assert installed == ["venv", "dev", "dev", "project"]


def test_pips_lines_become_progress(capsys: pytest.CaptureFixture[str]):
    progress = tasks._PackageProgress(12)
    for number in range(9):
        progress(f"Collecting package{number}==1.0 (from -r requirements/demo.txt (line {number}))\n")
    progress("  Downloading small-1.0-py3-none-any.whl.metadata (1.0 kB)\n")
    progress("Ignoring colorama: markers \"sys_platform == 'win32'\" don't match your environment\n")
    progress("Collecting engine==2.0 (from -r requirements/demo.txt (line 70))\n")
    progress("  Downloading engine-2.0-cp310-abi3-manylinux2014_x86_64.whl (33.8 MB)\n")
    progress("Installing collected packages: a, b\n")
    assert capsys.readouterr().out.splitlines() == [
        "    10/12 packages: colorama",
        "    11/12 packages: engine-2.0-cp310-abi3-manylinux2014_x86_64.whl (33.8 MB)",
        "    unpacking",
    ]


@pytest.mark.parametrize("name", tasks.PINS)
def test_the_pins_meet_what_the_project_asks_for(name: str):
    pins = pinned(name)
    unmet = [
        str(want) for want in wanted(name) if not want.specifier.contains(pins.get(canonicalize_name(want.name), "0"))
    ]
    assert unmet == [], "run `python3 tasks.py lock`"


@pytest.mark.parametrize("name", tasks.PINS)
def test_every_pin_is_held_by_hashes_and_names_no_place(name: str):
    """No index, no address, no path: the same file works behind any mirror."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    blocks = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)
    assert [block.splitlines()[0] for block in blocks if block and "--hash=sha256:" not in block] == []
    assert re.findall(r"https?:|file:|--(?:extra-)?index-url|--find-links| @ ", text) == []


def test_a_smaller_set_holds_the_versions_of_a_larger_one():
    for smaller, larger in (("base", "demo"), ("demo", "dev")):
        assert pinned(smaller).items() <= pinned(larger).items()


def test_what_an_installed_wheel_needs_holds_nothing_for_development():
    assert not {"hatchling", "pytest", "ruff", "mypy", "uv", "xllamacpp", "openai"} & pinned("base").keys()


def test_ci_runs_the_command_that_the_readme_names():
    command = "python3 tasks.py check"
    assert command in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()[-1]
    assert command in (ROOT / "README.md").read_text(encoding="utf-8")
