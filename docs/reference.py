"""Writes the generated parts of docs/cli.md and docs/configuration.md from the code; cog calls it.

`cog -r docs/cli.md docs/configuration.md` brings the pages up to date, `cog --check` with the same names says whether
they are.
"""

from __future__ import annotations

import ast
import inspect
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel
from typer.testing import CliRunner

from llmrouter import sections as classes
from llmrouter import tenancy_sections as tenancy
from llmrouter.cli import build_app

__all__ = ["cli_reference", "command_names", "configuration_reference", "sections"]

_COLUMNS = 80
_MEANINGS = Path(__file__).with_name("meanings.toml")


def cli_reference() -> str:
    """The help of every command, at a fixed width and without colours."""
    runner = CliRunner()
    parts = []
    for name in command_names(build_app()):
        arguments = [*name.split(), "--help"]
        told = runner.invoke(build_app(), arguments, env={"COLUMNS": str(_COLUMNS)}, prog_name="llmrouter")
        if told.exit_code:
            raise RuntimeError(f"llmrouter {name} --help: {told.output}")
        parts.append(f"## llmrouter {name}\n\n```text\n{told.output.rstrip()}\n```\n")
    return "\n".join(parts)


def command_names(app: typer.Typer) -> list[str]:
    """All commands in the order of the help, groups as `keys create`."""
    names = [command.name or "" for command in app.registered_commands]
    for group in app.registered_groups:
        assert group.typer_instance is not None
        names += [f"{group.typer_instance.info.name} {name}" for name in command_names(group.typer_instance)]
    return names


def sections() -> list[tuple[str, type[BaseModel]]]:
    """Every section of the file with the class that checks it, in the order of the file."""
    return [
        ("server", classes.ServerConfig),
        ("admin", classes.AdminConfig),
        ("store", classes.StoreConfig),
        ("limits", classes.LimitsConfig),
        ("ledger", tenancy.LedgerConfig),
        ("log", classes.LogConfig),
        ("models.ID", classes.ModelConfig),
        ("models.ID.price", classes.PriceConfig),
        ("models.ID.price.usd", classes.ListPrice),
        ("models.ID.price.gpu", classes.GpuPrice),
        ("pools.ID", classes.PoolConfig),
        ("pools.ID.timeouts", classes.TimeoutConfig),
        ("pools.ID.breaker", classes.BreakerConfig),
        ('pools.ID.runner, kind = "llama_cpp"', classes.LlamaCppRunner),
        ('pools.ID.runner, kind = "vllm"', classes.VllmRunner),
        ("tiers.ID", classes.TierConfig),
        ("tiers.ID.cascade", classes.CascadeConfig),
        ("routing", classes.RoutingConfig),
        ("routing.drift", classes.DriftConfig),
        ("[routing.rules]", classes.RuleConfig),
        ("tenants.ID", tenancy.TenantConfig),
        ("tenants.ID.limits", tenancy.LimitSet),
        ("tenants.ID.samples", tenancy.SampleConsent),
        ("samples", tenancy.SamplesConfig),
        ("groups.ID", tenancy.GroupConfig),
        ("classes", tenancy.ClassesConfig),
        ("classes.NAME", tenancy.ClassConfig),
    ]


def configuration_reference() -> str:
    """A table of keys for every section."""
    meanings = _meanings()
    parts = []
    for title, section in sections():
        rows = [
            f"| `{name}` | {_kind(schema)} | {_default(section, name)} | {meanings[section.__name__, name]} |"
            for name, schema in _schemas(section)
        ]
        head, *rest = title.split(",")
        about = meanings[section.__name__, "__doc__"]
        parts.append(
            f"## [{head}]{','.join(['', *rest])}\n\n{about}\n\n"
            "| key | value | default | meaning |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"
        )
    return "\n".join(parts)


def _meanings() -> dict[tuple[str, str], str]:
    """By class and key, `__doc__` for the class itself: the text file's, else the docstring."""
    written = tomllib.loads(_MEANINGS.read_text(encoding="utf-8"))
    found = {}
    for node in (each for module in (classes, tenancy) for each in ast.parse(inspect.getsource(module)).body):
        if isinstance(node, ast.ClassDef):
            found[node.name, "__doc__"] = ast.get_docstring(node) or ""
            found.update({(node.name, key): text for key, text in _attribute_docstrings(node)})
    return found | {(section, key): text for section, keys in written.items() for key, text in keys.items()}


def _attribute_docstrings(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, after in zip(node.body, node.body[1:], strict=False):
        match field, after:
            case ast.AnnAssign(target=ast.Name(id=key)), ast.Expr(value=ast.Constant(value=str(text))):
                yield key, inspect.cleandoc(text).replace("\n", " ").replace("; None ", "; left out, it ")


def _schemas(section: type[BaseModel]) -> list[tuple[str, dict[str, Any]]]:
    return list(section.model_json_schema()["properties"].items())


def _kind(schema: dict[str, Any]) -> str:
    """What may stand there, in words."""
    if "$ref" in schema or "oneOf" in schema:
        return "table"
    if "anyOf" in schema:
        kinds = [_kind(each) for each in schema["anyOf"] if each.get("type") != "null"]
        # A decimal may be written as a number or as text; one word is enough.
        return "number" if "number" in [kind.split()[0] for kind in kinds] else " or ".join(kinds)
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    kind = str(schema.get("type", "any"))
    if kind == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    if kind == "object":
        return "table"
    named = {"string": "secret" if schema.get("format") == "password" else "text", "boolean": "true, false"}
    return named.get(kind, kind) + _range(schema)


def _range(schema: dict[str, Any]) -> str:
    low, above, high = (schema.get(name) for name in ("minimum", "exclusiveMinimum", "maximum"))
    words = [f"from {low}"] if low is not None else [f"above {above}"] if above is not None else []
    words += [f"up to {high:g}" if isinstance(high, float) else f"up to {high}"] if high is not None else []
    return f" {' '.join(words)}" if words else ""


def _default(section: type[BaseModel], name: str) -> str:
    field = section.model_fields[name]
    if section is tenancy.ClassConfig:
        return _default_by_class(name)
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None or isinstance(value, BaseModel):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple | list | frozenset):
        return f"`[{', '.join(f'{chr(34)}{item}{chr(34)}' for item in value)}]`"
    if isinstance(value, str):
        return f'`"{value}"`'
    return "`{}`" if isinstance(value, dict) else f"`{value}`"


def _default_by_class(name: str) -> str:
    """What each latency class has, in the order of their urgency; one word where they agree."""
    classes_of = tenancy.ClassesConfig()
    values = [getattr(classes_of.of(each), name) for each in tenancy.CLASSES]
    shown = ["" if value is None else f"`{str(value).lower()}`" for value in values]
    return shown[0] if len(set(shown)) == 1 else ", ".join(shown)
