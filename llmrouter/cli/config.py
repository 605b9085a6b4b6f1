"""`llmrouter config`: is the file right, and what does it come to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmrouter.cli.options import CONFIG_VARIABLE, ConfigPath, Json, Listen, Workers, example
from llmrouter.cli.output import print_json, print_table, say, warn
from llmrouter.errors import ConfigError, RouterError

if TYPE_CHECKING:
    from llmrouter.config import Config

__all__ = ["CHECK_EXAMPLE", "EXPLAIN_EXAMPLE", "check", "explain"]

CHECK_EXAMPLE = example("llmrouter config check --config llmrouter.toml")
EXPLAIN_EXAMPLE = example("llmrouter config explain tiers.auto", "llmrouter config explain server --workers 4 --json")


def check(config: ConfigPath = Path("llmrouter.toml"), as_json: Json = False) -> None:
    """Check a configuration file: keys, names, prices, contradictions, and its rules and the store's against it."""
    errors: list[str] = []
    warnings: list[str] = []
    notes: list[str] = []
    try:
        _find(config, errors, warnings, notes)
    except ConfigError as error:
        errors += error.message.splitlines()
    if as_json:
        print_json({"file": str(config), "ok": not errors, "errors": errors, "warnings": warnings, "notes": notes})
        raise typer.Exit(ConfigError.exit_code if errors else 0)
    for text in notes:
        say(text)
    for text in warnings:
        warn(text)
    if errors:
        raise ConfigError("\n".join(errors))
    typer.echo(f"{config}: ok")


def explain(
    context: typer.Context,
    key: Annotated[
        str, typer.Argument(metavar="KEY", help="Only this key and what is below it, e.g. pools.large.")
    ] = "",
    config: ConfigPath = Path("llmrouter.toml"),
    listen: Listen = None,
    workers: Workers = None,
    as_json: Json = False,
) -> None:
    """Show every effective value and where it comes from: flag, environment, file, default, or derived from others."""
    from llmrouter.cli.effective import effective_values, select
    from llmrouter.config import load

    flags = {name: value for name, value in (("listen", listen), ("workers", workers)) if value is not None}
    loaded = load(config)
    loaded = loaded.model_copy(update={"server": loaded.server.model_copy(update=flags)})
    values = select(effective_values(loaded, _raw(config), flags), key)
    origin = _origin(context)
    if as_json:
        entries = [{"key": each.key, "value": each.value, "source": each.source} for each in values]
        print_json({"file": str(config), "file_from": origin, "values": entries})
        return
    say(f"{config} ({origin})")
    print_table(("KEY", "VALUE", "FROM"), [(each.key, each.shown, each.source) for each in values])


def _find(path: Path, errors: list[str], warnings: list[str], notes: list[str]) -> None:
    """Collect everything that can be found without starting anything; raises what keeps from looking further."""
    from llmrouter.config import load
    from llmrouter.config_checks import contradictions, oddities
    from llmrouter.gateway.build import seed_rules

    config = load(path)
    errors += [f"{path}: {line}" for line in contradictions(config)]
    warnings += [f"{path}: {line}" for line in oddities(config)]
    _check_listen(config, str(path), errors)
    _check_prices(config, str(path), errors)
    _check_rules(config, seed_rules(config), f"{path}: routing.", errors, warnings)
    _check_store(config, errors, warnings)
    _check_learned(config, str(path), errors, warnings, notes)


def _check_listen(config: Config, at: str, errors: list[str]) -> None:
    from llmrouter.gateway.supervisor import check_exposure

    try:
        check_exposure(config)
    except ConfigError as error:
        errors.append(f"{at}: {error.message}")


def _check_prices(config: Config, at: str, errors: list[str]) -> None:
    from datetime import UTC, datetime

    from llmrouter.pricing.table import resolve_ladder

    for model_id, model in config.models.items():
        try:
            resolve_ladder(model_id, model, datetime.now(UTC))
        except ConfigError as error:
            errors.append(f"{at}: {error.message}")


def _check_rules(config: Config, rules: Any, at: str, errors: list[str], warnings: list[str]) -> None:
    from datetime import UTC, datetime

    from llmrouter.routing.problems import InvalidRules
    from llmrouter.routing.rules import compile_rules
    from llmrouter.types import RoutingVersion

    try:
        compiled = compile_rules(RoutingVersion(1, tuple(rules), datetime.now(UTC), author=""), config)
    except InvalidRules as error:
        errors += [f"{at}{problem}" for problem in error.problems]
    else:
        warnings += [f"{at}{text}" for text in compiled.warnings]


def _check_store(config: Config, errors: list[str], warnings: list[str]) -> None:
    """The rules in force must fit this configuration, or the gateway would not start with it."""
    from llmrouter.routing.versions import RoutingStore
    from llmrouter.shared_store import shared_store, store_exists

    store = shared_store(config.store)
    try:
        if not store_exists(store):
            return
        current = RoutingStore(store).current()
    except RouterError as error:
        warnings.append(f"{store}: {error.message}")
        return
    _check_rules(config, current.rules, f"{store}: routing version {current.version}: ", errors, warnings)


def _check_learned(config: Config, at: str, errors: list[str], warnings: list[str], notes: list[str]) -> None:
    """What learned tiers go by must fit them, or the gateway would not start."""
    from llmrouter.errors import StoreUnavailable
    from llmrouter.gateway.learned_standing import learned_standing

    try:
        found = learned_standing(config)
    except StoreUnavailable:
        return  # Said already.
    except RouterError as error:
        errors.append(f"{at}: {error.message}")
    else:
        notes += [f"{at}: {line}" for line in found.notes]
        warnings += [f"{at}: {line}" for line in found.doubts]


def _raw(path: Path) -> dict[str, Any]:
    import tomllib

    return tomllib.loads(path.read_text(encoding="utf-8"))


def _origin(context: typer.Context) -> str:
    source = context.get_parameter_source("config")
    names = {"COMMANDLINE": "flag --config", "ENVIRONMENT": f"environment {CONFIG_VARIABLE}"}
    return names.get(source.name if source is not None else "", "default path")
