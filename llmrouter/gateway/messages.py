"""What a request's prompt is: the turns of a chat, or plain texts; checked, measured, and what they need of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llmrouter.errors import RequestError

__all__ = ["Prompt", "read_messages", "read_texts"]

_ROLES = frozenset(("developer", "system", "user", "assistant", "tool", "function"))
_PART_NEEDS = {"text": None, "refusal": None, "image_url": "vision", "input_audio": "audio_input", "file": "files"}
_SAID_OTHERWISE = frozenset(("tool_calls", "function_call", "refusal", "audio", "reasoning", "reasoning_content"))
"""What an assistant may have said instead of content."""
_ALSO_SAID = ("name", "tool_call_id")
"""What templates may write beside the content."""
_OPENING = 512
"""Characters of the first turns that identify a conversation."""
_BYTES_OF_A_TOKEN_ID = 3
"""Text bytes that a token id counts for, so that one bound serves both kinds of prompt."""


@dataclass(slots=True)
class Prompt:
    """What a prompt amounts to."""

    text_bytes: int
    count: int
    media_parts: int
    last_user_text: str
    opening: str
    texts: int = 1
    """Prompts that are answered apart, each with n choices."""


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
    last_user_text = ""
    opening: list[str] = []
    begun = False
    for position, message in enumerate(messages):
        role = message.get("role") if isinstance(message, dict) else None
        if not isinstance(role, str) or role not in _ROLES:
            raise _wrong(f"messages[{position}].role", f"must be one of {', '.join(sorted(_ROLES))}")
        content = message.get("content")
        if isinstance(content, str):
            text = content
        else:
            text, parts = _parts(content, message, role, position, needs)
            media += parts
        size += len(text) if text.isascii() else len(text.encode())
        if len(message) > 2:
            size += sum(len(str(message[name]).encode()) for name in _ALSO_SAID if message.get(name))
        if role == "user":
            last_user_text = text
        elif role == "assistant":
            size += _other_bytes(message, position)
        elif role == "tool" and not isinstance(message.get("tool_call_id"), str):
            raise _wrong(f"messages[{position}].tool_call_id", "is required for a tool turn")
        if not begun:
            opening.append(text[:_OPENING])
            begun = role == "user"
    return Prompt(size, len(messages), media, last_user_text, "".join(opening))


def read_texts(value: Any, name: str, most: int) -> Prompt:
    """The texts of `prompt` or `input`: a string, token ids, or a list of either.

    Raises:
        RequestError: naming the field.
    """
    if value is None or value == []:
        raise _wrong(name, "is required")
    texts = value if isinstance(value, list) and not _is_tokens(value) else [value]
    if len(texts) > most:
        raise RequestError(f"`{name}` has {len(texts)} texts; at most {most} are allowed", param=name)
    if all(isinstance(text, str) for text in texts):
        size = sum(len(text.encode()) for text in texts)
    elif all(_is_tokens(text) for text in texts):
        size = sum(_BYTES_OF_A_TOKEN_ID * len(text) for text in texts)
    else:
        raise _wrong(name, "must be text, token ids, or a list of either")
    first = texts[0] if isinstance(texts[0], str) else ""
    # As a turn of a chat, each text has tokens around it, and is a token at least.
    return Prompt(size, len(texts), 0, last_user_text=first, opening=first[:_OPENING], texts=len(texts))


def _is_tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(token) is int for token in value)


def _parts(content: Any, message: dict[str, Any], role: str, position: int, needs: set[str]) -> tuple[str, int]:
    """The text of a turn whose content is no string, and the number of its media parts."""
    where = f"messages[{position}].content"
    if content is None:
        if role == "function" or (role == "assistant" and not _SAID_OTHERWISE.isdisjoint(message)):
            return "", 0
        raise _wrong(where, "is required")
    if not isinstance(content, list):
        raise _wrong(where, "must be a string or a list of parts")
    texts: list[str] = []
    media = 0
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(kind, str) or kind not in _PART_NEEDS:
            raise _wrong(f"{where}[{index}].type", f"must be one of {', '.join(_PART_NEEDS)}")
        need = _PART_NEEDS[kind]
        value = part.get(kind)
        if need is None:
            if not isinstance(value, str):
                raise _wrong(f"{where}[{index}].{kind}", "must be a string")
            texts.append(value)
        else:
            if not isinstance(value, dict):
                raise _wrong(f"{where}[{index}].{kind}", "must be an object")
            needs.add(need)
            media += 1
    return "\n".join(texts), media


def _other_bytes(message: dict[str, Any], position: int) -> int:
    """Bytes of an assistant's earlier calls and thoughts, which are prompt tokens too."""
    if _SAID_OTHERWISE.isdisjoint(message):
        return 0
    calls = message.get("tool_calls")
    if calls is not None and (not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls)):
        raise _wrong(f"messages[{position}].tool_calls", "must be a list of objects")
    for number, call in enumerate(calls or ()):
        _check_call(call, f"messages[{position}].tool_calls[{number}]")
    said = [call.get("function") or call.get("custom") for call in calls or ()]
    said += [message.get(name) for name in ("function_call", "reasoning", "reasoning_content", "refusal")]
    return sum(len(str(what).encode()) for what in said if what)


def _check_call(call: dict[str, Any], where: str) -> None:
    """Engines answer a malformed earlier call with a 500, which would look like their own failure."""
    if not isinstance(call.get("id"), str):
        raise _wrong(f"{where}.id", "must be a string")
    kind, text = ("custom", "input") if "custom" in call else ("function", "arguments")
    inner = call.get(kind)
    if not isinstance(inner, dict) or not isinstance(inner.get("name"), str) or not isinstance(inner.get(text), str):
        raise _wrong(f"{where}.{kind}", f"must have a `name` and `{text}`, both strings")


def _wrong(where: str, what: str) -> RequestError:
    return RequestError(f"`{where}` {what}", param=where)
