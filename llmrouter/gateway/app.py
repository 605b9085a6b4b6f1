"""The admin plane: a FastAPI app behind admin-scoped keys, on the data port or on one of its own.

Authentication is a dependency of each route, never derived from the URL or the Host header. In front of all routes, and
before a byte of the body is read, the same key is asked for and the body is bounded. Every error has the OpenAI shape.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llmrouter import __version__
from llmrouter import config as configuration
from llmrouter.config import Config, Identifier, LimitSet, RuleConfig
from llmrouter.config_checks import refuse_contradictions
from llmrouter.errors import InternalError, NotFound, PermissionDenied, RequestError, RouterError, StoreUnavailable
from llmrouter.gateway.artefacts import ArtefactShelf
from llmrouter.gateway.build import check_reload
from llmrouter.gateway.exchange import Exchange
from llmrouter.gateway.explaining import explain_request
from llmrouter.gateway.usage_route import add_usage
from llmrouter.routing.artefact_store import ArtefactRefused, ArtefactStore
from llmrouter.routing.rules import compile_rules
from llmrouter.routing.versions import Learned, RoutingStore
from llmrouter.shared_store import SharedStore
from llmrouter.tenancy.keys import KeyStore, key_as_json, principal_of
from llmrouter.types import LatencyClass, Principal, RoutingVersion, Rule

__all__ = ["AdminContext", "build_admin_app", "routing_as_json", "version_as_json"]

_RELOAD_S = 15.0
_log = logging.getLogger("llmrouter.admin")


@dataclass(frozen=True)
class AdminContext:
    """What the admin routes act on."""

    config: Callable[[], Config]
    version: Callable[[], int]
    """Of the configuration in force."""
    authenticate: Callable[[bytes | None], Principal]
    path: Path
    """The file of this gateway."""
    store: SharedStore
    """Where keys and rules are: that file, or a database that gateways share."""
    pepper: bytes
    metrics: Callable[[], bytes]
    config_path: Path
    reload: Callable[[], None]
    """Ask for a reload; it takes effect a moment later."""


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ArtefactBody(_Body):
    """What learned tiers go by."""

    digest: Annotated[str, Field(max_length=64)] | None
    """Of an artefact that is in the store already; null is the generic one."""
    point: Annotated[int, Field(ge=0)] | None = None
    """Its operating point; null is the one that it was trained to choose."""


class RoutingBody(_Body):
    """The next routing version."""

    base_version: int
    """The version this one was made from; publishing fails when it is no longer the current one."""
    rules: list[RuleConfig]
    note: Annotated[str, Field(max_length=2000)] = ""
    artefact: ArtefactBody | None = None
    """What learned tiers go by from then on; without it, what they go by now."""
    dry_run: bool = False
    """Check only."""


class RollbackBody(_Body):
    to: int
    base_version: int | None = None
    note: Annotated[str, Field(max_length=2000)] = ""


class ExplainBody(_Body):
    request: dict[str, Any]
    """A chat completions body."""
    headers: dict[str, str] = {}
    key_id: str | None = None
    """Whose key; None asks as the caller."""


class KeyBody(_Body):
    tenant_id: Identifier
    tiers: list[Identifier] | None = None
    admin: bool = False
    acl: list[str] = []
    expires_at: datetime | None = None
    note: Annotated[str, Field(max_length=500)] = ""
    limits: LimitSet = LimitSet()
    """Its own, instead of its tenant's `key_limits`."""
    classes: list[LatencyClass] | None = None
    latency_class: LatencyClass | None = None
    user_id: Annotated[str, Field(max_length=256)] | None = None


def build_admin_app(context: AdminContext) -> FastAPI:
    """The app with its routes and error shapes."""
    app = FastAPI(
        title="llmrouter admin",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        # A redirect would be built from the Host header.
        redirect_slashes=False,
    )
    app.state.context = context
    _add_error_shapes(app)
    _add_routing(app, context)
    _add_keys(app, context)
    _add_operations(app, context)
    add_usage(app, context.config, _admin)
    app.add_middleware(_Gate, context=context)
    return app


class _Gate:
    """Turns requests without an admin key away unread, and bodies that are too large."""

    def __init__(self, app: ASGIApp, context: AdminContext) -> None:
        self._app = app
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        limit = self._context.config().limits.max_body_bytes
        exchange = Exchange("chat", scope["headers"], receive, send, max_body_bytes=limit)
        try:
            _admin_of(self._context, scope)
            body = await exchange.body()
        except RouterError as error:
            await exchange.refuse(error)
            await exchange.linger()
            return
        except asyncio.CancelledError:
            if exchange.client_gone:
                return
            raise
        exchange.close()
        messages = iter([{"type": "http.request", "body": body}])

        async def replay() -> Message:
            return next(messages, None) or await receive()

        # Every body here is JSON; a client that does not say so, as curl without a header, is not refused for it.
        headers = [(name, value) for name, value in scope["headers"] if name != b"content-type"]
        json_scope = {**scope, "headers": [*headers, (b"content-type", b"application/json")]}
        await self._app(json_scope, replay, send)


def _admin_of(context: AdminContext, scope: Scope) -> Principal:
    """The principal of an admin-scoped key; every failure is 401 or 403."""
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    principal = context.authenticate(values[0] if len(values) == 1 else None)
    if not principal.admin:
        raise PermissionDenied("this needs an admin-scoped key")
    return principal


def _admin(request: Request) -> Principal:
    return _admin_of(request.app.state.context, request.scope)


Admin = Annotated[Principal, Depends(_admin)]


def _add_routing(app: FastAPI, context: AdminContext) -> None:
    store = RoutingStore(context.store)
    artefacts = ArtefactStore(context.store, context.pepper)
    shelf = ArtefactShelf(artefacts)

    def check(version: RoutingVersion) -> list[str]:
        """Whether it could be served; returns warnings."""
        warnings = compile_rules(version, context.config()).warnings
        shelf.in_force(context.config(), version, {})
        return list(warnings)

    @app.get("/v1/admin/routing")
    def current(_: Admin) -> dict[str, Any]:
        """The routing version in force, and which learned tiers drift has moved to their safe operating point."""
        return routing_as_json(store.current(), store, artefacts)

    @app.get("/v1/admin/routing/versions")
    def history(_: Admin, limit: Annotated[int, Field(ge=1, le=1000)] = 50) -> dict[str, Any]:
        """Versions, newest first."""
        return {"versions": [version_as_json(version) for version in store.history(limit)]}

    @app.post("/v1/admin/routing")
    def publish(body: RoutingBody, admin: Admin) -> dict[str, Any]:
        """Check the rules and, unless it is a dry run, publish them as the next version."""
        rules = tuple(Rule(**rule.model_dump()) for rule in body.rules)
        now = store.current()
        given = body.artefact
        learned = Learned(now.artefact_digest, now.point) if given is None else Learned(given.digest, given.point)
        draft = RoutingVersion(
            version=now.version + 1,
            rules=rules,
            created_at=now.created_at,
            author=admin.key_id,
            note=body.note,
            base_version=body.base_version,
            artefact_digest=learned.digest,
            point=learned.point,
        )
        warnings = check(draft)
        if body.dry_run:
            store.compare(body.base_version)
            return {"dry_run": True, "current_version": now.version, "warnings": warnings, **version_as_json(draft)}
        done = store.publish(
            rules, base_version=body.base_version, author=admin.key_id, note=body.note, learned=learned
        )
        return {"warnings": warnings, **version_as_json(done)}

    @app.post("/v1/admin/routing/rollback")
    def rollback(body: RollbackBody, admin: Admin) -> dict[str, Any]:
        """Publish an earlier version again, its rules and its artefact."""
        check(store.get(body.to))
        done = store.rollback(body.to, base_version=body.base_version, author=admin.key_id, note=body.note)
        return version_as_json(done)

    @app.post("/v1/admin/routing/explain")
    def explain(body: ExplainBody, admin: Admin) -> dict[str, Any]:
        """Where a request would go, and why."""
        asker = admin if body.key_id is None else _principal_of(KeyStore(context.store, context.pepper), body.key_id)
        config, now = context.config(), store.current()
        in_force = shelf.in_force(config, now, store.fallbacks(now.version))
        return explain_request(config, now, body.request, asker, headers=body.headers, in_force=in_force)


def _add_keys(app: FastAPI, context: AdminContext) -> None:
    store = KeyStore(context.store, context.pepper)

    @app.get("/v1/admin/keys")
    def list_keys(_: Admin) -> dict[str, Any]:
        """All keys; of a key's text only its id is known."""
        return {"keys": [key_as_json(info) for info in store.list()]}

    @app.post("/v1/admin/keys")
    def create_key(body: KeyBody, admin: Admin) -> dict[str, Any]:
        """Make a key whose scopes are within the caller's; its text is shown this once."""
        known = context.config().tenants
        if body.tenant_id not in known:
            raise RequestError(f"no tenant `{body.tenant_id}`; known: {', '.join(known)}", param="tenant_id")
        text, info = store.create(
            body.tenant_id,
            tiers=None if body.tiers is None else frozenset(body.tiers),
            admin=body.admin,
            acl=frozenset(body.acl),
            expires_at=body.expires_at,
            note=body.note,
            limits=body.limits,
            classes=body.classes,
            latency_class=body.latency_class,
            user_id=body.user_id,
            parent=admin,
        )
        return {"key": text, **key_as_json(info)}

    @app.delete("/v1/admin/keys/{key_id}")
    def revoke_key(key_id: str, _: Admin) -> dict[str, Any]:
        """Refuse a key from now on; every worker does within a second."""
        return key_as_json(store.revoke(key_id))


def _add_operations(app: FastAPI, context: AdminContext) -> None:
    @app.post("/v1/admin/reload")
    async def reload(_: Admin) -> dict[str, Any]:
        """Read the configuration file again; a bad one changes nothing and says why."""
        config = await asyncio.to_thread(configuration.load, context.config_path)
        refuse_contradictions(config, str(context.config_path))
        check_reload(context.config(), config)
        await asyncio.to_thread(_check_in_force, context, config)
        before = context.version()
        context.reload()
        deadline = asyncio.get_running_loop().time() + _RELOAD_S
        while context.version() == before:
            if asyncio.get_running_loop().time() > deadline:
                raise StoreUnavailable("the reload has not taken effect; the log says why")
            await asyncio.sleep(0.02)
        return {"config_version": context.version()}

    @app.get("/v1/admin/openapi.json")
    def schema(_: Admin) -> dict[str, Any]:
        """This description."""
        return app.openapi()

    @app.get("/metrics")
    def metrics(_: Admin) -> Response:
        """Prometheus text of all workers."""
        return Response(context.metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _check_in_force(context: AdminContext, config: Config) -> None:
    """Raises `RouterError` when the routing version in force could not be served with a configuration."""
    now = RoutingStore(context.store).current()
    compile_rules(now, config)
    # With a version that was tampered with nobody serves; that must not stand in the way of a reload.
    with contextlib.suppress(ArtefactRefused):
        ArtefactShelf(ArtefactStore(context.store, context.pepper)).in_force(config, now, {})


def _add_error_shapes(app: FastAPI) -> None:
    @app.exception_handler(RouterError)
    async def own(_: Request, error: RouterError) -> JSONResponse:
        return _error(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        param = ".".join(str(part) for part in first["loc"] if part != "body")
        where = f"`{param}`" if param else "the body"
        return _error(RequestError(f"{where}: {first['msg']}", param=param or None))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        if error.status_code in (404, 405):
            return _error(NotFound(f"no such path: {request.method} {request.scope['path'][:128]}"))
        return _error(RequestError(str(error.detail)))

    @app.middleware("http")
    async def last_resort(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        try:
            return await call_next(request)
        except RouterError as error:
            return _error(error)
        except Exception:  # noqa: BLE001 - the outer edge of the admin plane: logged, and in our error shape
            _log.exception("an admin request failed")
            return _error(InternalError("an internal error; the log has the details"))


def _error(error: RouterError) -> JSONResponse:
    headers = {"x-should-retry": "true" if error.retryable else "false"}
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    return JSONResponse(error.body(), status_code=error.status, headers=headers)


def version_as_json(version: RoutingVersion) -> dict[str, Any]:
    """A routing version as the API and `--json` show it."""
    return {
        "version": version.version,
        "base_version": version.base_version,
        "created_at": version.created_at.isoformat(),
        "author": version.author,
        "note": version.note,
        "rolled_back_to": version.rolled_back_to,
        "artefact": _artefact_as_json(version),
        "rules": [_rule_as_json(rule) for rule in version.rules],
    }


def routing_as_json(version: RoutingVersion, store: RoutingStore, artefacts: ArtefactStore) -> dict[str, Any]:
    """The version in force with what is known of its artefact, and the tiers at their safe operating point."""
    fallbacks = store.fallbacks(version.version).values()
    about: dict[str, Any] | None = None
    if version.artefact_digest is not None:
        try:
            about = dict(artefacts.about(version.artefact_digest).about)
        except ArtefactRefused as error:
            about = {"refused": error.message}
    return {
        **version_as_json(version),
        "artefact_about": about,
        "fallbacks": [
            {"tier": each.tier_id, "reason": each.reason, "raised_at": each.raised_at.isoformat()} for each in fallbacks
        ],
    }


def _artefact_as_json(version: RoutingVersion) -> dict[str, Any] | None:
    if version.artefact_digest is None and version.point is None:
        return None
    return {"digest": version.artefact_digest, "point": version.point}


def _rule_as_json(rule: Rule) -> dict[str, Any]:
    fields = {**asdict(rule), "match": dict(rule.match)}
    return {name: value for name, value in fields.items() if value is not None}


def _principal_of(store: KeyStore, key_id: str) -> Principal:
    info = next((info for info in store.list() if info.key_id == key_id), None)
    if info is None:
        raise RequestError(f"no key `{key_id[:64]}`", param="key_id")
    return principal_of(info)
