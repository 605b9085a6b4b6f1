"""What the demo says at the end: the calls as the ledger has them, their sum, and how far to trust the figures."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from decimal import Decimal
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from llmrouter.cli.demonstration.prompts import Prompt
from llmrouter.config import Config
from llmrouter.types import LedgerEntry

__all__ = ["closing_words", "show_report"]

_PIPE_COLUMNS = 100
_SHORT = 20
_MILLION = Decimal(1_000_000)


def show_report(asked: Sequence[tuple[Prompt, LedgerEntry]], config: Config, path: Path) -> None:
    """Print the table, the total and the small print to standard output."""
    terminal = sys.stdout.isatty()
    console = Console(file=sys.stdout, width=None if terminal else _PIPE_COLUMNS, highlight=False, markup=False)
    entries = [entry for _, entry in asked]
    console.print(_table(asked))
    console.print(Text(f"\n{_total_words(entries, config.reference_model)}\n", style="bold"), soft_wrap=not terminal)
    for line in _small_print(entries, config, path):
        console.print(Text(line), soft_wrap=not terminal)


def closing_words(base_url: str, key: str) -> str:
    """All that somebody needs to use the gateway that runs now; made to be copied."""
    curl = " ".join(
        (
            f"curl {base_url}/chat/completions -H 'Authorization: Bearer {key}' -H 'Content-Type: application/json'",
            """-d '{"model": "auto", "messages": [{"role": "user", "content": "Say hello"}]}'""",
        )
    )
    return f"""\
The gateway is running; Ctrl-C stops it.

  base URL  {base_url}
  API key   {key}

With curl:

{curl}

With the OpenAI SDK (pip install openai):

from openai import OpenAI

client = OpenAI(base_url="{base_url}", api_key="{key}")
answer = client.chat.completions.create(model="auto", messages=[{{"role": "user", "content": "Say hello"}}])
print(answer.choices[0].message.content)
"""


def _table(asked: Sequence[tuple[Prompt, LedgerEntry]]) -> Table:
    """Two lines a call, so that it fits a terminal of 80 columns."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold", show_edge=False)
    table.add_column("prompt\n  tier", overflow="ellipsis", no_wrap=True)
    table.add_column("answered by\n  why", overflow="fold", min_width=22)
    for name in ("tries\n", "tokens in\nout", "first s\nall s", "cost µ$\non large"):
        table.add_column(name, justify="right", no_wrap=True)
    for number, (prompt, entry) in enumerate(asked, 1):
        short = prompt.text if len(prompt.text) <= _SHORT else f"{prompt.text[: _SHORT - 1]}…"
        what = f"{number} {short}\n  {entry.tier}"
        who = f"{entry.model_id or 'nobody'}\n  {_why(entry)}"
        table.add_row(*(Text(cell) for cell in (what, who, *_figures(entry))))
    return table


def _figures(entry: LedgerEntry) -> tuple[str, ...]:
    first = "-" if entry.ttft_s is None else f"{entry.ttft_s:.2f}"
    on_large = "-" if entry.reference_cost_usd is None else _micro(entry.reference_cost_usd)
    return (
        str(len(entry.attempts)),
        f"{entry.usage.input_tokens}\n{entry.usage.output_tokens}",
        f"{first}\n{entry.total_s:.2f}",
        f"{_micro(entry.cost_usd)}\n{on_large}",
    )


def _why(entry: LedgerEntry) -> str:
    failed = dict.fromkeys(attempt.model_id for attempt in entry.attempts if attempt.outcome != "ok")
    return f"{entry.reason} after {', '.join(failed)}" if failed else entry.reason


def _total_words(entries: Sequence[LedgerEntry], reference_model: str) -> str:
    cost = sum((entry.cost_usd for entry in entries), Decimal(0))
    reference = sum((entry.reference_cost_usd or Decimal(0) for entry in entries), Decimal(0))
    saved = reference - cost
    percent = f" ({100 * saved / reference:.0f} %)" if reference else ""
    return (
        f"{len(entries)} calls cost ${cost:.7f}; all on {reference_model} they would have cost ${reference:.7f}. "
        f"Saved: ${saved:.7f}{percent}."
    )


def _small_print(entries: Sequence[LedgerEntry], config: Config, path: Path) -> Iterable[str]:
    used = dict.fromkeys([*(entry.model_id for entry in entries if entry.model_id), config.reference_model])
    yield f"µ$ are millionths of a dollar. How a call is priced stands in {path}:"
    for model_id in used:
        yield f"  {model_id}: {_price_words(config, model_id)}"
    yield (
        f"The last column prices the same tokens on {config.reference_model}, which would have written other words, "
        "more or fewer. Idle engines are not priced, though a machine costs the same when it waits."
    )
    yield (
        "Read the answers: models as small as these are often wrong. The demo shows where requests go, why, and what "
        "they cost; it does not show that quality held."
    )


def _price_words(config: Config, model_id: str) -> str:
    price = config.models[model_id].price
    if price.gpu is None:
        return "list price per token"
    return (
        f"machine time, {price.gpu.input_pool_s_per_token} s a token read and {price.gpu.output_pool_s_per_token} s "
        f"a token written (measured), at ${price.gpu.usd_per_hour} an hour (assumed)"
    )


def _micro(usd: Decimal) -> str:
    return f"{usd * _MILLION:.2f}"
