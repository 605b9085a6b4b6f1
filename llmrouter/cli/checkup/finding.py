"""One thing that was looked at, and how it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding", "Status", "fail", "info", "ok", "warning"]

Status = Literal["ok", "info", "warning", "fail"]
"""`info` is worth knowing and needs nothing done; `fail` is something that must work and does not."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found of one aspect of one subject."""

    status: Status
    subject: str
    """What was looked at: `machine`, `store`, `configuration`, `gateway`, or a replica such as `large/0`."""
    aspect: str
    message: str


def ok(subject: str, aspect: str, message: str) -> Finding:
    """It works."""
    return Finding("ok", subject, aspect, message)


def info(subject: str, aspect: str, message: str) -> Finding:
    """Worth knowing."""
    return Finding("info", subject, aspect, message)


def warning(subject: str, aspect: str, message: str) -> Finding:
    """It works, but something should be done."""
    return Finding("warning", subject, aspect, message)


def fail(subject: str, aspect: str, message: str) -> Finding:
    """It must work and does not."""
    return Finding("fail", subject, aspect, message)
