"""The task file: `python3 tasks.py demo` shows the gateway at work, `python3 tasks.py check` is what CI runs.

It needs nothing but Python and makes `.venv` beside itself from the pinned packages in `requirements/`.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - the one file that people run before they know
    sys.exit(
        f"llmrouter needs Python 3.11 or newer, this is {sys.version_info[0]}.{sys.version_info[1]}: {sys.executable}\n"
        "Install a newer one and run it, e.g. `python3.11 tasks.py demo`."
    )

# All below is written so that Pythons from 3.6 on can parse it and get as far as the message above.

import contextlib
import hashlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
REQUIREMENTS = ROOT / "requirements"
STAMP = VENV / "llmrouter-pins.json"

PINS = {"base": (), "demo": ("-", "--extra", "engines-cpu"), "dev": ("-", "--extra", "engines-cpu", "--group", "dev")}
"""Sets of pinned packages, each a part of the next, with what `uv pip compile` takes for it.

`base` is what an installed wheel needs; the others hold the build backend, which comes in as `-`, too.
"""

CHECKS = (
    ("format", ("ruff", "format", "--check", "."), "python3 tasks.py fix"),
    ("lint", ("ruff", "check", "."), "python3 tasks.py fix"),
    ("types", ("mypy",), ""),
    ("import contracts", ("lint-imports",), ""),
)

HELP = """\
usage: python3 tasks.py TASK

  demo [OPTION]...      set up, start the gateway with two real models, send it prompts, show what that cost;
                        options as of `llmrouter demo`, e.g. --port 0 --exit
  check                 all that CI runs: format, lint, types, import contracts, generated docs, build, tests
  test [ARGUMENT]...    the tests alone; arguments go to pytest
  build                 build wheel and sdist and try the installed wheel without development packages
  fix                   format, mend what can be mended, generate the docs again
  lock [--upgrade]      write the pinned packages again after a change of pyproject.toml
"""


class Failed(Exception):
    """A step failed; the message says which one and how to repeat it."""


def main(arguments: Sequence[str]) -> int:
    """Run one task; returns the exit code: 0 done, 1 a step failed, 2 wrong use."""
    task, rest = (arguments[0], list(arguments[1:])) if arguments else ("", [])
    if task in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0
    function, accepted = TASKS.get(task, (None, ()))
    odd = [word for word in rest if accepted is not None and word not in accepted]
    if function is None or odd:
        fault = f"{task} does not take {odd[0]}" if function else f"no task {task!r}" if task else "which task?"
        print(f"{fault}\n\n{HELP}", end="", file=sys.stderr)
        return 2
    try:
        return function(rest)
    except Failed as failure:
        print(f"\nFAILED: {failure}", file=sys.stderr, flush=True)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr, flush=True)
        return 130


def demo(arguments: Sequence[str]) -> int:
    """Set up and become `llmrouter demo`, so that signals reach it."""
    set_up("demo")
    command = [str(VENV / "bin" / "llmrouter"), "demo", *arguments]
    sys.stdout.flush()
    os.execv(command[0], command)


def test(arguments: Sequence[str]) -> int:
    """Run the tests with pytest's own exit code."""
    set_up("dev")
    return subprocess.call([_tool("pytest"), *arguments], cwd=ROOT)


def check(_: Sequence[str]) -> int:
    """Run every check, the quick ones first; the tests' summary comes last."""
    began = time.monotonic()
    set_up("dev")
    for name, command, remedy in CHECKS:
        run(name, [_tool(command[0]), *command[1:]], remedy=remedy)
    run("generated docs", [_tool("cog"), "--check", *_generated_docs()], remedy="python3 tasks.py fix", env=_PLAIN)
    build(())
    run("tests", [_tool("pytest")], repeat="python3 tasks.py test")
    print(f"check: everything passed in {time.monotonic() - began:.0f} s", flush=True)
    return 0


def build(_: Sequence[str]) -> int:
    """Build both distributions, the wheel from the sdist, and use the wheel as a user would."""
    python = set_up("dev")
    again = "python3 tasks.py build"
    with tempfile.TemporaryDirectory(prefix="llmrouter-build-") as name:
        folder = Path(name)
        run("build", [python, "-m", "build", "--no-isolation", "--outdir", folder, ROOT], repeat=again, quiet=True)
        with step("install the wheel", again):
            venv = folder / "venv"
            _make_venv(venv)
            _install(venv, "base")
            (wheel,) = folder.glob("*.whl")
            _call([venv / "bin" / "python", *_PIP_INSTALL, "--no-deps", wheel], quiet=True)
        llmrouter = venv / "bin" / "llmrouter"
        for words in (["--help"], ["init"], ["config", "check"]):
            run("wheel: llmrouter " + " ".join(words), [llmrouter, *words], repeat=again, cwd=folder, quiet=True)
    return 0


def fix(_: Sequence[str]) -> int:
    """Format, apply the linter's own repairs, write the generated parts of the docs."""
    set_up("dev")
    run("format", [_tool("ruff"), "format", "."])
    run("repair", [_tool("ruff"), "check", "--fix", "."])
    run("generate docs", [_tool("cog"), "-r", *_generated_docs()], env=_PLAIN)
    return 0


def lock(arguments: Sequence[str]) -> int:
    """Pin everything by version and hash, for all platforms at once; smaller sets take the versions of larger ones."""
    set_up("dev")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    # hatchling asks for editables where a project is installed in place.
    backend = "\n".join([*project["build-system"]["requires"], "editables"])
    larger = None
    for name in reversed(PINS):
        target = f"requirements/{name}.txt"
        command = [_tool("uv"), *_COMPILE, "--output-file", target, "pyproject.toml", *PINS[name], *arguments]
        if larger is not None:
            command += ["--constraints", larger, "--no-annotate"]
        run(f"pin {name}", command, given=backend, repeat="python3 tasks.py lock", quiet=True)
        larger = target
    return 0


TASKS: dict[str, tuple[Callable[[Sequence[str]], int], tuple[str, ...] | None]] = {
    "demo": (demo, None),
    "check": (check, ()),
    "test": (test, None),
    "build": (build, ()),
    "fix": (fix, ()),
    "lock": (lock, ("--upgrade",)),
}
"""Each task with the arguments that it takes; None: any."""


def set_up(pins: str) -> Path:
    """Make `.venv` hold one of the pinned sets and the project itself; returns its Python.

    Does nothing when that was done before with the same pins.
    """
    python = VENV / "bin" / "python"
    wanted = _digest(pins)
    done = _stamp()
    names = list(PINS)
    if any(done.get(name) == _digest(name) for name in names[names.index(pins) :]) and python.exists():
        return python
    with step("set up .venv", f"rm -r {VENV.name}; {shlex.join(['python3', *sys.argv])}"):
        if done and done.get("python") != _python_version():
            shutil.rmtree(VENV)
        if not python.exists():
            _make_venv(VENV)
        STAMP.unlink(missing_ok=True)
        _install(VENV, pins)
        _call([python, *_PIP_INSTALL, "--no-deps", "--no-build-isolation", "--editable", ROOT], quiet=True)
        STAMP.write_text(json.dumps({"python": _python_version(), pins: wanted}), encoding="utf-8")
    return python


_COMPILE = ("pip", "compile", "--no-config", "--universal", "--python-version=3.11", "--generate-hashes", "--no-header")
# Byte code is left to the first import: most of what is installed is never imported.
_PIP_INSTALL = (
    "-m",
    "pip",
    "install",
    "--no-compile",
    "--no-input",
    "--disable-pip-version-check",
    "--progress-bar=off",
)

_PLAIN = {"NO_COLOR": "1", "COLUMNS": "100", "TERM": "dumb"}
"""Makes help texts come out the same everywhere."""


def _make_venv(folder: Path) -> None:
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        raise Failed(
            f"{sys.executable} cannot make virtual environments: its modules venv and ensurepip are missing. "
            f"Debian and Ubuntu: apt install python{version}-venv; elsewhere, install a complete Python {version}"
        )
    _call([sys.executable, "-m", "venv", folder], quiet=True)


def _install(venv: Path, pins: str) -> None:
    """Install a pinned set from wheels alone: what is not the pinned file, or needs a compiler, is refused."""
    file = REQUIREMENTS / f"{pins}.txt"
    total = len(re.findall(r"^[a-z0-9].*==", file.read_text(encoding="utf-8"), re.MULTILINE))
    trusted = ("--require-hashes", "--only-binary=:all:", "--requirement", str(file))
    _call([venv / "bin" / "python", *_PIP_INSTALL, *trusted], progress=_PackageProgress(total))


class _PackageProgress:
    """Tells how far pip is, from what it prints: one moving line on a terminal, else a line every ten packages."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._moving = sys.stdout.isatty()

    def __call__(self, line: str) -> None:
        words = line.split()
        if words[:1] in (["Collecting"], ["Ignoring"]) or words[:2] == ["Requirement", "already"]:
            self._done += 1
            name = words[3] if words[0] == "Requirement" else words[1]
            self._tell(f"{self._done}/{self._total} packages: {re.split('[=:<>]', name)[0]}", self._done % 10 == 0)
        elif words[:1] == ["Downloading"] and "MB" in line:
            self._tell(f"{self._done}/{self._total} packages: {' '.join(words[1:])}", _is_large(line))
        elif words[:2] == ["Installing", "collected"]:
            self._tell("unpacking", True)

    def end(self) -> None:
        if self._moving:
            print("\r\x1b[2K", end="", flush=True)

    def _tell(self, text: str, worth_a_line: bool) -> None:
        if self._moving:
            print(f"\r\x1b[2K    {text[:100]}", end="", flush=True)
        elif worth_a_line:
            print(f"    {text}", flush=True)


def _is_large(line: str) -> bool:
    size = re.search(r"\((\d+)[.\d]* MB\)", line)
    return size is not None and int(size.group(1)) >= 10


@contextlib.contextmanager
def step(name: str, repeat: str, remedy: str = "") -> Iterator[None]:
    """Announce a step, tell its time, and say how to repeat it if it fails."""
    print(f"==> {name}", flush=True)
    began = time.monotonic()
    try:
        yield
    except (Failed, OSError) as error:
        mend = f"\n  mend it:   {remedy}" if remedy else ""
        raise Failed(f"{name}: {error}\n  repeat it: {repeat}{mend}") from error
    print(f"    {name}: {time.monotonic() - began:.1f} s", flush=True)


def run(
    name: str,
    command: Sequence[str | Path],
    *,
    repeat: str = "",
    remedy: str = "",
    env: dict[str, str] | None = None,
    cwd: Path = ROOT,
    given: str | None = None,
    quiet: bool = False,
) -> None:
    """Run one command as a step."""
    settings = [f"{key}={value}" for key, value in (env or {}).items()]
    shown = shlex.join([*settings, *(str(word).replace(f"{ROOT}/", "") for word in command)])
    with step(name, repeat or shown, remedy):
        _call(command, env=env, cwd=cwd, given=given, quiet=quiet)


def _call(
    command: Sequence[str | Path],
    *,
    env: dict[str, str] | None = None,
    cwd: Path = ROOT,
    given: str | None = None,
    quiet: bool = False,
    progress: _PackageProgress | None = None,
) -> None:
    """Run a command; `quiet` and `progress` show what it printed only when it fails."""
    captured = quiet or progress is not None
    output: list[str] = []
    with subprocess.Popen(
        [str(word) for word in command],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL if given is None else subprocess.PIPE,
        stdout=subprocess.PIPE if captured else None,
        stderr=subprocess.STDOUT if captured else None,
        text=True,
        errors="replace",
    ) as process:
        if given is not None and process.stdin is not None:
            process.stdin.write(given)
            process.stdin.close()
        for line in process.stdout or ():
            output.append(line)
            if progress is not None:
                progress(line)
    if progress is not None:
        progress.end()
    if process.returncode != 0:
        print("".join(output[-40:]), end="", file=sys.stderr, flush=True)
        raise Failed(f"exit code {process.returncode}")


def _tool(name: str) -> str:
    return str(VENV / "bin" / name)


def _generated_docs() -> list[str]:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [str(page.relative_to(ROOT)) for page in pages if "[[[cog" in page.read_text(encoding="utf-8")]


def _digest(pins: str) -> str:
    """What decides whether a set-up is still good: the pins, and what the project says of itself."""
    content = (REQUIREMENTS / f"{pins}.txt").read_bytes() + (ROOT / "pyproject.toml").read_bytes()
    return hashlib.sha256(content).hexdigest()


def _stamp() -> dict[str, str]:
    try:
        found: dict[str, str] = json.loads(STAMP.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found


def _python_version() -> str:
    return sys.version.split()[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
