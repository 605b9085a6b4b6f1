"""The folder that the demo works in: its configuration, and beside it the store that the gateway makes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from llmrouter.backends.runners.catalogue import CATALOGUE
from llmrouter.errors import UsageError

__all__ = ["LARGE", "SMALL", "prepare", "render"]

SMALL = "smollm2-135m"
LARGE = "qwen2.5-coder-0.5b"

_USD_PER_CORE_HOUR = "0.05"


@dataclass(frozen=True, slots=True)
class _Speed:
    """Tokens a second of one core, as the comment in `demo.toml` says how measured."""

    read: int
    written: int


_SPEEDS = {
    "smollm2-135m": _Speed(107, 79),
    "qwen2.5-coder-0.5b": _Speed(65, 22),
    "qwen2.5-coder-1.5b": _Speed(26, 9),
}


def prepare(folder: Path, *, small: str | None, large: str | None) -> Path:
    """The path of the folder's configuration, written first if there is none.

    One that is there stays, unless other models are named and nobody has edited it.

    Raises:
        UsageError: a model is unknown, the folder cannot be written, or other models are named and the file was edited.
    """
    text = render(small or SMALL, large or LARGE)
    path = folder / "llmrouter.toml"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            # The store and its secret do not belong into anybody's repository.
            (folder / ".gitignore").write_text("*\n", encoding="utf-8")
        elif not (small or large):
            return path
        elif path.read_text(encoding="utf-8") not in _unedited():
            raise UsageError(
                f"{path} has been edited and stays as it is: change the models there, or take another --dir"
            )
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{folder} cannot be used: {error.strerror or error}; take another --dir") from error
    return path


def render(small: str, large: str) -> str:
    """The text of the configuration for two models of the catalogue; both may be the same."""
    for option, name in (("--small", small), ("--large", large)):
        if name not in CATALOGUE:
            raise UsageError(f"{option} {name}: no such model; known: {', '.join(CATALOGUE)}")
    facts = {
        "small": small,
        "small_file": small,
        # Two pools cannot serve one model, so a second engine with the same file needs a name of its own.
        "large": large if large != small else f"{large}-large",
        "large_file": large,
        "usd_per_hour": _USD_PER_CORE_HOUR,
        "small_input_s": _seconds_a_token(_SPEEDS[small].read),
        "small_output_s": _seconds_a_token(_SPEEDS[small].written),
        "large_input_s": _seconds_a_token(_SPEEDS[large].read),
        "large_output_s": _seconds_a_token(_SPEEDS[large].written),
    }
    text = Path(__file__).parent.with_name("demo.toml").read_text(encoding="utf-8")
    for name, value in facts.items():
        text = text.replace(f"<{name}>", value)
    return text


def _unedited() -> set[str]:
    return {render(small, large) for small in CATALOGUE for large in CATALOGUE}


def _seconds_a_token(tokens_a_second: int) -> str:
    return f"{1 / tokens_a_second:.4f}"
