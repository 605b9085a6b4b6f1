"""Operations on their way to the writer, and how those who wait are told on their own event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from llmrouter.errors import RouterError, StoreUnavailable
from llmrouter.ledger.batch import Operation
from llmrouter.types import Admission

__all__ = ["Answer", "Recovering", "Refusal", "Waiting", "tell", "tell_recovered"]


@dataclass(frozen=True, slots=True, eq=False)
class Recovering:
    """Recover now, and tell how many calls were booked."""

    done: asyncio.Future[int]


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """An operation on its way and whom to tell, if anybody."""

    operation: Operation
    done: asyncio.Future[Admission | None] | None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why nothing was written, and whether one of the operations is to blame instead of the store."""

    message: str
    of_operation: bool


Answer = Admission | None | Refusal
"""What became of an operation; None for a success that has no answer."""

_Outcome = tuple[Waiting, Answer]


def tell(outcomes: Sequence[_Outcome]) -> list[_Outcome]:
    """Resolve futures on their event loop, with one wake-up for each loop; returns those whose loop is gone."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Outcome]] = {}
    for outcome in outcomes:
        done = outcome[0].done
        if done is not None:
            by_loop.setdefault(done.get_loop(), []).append(outcome)
    lost: list[_Outcome] = []
    for loop, told in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve, told)
        except RuntimeError:  # the loop was closed: nobody waits any more
            lost += told
    return lost


def _resolve(told: Sequence[_Outcome]) -> None:
    for waiting, answer in told:
        done = waiting.done
        if done is None or done.done():  # the waiting task was cancelled; an entry is written all the same
            continue
        if isinstance(answer, Refusal):
            done.set_exception(StoreUnavailable(answer.message))
        else:
            done.set_result(answer)


def tell_recovered(waiting: Sequence[Recovering], outcome: int | RouterError) -> None:
    """Resolve their futures on their event loops."""
    for each in waiting:
        with contextlib.suppress(RuntimeError):  # the loop was closed
            each.done.get_loop().call_soon_threadsafe(_finish, each.done, outcome)


def _finish(done: asyncio.Future[int], outcome: int | RouterError) -> None:
    if done.done():
        return
    if isinstance(outcome, RouterError):
        done.set_exception(outcome)
    else:
        done.set_result(outcome)
