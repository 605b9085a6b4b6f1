"""The way of one request, as `docs/request-path.md` walks it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from llmrouter.errors import InternalError, RouterError, StoreUnavailable
from llmrouter.gateway import wire
from llmrouter.gateway.admission import admit
from llmrouter.gateway.answer import Ending, Tapped
from llmrouter.gateway.exchange import Exchange
from llmrouter.gateway.following import follow
from llmrouter.gateway.run import Run
from llmrouter.gateway.state import State
from llmrouter.protocols import Ledger, Plan
from llmrouter.quality.samples import SampleBook, Tap
from llmrouter.telemetry.metrics import Metrics
from llmrouter.types import ChatRequest, Principal

__all__ = ["Pipeline"]

_log = logging.getLogger("llmrouter.gateway")


class Pipeline:
    """Answers requests from one snapshot of state at a time; `state` is replaced as a whole, never edited."""

    def __init__(
        self, state: State, ledger: Ledger, samples: SampleBook, metrics: Metrics, *, now: Callable[[], float]
    ) -> None:
        self.state = state
        self._ledger = ledger
        self._samples = samples
        self._metrics = metrics
        self._now = now

    async def handle(self, exchange: Exchange) -> None:
        """Answer one request; returns when the client has everything, or has gone."""
        state = self.state
        run = None
        try:
            principal = state.keys.authenticate(exchange.authorization)
            request = wire.parse(
                exchange.endpoint, await exchange.body(), exchange.headers, state.config.limits, label=state.label
            )
            tier = state.tier(request.model, principal)
            run = self._run(exchange.request_id, state, principal, request)
            plan = tier.plan(run)
            run.decision = plan.decision
            plan = await admit(state, self._ledger, run, plan)
        except RouterError as error:
            self._metrics.refused(error.status, error.code)
            if isinstance(error, StoreUnavailable):
                _log.error("request %s was refused before anything was called: %s", exchange.request_id, error.message)
            if run is not None:
                exchange.describe(run, config_version=state.version)
            await exchange.refuse(error)
            return
        # From here on the call is in the books: nothing may come between this and the `try` that records it.
        await self._serve(exchange, state, run, plan)

    def _run(self, request_id: str, state: State, principal: Principal, request: ChatRequest) -> Run:
        latency_class = state.limits.class_of(principal, request)
        means = state.config.classes.of(latency_class)
        longest_s = state.config.server.request_timeout_s
        return Run.open(
            request_id=request_id,
            request=request,
            principal=principal,
            config_version=state.version,
            longest_s=min(longest_s, means.request_timeout_s or longest_s),
            now=self._now,
            latency_class=latency_class,
            may_spill=means.hosted,
        )

    async def _serve(self, exchange: Exchange, state: State, run: Run, plan: Plan) -> None:
        failure: RouterError | None = None
        ending = None
        tap = self._samples.tap(run.principal.tenant_id, run.request, run.request_id)
        run.decision = plan.decision
        exchange.describe(run, config_version=state.version)
        try:
            answer = await follow(state, run, plan, now=self._now)
            ending = await answer.deliver(run, exchange if tap is None else Tapped(exchange, tap))
        except RouterError as error:
            failure = error
        except asyncio.CancelledError:
            run.aborted = exchange.client_gone
            run.status, run.error_code = (499, "client_cancelled") if run.aborted else (503, "draining")
            raise
        except Exception:  # noqa: BLE001 - the outer edge: logged, and never a framework's error to a client
            _log.exception("request %s failed inside the gateway", run.request_id)
            failure = InternalError(f"an internal error; the log has it under {run.request_id}")
        finally:
            if failure is not None:
                run.status, run.error_code = failure.status, failure.code
            failure = await self._record(state, run, ending, tap) or failure
            if failure is not None and failure.status >= 500:
                _log.warning("request %s got %d: %s", run.request_id, failure.status, _tried(run))
        if failure is not None or ending is None:
            await exchange.refuse(failure or InternalError("no answer"))
        else:
            await exchange.finish(ending)

    async def _record(self, state: State, run: Run, ending: Ending | None, tap: Tap | None) -> RouterError | None:
        """Put the call into the books before its end is sent; an answer that cannot be booked is not given."""
        entry = run.entry(state.prices, state.reference_model, self._now())
        run.cost_usd = entry.cost_usd
        self._metrics.observe(entry, [name for trial in run.trials for name in trial.alerts])
        try:
            await self._ledger.record(entry)
        except RouterError as error:
            _log.error("request %s is not in the ledger: %s", run.request_id, error.message)
            self._metrics.lost(error.code)
            return error
        if ending is not None:
            self._samples.offer(entry, run.request, tap.answer if tap is not None else ending.body)
        return None


def _tried(run: Run) -> str:
    """The attempts of a call, for the log."""
    tries = (
        f"{t.target.model_id} at {t.replica or 'no replica'}: {t.failure or 'ok'} {t.status or ''}" for t in run.trials
    )
    return "; ".join(each.rstrip() for each in tries) or "no attempt"
