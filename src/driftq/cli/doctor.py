"""`driftq doctor`: check the machine, the data folder and the broker, and say what helps."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from driftq.cli import output
from driftq.cli.command import Invocation, broker_command
from driftq.cli.exit_codes import Exit
from driftq.cli.serve import DEFAULT_DATA
from driftq.extras import MissingExtra, require

if TYPE_CHECKING:
    from driftq.cli.diagnosis import CheckResult
    from driftq.server.settings import Settings

INDENT = 10


@click.command()
@click.option("--data", metavar="DIR", default=DEFAULT_DATA, show_default=True, help="Data folder of the broker.")
@click.option("--config", metavar="FILE", help="Settings of the broker in TOML (env: DRIFTQ_CONFIG).")
@click.option("--set", "assignments", metavar="KEY=VALUE", multiple=True, help="Set one setting.")
@broker_command
def command(invocation: Invocation, data: str, config: str | None, assignments: tuple[str, ...]) -> None:
    """Check disk, fsync, limits, clock, permissions, versions, the broker and TLS. Exits with 1 if there is a problem.

    Each result has its remedy. Nothing is changed. Warnings do not change the exit code.

    Example: driftq doctor --data /var/lib/driftq --url https://queue.example.org
    """
    results = []
    for result in _checks(invocation, data, config, assignments):
        results.append(result)
        if not invocation.as_json:
            _print(result)
    problems = sum(result.level == "problem" for result in results)
    warnings = sum(result.level == "warning" for result in results)
    if invocation.as_json:
        output.document({"ok": not problems, "checks": [result._asdict() for result in results]})
    else:
        click.echo(f"{len(results)} checks: {_counted(problems, 'problem')}, {_counted(warnings, 'warning')}")
    sys.exit(Exit.REFUSED if problems else Exit.OK)


def _checks(
    invocation: Invocation, data: str, config: str | None, assignments: tuple[str, ...]
) -> Iterator[CheckResult]:
    from driftq.cli.broker_diagnosis import broker_checks, settings_checks
    from driftq.cli.diagnosis import folder_checks, machine_checks

    settings = _settings(config, assignments)
    yield from machine_checks(settings)
    if settings is not None:
        yield from folder_checks(data)
        yield from settings_checks(settings)
    yield from broker_checks(invocation.address)


def _settings(config: str | None, assignments: tuple[str, ...]) -> Settings | None:
    """The settings of a broker on this machine; None if only the client is installed."""
    try:
        require("a broker", "server")
    except MissingExtra:
        return None
    from driftq.server.settings import load_from_environment
    from driftq.settings.loader import SettingsError

    try:
        return load_from_environment(config, assignments).settings
    except SettingsError as error:
        raise click.UsageError(str(error)) from None


def _print(result: CheckResult) -> None:
    click.echo(f"{result.level:<{INDENT}}{result.check}: {result.message}")
    if result.remedy:
        click.echo(f"{'':<{INDENT}}-> {result.remedy}")
    sys.stdout.flush()


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
