"""What is measured: each part a table of contenders on one kind of store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path

from benchmarks.stores.books import WAYS, Load, check, fresh
from benchmarks.stores.calls import FIVE_LIMITS, TWO_RATES
from benchmarks.stores.limits import Reserving, by_incr, by_leases, by_script
from benchmarks.stores.racing import race
from benchmarks.stores.servers import postgres, redis
from benchmarks.stores.shipping import shipment
from benchmarks.stores.turns import Contender, Part, Turn
from llmrouter.ledger.sqlite import Durability
from llmrouter.types import Limit

__all__ = ["PARTS", "ROUNDS", "ledger", "limits", "power", "processes", "shipping"]

ROUNDS = 3

_LOOPS = ("1 a commit", "128 a commit")
_PROCESSES = 3


@contextmanager
def ledger(folder: Path, scale: float = 1.0) -> Iterator[Part]:
    """One process on one SQLite file; `scale` makes it shorter."""
    contenders: list[Contender] = []
    for limited in (False, True):
        contenders += _books(folder, limited, "process", _scaled(scale, loops=(1500, 6000), ledgers=(800, 3000, 3000)))
    yield Part("ledger", "Ledger, one process", "call", _LOOPS, contenders)


@contextmanager
def power(folder: Path, scale: float = 1.0) -> Iterator[Part]:
    """The same, each commit synced to the disk."""
    contenders = _books(folder, False, "power", _scaled(scale, loops=(200, 6000), ledgers=(150, 1500, 3000)))
    yield Part("power", 'Ledger with durability = "power"', "call", _LOOPS, contenders)


@contextmanager
def processes(folder: Path, scale: float = 1.0) -> Iterator[Part]:
    """Three processes on one SQLite file."""
    contenders = []
    path = folder / "shared.db"

    def run(way: str, load: Load) -> Turn:
        turn = race(way, fresh(path), load, _PROCESSES)
        check(path, turn.calls)
        return turn

    for limited in (False, True):
        each, many = (f"bare loop, {size} a commit, {_words(limited)}" for size in (1, 128))
        count = max(round(1500 * scale), 1)
        contenders += [
            Contender(each, partial(run, "loop", Load(count // 2 or 1, 1, limited))),
            Contender(many, partial(run, "loop", Load(2 * count, 128, limited))),
            Contender(
                f"ledger, 32 at once in each, {_words(limited)}",
                partial(run, "ledger", Load(count, 32, limited)),
                (each, many),
            ),
        ]
    yield Part("processes", f"Ledger, {_PROCESSES} processes on one file", "call", _LOOPS, contenders)


@contextmanager
def limits(folder: Path, scale: float = 1.0) -> Iterator[Part]:
    """Reservations and settlements in Redis; raises `NotInstalled`."""
    contenders: list[Contender] = []
    with redis(folder / "redis") as url:
        for kinds, which in (("two rates", TWO_RATES), ("three rates, slots and dollars", FIVE_LIMITS)):
            for at_once in (1, 32):
                contenders += _reserving(url, which, f"{kinds}, {at_once} at once", at_once, scale)
        yield Part("limits", "Limits in Redis", "call", ("script", "INCR"), contenders)


@contextmanager
def shipping(folder: Path, scale: float = 1.0) -> Iterator[Part]:
    """From the spool to PostgreSQL; raises `NotInstalled`."""
    batches = max(round(6 * scale), 1)
    with ExitStack() as stack:
        url = stack.enter_context(postgres(folder / "postgres"))
        under_way = stack.enter_context(shipment(folder / "spool.db", url, ROUNDS * batches))
        bare = "bare loop of COPY, from memory"
        contenders = (
            Contender(bare, partial(under_way.copy, batches)),
            Contender("shipper, 2,000 a batch", partial(under_way.ship, batches), (bare,)),
        )
        yield Part("shipping", "Shipping to PostgreSQL", "entry", ("COPY",), contenders)


def _books(folder: Path, limited: bool, durability: Durability, counts: tuple[int, ...]) -> list[Contender]:
    path = folder / "books.db"

    def run(way: str, load: Load) -> Turn:
        turn = WAYS[way](fresh(path), load, lambda: None)
        check(path, load.calls)
        return turn

    each, many = (f"bare loop, {size} a commit, {_words(limited)}" for size in (1, 128))
    few, full, *rest = counts
    return [
        Contender(each, partial(run, "loop", Load(few, 1, limited, durability))),
        Contender(many, partial(run, "loop", Load(full, 128, limited, durability))),
        *(
            Contender(
                f"ledger, {at_once} at once, {_words(limited)}",
                partial(run, "ledger", Load(count, at_once, limited, durability)),
                (each, many),
            )
            for at_once, count in zip((1, 32, 256), rest, strict=True)
        ),
    ]


def _reserving(url: str, which: tuple[Limit, ...], words: str, at_once: int, scale: float) -> list[Contender]:
    few, many = _scaled(scale, loops=(1000,), ledgers=(4000 if at_once > 1 else 1000,))
    load = Reserving(few, at_once, which)
    incr, script = f"bare INCR and DECR, {words}", f"bare script, {words}"
    return [
        Contender(incr, partial(by_incr, url, load)),
        Contender(script, partial(by_script, url, load)),
        Contender(f"leases, {words}", partial(by_leases, url, Reserving(many, at_once, which)), (script, incr)),
        Contender(
            f"no leases, {words}", partial(by_leases, url, Reserving(few, at_once, which, lease_s=0.0)), (script, incr)
        ),
    ]


def _scaled(scale: float, *, loops: tuple[int, ...], ledgers: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(max(round(count * scale), 1) for count in (*loops, *ledgers))


def _words(limited: bool) -> str:
    return "5 limits" if limited else "no limits"


PARTS: dict[str, Callable[[Path], AbstractContextManager[Part]]] = {
    "ledger": ledger,
    "processes": processes,
    "power": power,
    "limits": limits,
    "shipping": shipping,
}
"""In the order of the report."""
