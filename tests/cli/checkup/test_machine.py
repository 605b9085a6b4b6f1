"""Clock, limits, disk and secrets of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

from llmrouter.cli.checkup.finding import Finding
from llmrouter.cli.checkup.machine import check_clock, check_disk, check_open_files, check_secrets
from llmrouter.config import parse
from tests.support import model, pool, tier

NOW = datetime(2026, 12, 1, tzinfo=UTC).timestamp()


class Clocks:
    """A wall clock and a monotonic one that run at their own speeds."""

    def __init__(self, wall: float, speed: float = 1.0) -> None:
        self._wall = wall
        self._speed = speed
        self._passed = 0.0

    def wall(self) -> float:
        return self._wall + self._passed * self._speed

    def monotonic(self) -> float:
        return 77.0 + self._passed

    def sleep(self, seconds: float) -> None:
        self._passed += seconds

    def findings(self) -> list[Finding]:
        return list(check_clock(wall=self.wall, monotonic=self.monotonic, sleep=self.sleep))


def statuses(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.aspect, finding.status) for finding in findings]


def test_a_clock_that_runs_as_time_does_is_fine():
    assert statuses(Clocks(NOW).findings()) == [("clock", "ok")]


def test_a_clock_that_was_never_set_fails():
    assert statuses(Clocks(0.0).findings()) == [("clock", "fail")]


@pytest.mark.parametrize("speed", [0.5, 2.0])
def test_a_clock_that_is_being_moved_is_warned_of(speed: float):
    assert statuses(Clocks(NOW, speed).findings()) == [("clock", "warning")]


@pytest.mark.parametrize(("limit", "status"), [(2 * 100 + 127, "warning"), (2 * 100 + 128, "ok"), (-1, "ok")])
def test_each_request_needs_two_open_files(limit: int, status: str):
    text = "[server]\nmax_concurrent_requests = 100\n" + model("s") + pool("s", ["http://h/v1"]) + tier("a", small="s")
    assert check_open_files(parse(text), limit).status == status


@pytest.mark.parametrize(
    ("free", "status"), [(2**30, "ok"), (2**30 - 1, "warning"), (2**26, "warning"), (2**26 - 1, "fail")]
)
def test_the_ledger_needs_room(tmp_path: Path, free: int, status: str):
    assert check_disk(tmp_path, free).status == status


def secrets(
    folder: Path, raw: Mapping[str, object], environ: dict[str, str], mode: int = 0o600
) -> list[tuple[str, str]]:
    path = folder / "llmrouter.toml"
    path.touch()
    path.chmod(mode)
    return [(f.status, f.message) for f in check_secrets(path, raw, environ) if f.aspect == "secrets"]


def test_every_missing_variable_is_named(tmp_path: Path):
    raw = {"store": {"secret": "${A}"}, "pools": {"p": {"api_key": "${B}", "urls": ["http://${C}/v1"]}}}
    assert secrets(tmp_path, raw, {"B": "set", "C": ""}) == [
        ("fail", "environment variable A is not set"),
        ("fail", "environment variable C is not set"),
    ]
    assert secrets(tmp_path, raw, {"A": "1", "B": "2", "C": "3"}) == [("ok", "all set, none written into the file")]


def test_a_secret_in_the_file_is_warned_of_but_not_shown(tmp_path: Path):
    raw = {"pools": {"p": {"api_key": "sk-1", "headers": {"x-token": "t-2"}}}}
    found = secrets(tmp_path, raw, {}, 0o644)
    assert [status for status, _ in found] == ["warning", "warning"]
    text = " ".join(message for _, message in found)
    assert "pools.p.api_key is written into a file that others can read" in text
    assert "pools.p.headers.x-token" in text
    assert "sk-1" not in text
    assert "t-2" not in text
    assert "others can read" not in secrets(tmp_path, raw, {}, 0o600)[0][1]
