"""The turns of a chat request: checked, measured, and what they need of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llmrouter.errors import RequestError

__all__ = ["Prompt", "read_messages"]

_ROLES = frozenset(("developer", "system", "user", "assistant", "tool", "function"))
_PART_NEEDS = {"text": None, "refusal": None, "image_url": "vision", "input_audio": "audio_input", "file": "files"}
_OPENING = 2048
"""Characters of the first turns that identify a conversation."""


@dataclass(slots=True)
class Prompt:
    """What the turns amount to."""

    text_bytes: int
    count: int
    media_parts: int
    last_user_text: str
    opening: str


def read_messages(messages: Any, max_messages: int, needs: set[str]) -> Prompt:
    """Check every turn and add the capabilities that its parts ask for to `needs`.

    Raises:
        RequestError: naming the turn and the key, e.g. `messages[2].content[0].type`.
    """
    if not isinstance(messages, list) or not messages:
        raise RequestError("`messages` must be a list that is not empty", param="messages")
    if len(messages) > max_messages:
        raise RequestError(
            f"`messages` has {len(messages)} turns; at most {max_messages} are allowed", param="messages"
        )
    size = media = 0
    last_user_text = opening = ""
    begun = False
    for position, message in enumerate(messages):
        role = message.get("role") if isinstance(message, dict) else None
        if role not in _ROLES:
            where = f"messages[{position}].role"
            raise RequestError(f"`{where}` must be one of {', '.join(sorted(_ROLES))}", param=where)
        text, parts = _content(message, role, position, needs)
        media += parts
        size += len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        size += _tool_call_bytes(message, position)
        if role == "user":
            last_user_text = text
        if not begun:
            opening += text[:_OPENING]
            begun = role == "user"
    return Prompt(size, len(messages), media, last_user_text, opening)


def _content(message: dict[str, Any], role: str, position: int, needs: set[str]) -> tuple[str, int]:
    """The text of a turn and the number of its media parts."""
    content = message.get("content")
    where = f"messages[{position}].content"
    if role == "tool" and not isinstance(message.get("tool_call_id"), str):
        raise RequestError(
            f"`messages[{position}].tool_call_id` is required for a tool turn",
            param=f"messages[{position}].tool_call_id",
        )
    if isinstance(content, str):
        return content, 0
    if content is None:
        if role == "assistant" and (message.keys() & {"tool_calls", "function_call", "refusal", "audio"}):
            return "", 0
        if role == "function":
            return "", 0
        raise RequestError(f"`{where}` is required", param=where)
    if not isinstance(content, list):
        raise RequestError(f"`{where}` must be a string or a list of parts", param=where)
    texts: list[str] = []
    media = 0
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in _PART_NEEDS:
            raise RequestError(
                f"`{where}[{index}].type` must be one of {', '.join(_PART_NEEDS)}", param=f"{where}[{index}].type"
            )
        need = _PART_NEEDS[kind]
        value = part.get(kind)
        if need is None:
            if not isinstance(value, str):
                raise RequestError(f"`{where}[{index}].{kind}` must be a string", param=f"{where}[{index}].{kind}")
            texts.append(value)
        else:
            if not isinstance(value, dict):
                raise RequestError(f"`{where}[{index}].{kind}` must be an object", param=f"{where}[{index}].{kind}")
            needs.add(need)
            media += 1
    return "\n".join(texts), media


def _tool_call_bytes(message: dict[str, Any], position: int) -> int:
    """Bytes of earlier tool calls, which are prompt tokens too."""
    calls = message.get("tool_calls")
    if calls is None:
        return 0
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        where = f"messages[{position}].tool_calls"
        raise RequestError(f"`{where}` must be a list of objects", param=where)
    return sum(len(str(call.get("function") or call.get("custom") or "")) for call in calls)
