"""`GET /v1/admin/usage` and `/v1/admin/usage/invoice`: reports over HTTP.

They run in a thread of the server's pool, one at a time and within a time limit, so that calls are served meanwhile.
"""

from __future__ import annotations

import io
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Query, Response
from fastapi.responses import JSONResponse

from llmrouter.config import Config
from llmrouter.errors import NoCapacity
from llmrouter.ledger.invoice import invoice, invoice_as_json, parse_month
from llmrouter.ledger.usage import Report, UsageSource, ask, make_question
from llmrouter.ledger.usage_books import usage_books
from llmrouter.ledger.usage_formats import Format, columns, records, report_as_json, write_csv, write_parquet
from llmrouter.types import Principal

__all__ = ["add_usage"]

_TIMEOUT_S = 60.0
_MOST_GROUPS = 100_000


def add_usage(
    app: FastAPI,
    config: Callable[[], Config],
    admin: Callable[..., Principal],
    *,
    timeout_s: float = _TIMEOUT_S,
) -> None:
    """Add the routes; `admin` is the dependency that lets admin keys in and nobody else."""
    busy = threading.Lock()

    @contextmanager
    def books() -> Iterator[list[UsageSource]]:
        if not busy.acquire(blocking=False):
            raise NoCapacity("another report is being made here; ask again in a moment")
        try:
            with usage_books(config().store, timeout_s=timeout_s) as sources:
                yield sources
        finally:
            busy.release()

    @app.get("/v1/admin/usage", dependencies=[Depends(admin)])
    def usage(
        by: Annotated[list[str], Query()] = [],  # noqa: B006 - FastAPI copies it
        measure: str = "calls",
        since: str | None = None,
        until: str | None = None,
        tenant: Annotated[list[str], Query()] = [],  # noqa: B006
        limit: Annotated[int, Query(ge=1, le=_MOST_GROUPS)] = 10_000,
        format: Format = "json",  # noqa: A002 - the parameter's name in the URL
    ) -> Response:
        """Requests, tokens and dollars by what `by` names; more than `limit` groups are an error."""
        question = make_question(measure, by, since, until, tenant, limit, option="`{}`".format)
        with books() as sources:
            report = ask(sources, question)
        return _response(report, report_as_json(report), format)

    @app.get("/v1/admin/usage/invoice", dependencies=[Depends(admin)])
    def tenant_invoice(tenant: str, month: str, format: Format = "json") -> Response:  # noqa: A002
        """What a tenant owes for a month: a line for each day, tier, model and price."""
        first = parse_month(month, "`month`")
        with books() as sources:
            made = invoice(sources, tenant, first)
        return _response(made.lines, invoice_as_json(made), format)


def _response(report: Report, as_json: dict[str, Any], form: Format) -> Response:
    if form == "json":
        return JSONResponse(as_json)
    attachment = {"content-disposition": f'attachment; filename="usage.{form}"'}
    if form == "csv":
        text = io.StringIO()
        write_csv(columns(report), records(report), text)
        return Response(text.getvalue(), media_type="text/csv; charset=utf-8", headers=attachment)
    with tempfile.TemporaryDirectory(prefix="llmrouter-usage-") as folder:
        path = Path(folder) / "usage.parquet"
        write_parquet(columns(report), records(report), path)
        return Response(path.read_bytes(), media_type="application/vnd.apache.parquet", headers=attachment)
