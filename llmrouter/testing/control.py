"""Scripting and reading a fake in another process: JSON over `/_fake/script` and `/_fake/calls`.

`POST /_fake/script {"steps": [{"do": "Slow", "before_headers_s": 0.1, "step": {"do": "Answer", "text": "hi"}}]}`
appends steps; `default` (a step) and `routes` (path to step, or null to unset) may come with it or alone.
`GET /_fake/calls` returns calls, probes and counters; `DELETE /_fake/calls` forgets records and script.
Steps are named as the classes of `llmrouter.testing`; text stands for bytes, lists stand for tuples.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from llmrouter.testing import answers, content, faults, framing, pacing
from llmrouter.testing.actions import Step
from llmrouter.testing.records import Call

if TYPE_CHECKING:
    from llmrouter.testing.connection import RawRequest
    from llmrouter.testing.server import FakeBackend

__all__ = ["CONTROL_PREFIX", "answer_control", "decode_step", "encode_call"]

CONTROL_PREFIX = "/_fake/"
_COUNTERS = ("in_flight", "max_in_flight", "running", "max_running", "waiting", "connections", "connections_made")
# A function or a gate of this process has no JSON form.
_NOT_JSON = {"Decide", "Held"}


def answer_control(backend: FakeBackend, request: RawRequest) -> tuple[int, bytes]:
    """Status and JSON body for one control request."""
    try:
        match request.method, request.target.removeprefix(CONTROL_PREFIX):
            case "POST", "script":
                _apply(backend, json.loads(request.body))
            case "GET", "calls":
                pass
            case "DELETE", "calls":
                backend.forget()
            case _:
                return 404, content.dump({"error": f"no {request.method} {request.target} here"})
    except ValueError as error:
        return 400, content.dump({"error": str(error)})
    return 200, content.dump(_state(backend))


def _apply(backend: FakeBackend, wishes: Any) -> None:
    if not isinstance(wishes, dict) or not wishes.keys() <= {"steps", "default", "routes"}:
        raise ValueError("a script is an object with steps, default or routes")
    steps = [decode_step(step) for step in wishes.get("steps", [])]
    routes = {path: step and decode_step(step) for path, step in wishes.get("routes", {}).items()}
    if "default" in wishes:
        backend.default = decode_step(wishes["default"])
    backend.script(*steps)
    for path, step in routes.items():
        backend.routes.pop(path, None)
        if step is not None:
            backend.routes[path] = step


def _state(backend: FakeBackend) -> dict[str, Any]:
    return {
        "calls": [encode_call(call) for call in backend.calls],
        "probes": [encode_call(call) for call in backend.probes],
        "unplayed": len(backend.unplayed),
        **{name: getattr(backend, name) for name in _COUNTERS},
    }


def encode_call(call: Call) -> dict[str, Any]:
    """One call as JSON; times are seconds on the monotonic clock of the backend's machine."""
    return {
        "method": call.method,
        "path": call.path,
        "headers": [list(pair) for pair in call.headers],
        "body": call.body,
        "connection": call.connection,
        "arrived_s": call.arrived_s,
        "status": call.status,
        "chunks_sent": call.chunks_sent,
        "bytes_sent": call.bytes_sent,
        "finished": call.finished,
        "disconnected_after_s": call.disconnected_after_s,
    }


def decode_step(value: Any) -> Step:
    """The step that a JSON object describes.

    Raises:
        ValueError: it names no step, or a field that the step does not have.
    """
    steps = _step_classes()
    if not isinstance(value, dict) or value.get("do") not in steps:
        raise ValueError(f"a step is an object whose `do` is one of {', '.join(sorted(steps))}; this is {value!r}")
    kind = steps[value["do"]]
    fields = {field.name: field for field in dataclasses.fields(kind)}
    given = {name: part for name, part in value.items() if name != "do"}
    if unknown := given.keys() - fields.keys():
        raise ValueError(f"{kind.__name__} has no {', '.join(sorted(unknown))}; it has {', '.join(fields)}")
    try:
        step: Step = kind(**{name: _decode_field(fields[name], part) for name, part in given.items()})
    except TypeError as error:
        raise ValueError(f"{kind.__name__}: {error}") from error
    return step


def _decode_field(field: dataclasses.Field[Any], value: Any) -> Any:
    if field.name == "step":
        return decode_step(value)
    if field.name == "tool_calls":
        return tuple(content.ToolCall(**call) for call in value)
    in_bytes = "bytes" in str(field.type)
    if isinstance(value, list):
        return tuple(item.encode() if in_bytes else item for item in value)
    return value.encode() if in_bytes and isinstance(value, str) else value


def _step_classes() -> Mapping[str, Any]:
    modules = (answers, faults, framing, pacing)
    named = {name: getattr(module, name) for module in modules for name in module.__all__}
    return {name: kind for name, kind in named.items() if dataclasses.is_dataclass(kind) and name not in _NOT_JSON}
