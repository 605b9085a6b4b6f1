"""Puts the commands together and turns our errors into lines on standard error and an exit code.

Exit codes: 0 done, 1 a check failed or something needed is down, 2 wrong use or wrong configuration.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from llmrouter.cli import (
    config,
    demo,
    doctor,
    eval_router,
    init,
    keys,
    labels,
    labels_build,
    limits,
    rules,
    rules_artefact,
    samples,
    serve,
    simulate_routing,
    store,
    train_router,
    usage,
)
from llmrouter.cli.output import complain
from llmrouter.errors import RouterError, UsageError

__all__ = ["build_app", "main"]

_DEBUG = "--debug"


def build_app() -> typer.Typer:
    """The whole command line."""
    app = _group(None, "Route each request to the cheapest model that is good enough, and prove what that saved.")
    app.callback()(_global_options)
    app.command("init", short_help="Write a commented configuration file.", epilog=init.EXAMPLE)(init.init)
    app.command("serve", short_help="Start the gateway.", epilog=serve.EXAMPLE)(serve.serve)
    app.command("demo", short_help="Try it with two real models.", epilog=demo.EXAMPLE)(demo.demo)
    app.command("doctor", short_help="Check machine, store and replicas.", epilog=doctor.EXAMPLE)(doctor.doctor)
    app.command("limits", short_help="Show limits and their use.", epilog=limits.EXAMPLE)(limits.limits)
    app.command("usage", short_help="Add up requests, tokens and dollars.", epilog=usage.EXAMPLE)(usage.usage)
    app.command("train-router", short_help="Train the router on labels.", epilog=train_router.EXAMPLE)(
        train_router.train_router
    )
    app.command("eval-router", short_help="Measure a trained router on labels.", epilog=eval_router.EXAMPLE)(
        eval_router.eval_router
    )
    app.command("simulate-routing", short_help="Say what a router would have saved.", epilog=simulate_routing.EXAMPLE)(
        simulate_routing.simulate_routing
    )
    app.add_typer(_keys())
    app.add_typer(_rules())
    app.add_typer(_samples())
    app.add_typer(_labels())
    app.add_typer(_store())
    app.add_typer(_config())
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and leave the process with its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        _refuse_undecodable(given)
        # Taken out here so that it may stand anywhere, also behind the command.
        build_app()(args=[argument for argument in given if argument != _DEBUG], prog_name="llmrouter")
    except RouterError as error:
        if _DEBUG in given:
            traceback.print_exc()
        complain(error.message)
        sys.exit(error.exit_code)


def _refuse_undecodable(arguments: Sequence[str]) -> None:
    """Bytes that are no text in the terminal's encoding reach Python as halves of characters, which no store takes."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise UsageError(f"the argument {ascii(argument)[:80]} is not valid UTF-8") from None


def _global_options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=lambda wanted: _show_version(wanted), is_eager=True, help="Show the version."
        ),
    ] = False,
    debug: Annotated[bool, typer.Option(_DEBUG, help="Show where an error comes from.")] = False,
) -> None:
    """Options of every command; `main` acts on `--debug`."""


def _show_version(wanted: bool) -> None:
    if wanted:
        from llmrouter import __version__

        typer.echo(f"llmrouter {__version__}")
        raise typer.Exit


def _group(name: str | None, summary: str) -> typer.Typer:
    # Plain help: markup would load rich on every start.
    return typer.Typer(
        name=name,
        help=summary,
        no_args_is_help=True,
        add_completion=name is None,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def _keys() -> typer.Typer:
    group = _group("keys", "Create, list and revoke API keys.")
    group.command("create", short_help="Make an API key and print it.", epilog=keys.CREATE_EXAMPLE)(keys.create)
    group.command("list", short_help="List all keys.", epilog=keys.LIST_EXAMPLE)(keys.list_keys)
    group.command("revoke", short_help="Refuse a key from now on.", epilog=keys.REVOKE_EXAMPLE)(keys.revoke)
    return group


def _rules() -> typer.Typer:
    group = _group("rules", "Show, publish, roll back and explain routing rules.")
    group.command("list", short_help="Show rules in force, or versions.", epilog=rules.LIST_EXAMPLE)(rules.list_rules)
    group.command("show", short_help="Show one version.", epilog=rules.SHOW_EXAMPLE)(rules.show)
    group.command("diff", short_help="Compare two versions.", epilog=rules.DIFF_EXAMPLE)(rules.diff)
    group.command("apply", short_help="Publish rules.", epilog=rules.APPLY_EXAMPLE)(rules.apply)
    group.command("rollback", short_help="Publish an earlier version again.", epilog=rules.ROLLBACK_EXAMPLE)(
        rules.rollback
    )
    group.command("publish-artefact", short_help="Publish what was learned.", epilog=rules_artefact.PUBLISH_EXAMPLE)(
        rules_artefact.publish_artefact
    )
    group.command("explain", short_help="Show where a request would go.", epilog=rules.EXPLAIN_EXAMPLE)(rules.explain)
    return group


def _samples() -> typer.Typer:
    group = _group("samples", "List, show, export and delete samples of requests.")
    group.command("list", short_help="List the newest.", epilog=samples.LIST_EXAMPLE)(samples.list_samples)
    group.command("show", short_help="Print one.", epilog=samples.SHOW_EXAMPLE)(samples.show)
    group.command("export", short_help="Write them to a file.", epilog=samples.EXPORT_EXAMPLE)(samples.export)
    group.command("delete", short_help="Delete them for good.", epilog=samples.DELETE_EXAMPLE)(samples.delete)
    return group


def _labels() -> typer.Typer:
    group = _group("labels", "Build, import, export, list and count quality labels.")
    group.command("build", short_help="Ask models and score.", epilog=labels_build.EXAMPLE)(labels_build.build)
    group.command("import", short_help="Take labels in.", epilog=labels.IMPORT_EXAMPLE)(labels.import_files)
    group.command("export", short_help="Write labels for training.", epilog=labels.EXPORT_EXAMPLE)(labels.export)
    group.command("list", short_help="List the newest.", epilog=labels.LIST_EXAMPLE)(labels.list_labels)
    group.command("stats", short_help="Count and average them.", epilog=labels.STATS_EXAMPLE)(labels.stats)
    return group


def _store() -> typer.Typer:
    group = _group("store", "Show, migrate, archive and prune the stores.")
    group.command("status", short_help="Show what they hold.", epilog=store.STATUS_EXAMPLE)(store.status)
    group.command("migrate", short_help="Bring them up to date.", epilog=store.MIGRATE_EXAMPLE)(store.migrate)
    group.command("archive", short_help="Move closed days to Parquet.", epilog=store.ARCHIVE_EXAMPLE)(store.archive)
    group.command("prune", short_help="Delete old entries.", epilog=store.PRUNE_EXAMPLE)(store.prune)
    return group


def _config() -> typer.Typer:
    group = _group("config", "Check a configuration file and show what it comes to.")
    group.command("check", short_help="Check a file.", epilog=config.CHECK_EXAMPLE)(config.check)
    group.command("explain", short_help="Show values and their origin.", epilog=config.EXPLAIN_EXAMPLE)(config.explain)
    return group
