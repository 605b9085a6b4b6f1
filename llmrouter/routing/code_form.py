"""Code and Python literals by what they say: layout, comments, quotes and docstrings make no difference.

Nothing is ever run here.
"""

from __future__ import annotations

import ast
import warnings
from typing import Any

from llmrouter.routing.final_answer import boxed, json_field, sentence, tagged

__all__ = ["code_of", "code_text"]

_LONGEST = 6000
"""Characters that are parsed; longer code is compared word by word."""
_DOCUMENTED = (ast.Module, ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)
_UNREADABLE = (SyntaxError, ValueError, TypeError, MemoryError, RecursionError)


def code_of(text: str) -> str:
    """The code or the literal of an answer: tagged, in its longest fence, after "the answer is", or all of it."""
    marked = json_field(text) or tagged(text)
    if marked is not None:
        return _unfenced(marked)
    if "```" in text:
        return _unfenced(text)
    spoken = boxed(text) or sentence(text)
    return text if spoken is None else _quoted(spoken)


def code_text(code: str) -> str:
    """Code in one form; of an empty text, that of the empty string."""
    bare = code.strip()
    if not bare:
        return repr(code)
    if len(bare) <= _LONGEST:
        literal = _literal(bare)
        if literal is not None:
            return literal
        tree = _tree(bare)
        expected = None if tree is None else _expected(tree)
        if expected is not None:
            return expected
        unparsed = _unparsed(tree) if "\n" in bare and tree is not None else None
        if unparsed is not None:
            return unparsed
    if "\n" not in bare:
        # What some write without quotation marks is the string that others put between them.
        return repr(bare.strip("`"))
    return " ".join(bare.split())


def _unfenced(text: str) -> str:
    """The longest fenced block, the last one of equals; all of a text that has none."""
    parts = text.split("```")
    blocks = [_without_language(part) for part in parts[1::2]]
    blocks = [block for block in blocks if block.strip()]
    return max(reversed(blocks), key=len) if blocks else text


def _quoted(segment: str) -> str:
    """What stands in single backticks, else the sentence without its full stop."""
    parts = segment.split("`")
    return parts[-2] if len(parts) >= 3 and len(parts) % 2 == 1 else segment.strip().removesuffix(".")


def _without_language(block: str) -> str:
    first, newline, rest = block.partition("\n")
    return rest if newline and len(first.split()) <= 1 and len(first) < 24 else block


def _tree(code: str) -> ast.Module | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(code)
        except _UNREADABLE:
            return None


def _literal(code: str) -> str | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            value = ast.literal_eval(code)
            # The string '[1]' and the list [1] are told apart by quotation marks, which models often leave out.
            inner = _literal(value) if isinstance(value, str) and len(value) < len(code) else None
            return _written(value) if inner is None else inner
        except _UNREADABLE:
            return None


def _expected(tree: ast.Module) -> str | None:
    """The literal on the right of `f(…) == literal`, alone or in an assertion."""
    if len(tree.body) != 1:
        return None
    (statement,) = tree.body
    compared = statement.test if isinstance(statement, ast.Assert) else getattr(statement, "value", None)
    if not isinstance(compared, ast.Compare) or len(compared.ops) != 1 or not isinstance(compared.ops[0], ast.Eq):
        return None
    try:
        return _written(ast.literal_eval(compared.comparators[0]))
    except _UNREADABLE:
        return None


def _unparsed(tree: ast.Module) -> str | None:
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and len(node.body) > 1 and _is_docstring(node.body[0]):
            del node.body[0]
    try:
        return ast.unparse(tree)
    except _UNREADABLE:
        return None


def _is_docstring(statement: ast.stmt) -> bool:
    constant = getattr(statement, "value", None)
    return isinstance(statement, ast.Expr) and isinstance(constant, ast.Constant) and isinstance(constant.value, str)


def _written(value: Any) -> str:
    """A literal in one form: sets sorted, whole numbers without a decimal point; dictionaries keep their order."""
    if isinstance(value, float) and abs(value) < 2.0**53 and value == int(value):
        return repr(int(value))
    if isinstance(value, list):
        return f"[{', '.join(map(_written, value))}]"
    if isinstance(value, tuple):
        inner = ", ".join(map(_written, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_written(k)}: {_written(v)}' for k, v in value.items())}}}"
    if isinstance(value, set):
        return f"{{{', '.join(sorted(map(_written, value)))}}}" if value else "set()"
    return repr(value)
