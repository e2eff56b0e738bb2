"""`driftq config`: what is set, and by whom."""

from __future__ import annotations

import click

from driftq.cli.command import as_json_option


@click.group()
def command() -> None:
    """Look at the settings."""


@command.command()
@click.option("--config", metavar="FILE", help="Settings in TOML (also from DRIFTQ_CONFIG).")
@click.option("--set", "assignments", metavar="KEY=VALUE", multiple=True, help="Change one setting.")
@as_json_option
def show(config: str | None, assignments: tuple[str, ...], as_json: bool) -> None:
    """Print every setting, its value and where it came from.

    Example: driftq config show --config driftq.toml --set queue.lease_ms=5000
    """
    from msgspec import json

    from driftq.server.settings import load_from_environment, rows
    from driftq.settings.loader import SettingsError

    try:
        found = rows(load_from_environment(config, assignments))
    except SettingsError as error:
        raise click.UsageError(str(error)) from None
    if as_json:
        settings = {name: {"value": json.decode(value), "origin": origin} for name, value, origin in found}
        click.echo(json.format(json.encode(settings), indent=2).decode())
        return
    width = max(len(name) for name, _, _ in found)
    for name, value, origin in found:
        click.echo(f"{name:<{width}}  {value:<12}  {origin}")
