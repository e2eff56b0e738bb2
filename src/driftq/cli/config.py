"""`driftq config`: every setting of the server, and where it comes from."""

from __future__ import annotations

import click

from driftq.cli.command import as_json_option


@click.group()
def command() -> None:
    """Show the settings of the server."""


@command.command()
@click.option("--config", metavar="FILE", help="Settings in TOML (env: DRIFTQ_CONFIG).")
@click.option("--set", "assignments", metavar="KEY=VALUE", multiple=True, help="Set one setting.")
@as_json_option
def show(config: str | None, assignments: tuple[str, ...], as_json: bool) -> None:
    """Show every setting, its value and where it comes from.

    Example: driftq config show --config driftq.toml --set queue.lease_ms=5000
    """
    from msgspec import json

    from driftq.server.settings import load_from_environment, rows
    from driftq.settings.loader import SettingsError

    try:
        settings = rows(load_from_environment(config, assignments))
    except SettingsError as error:
        raise click.UsageError(str(error)) from None
    if as_json:
        tree = {name: {"value": json.decode(value), "origin": origin} for name, value, origin in settings}
        click.echo(json.format(json.encode(tree), indent=2).decode())
        return
    width = max(len(name) for name, _, _ in settings)
    for name, value, origin in settings:
        click.echo(f"{name:<{width}}  {value:<12}  {origin}")
