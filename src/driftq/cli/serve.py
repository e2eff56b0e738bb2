"""`driftq serve` and `driftq config`: run a broker, and show the settings that it would run with."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

import click

from driftq.cli.command import as_json_option
from driftq.extras import require

DEFAULT_DATA = "./data"  # of every command that takes a data folder


@click.command()
@click.option("--listen", "address", metavar="HOST:PORT", help="Address to listen on (default: 127.0.0.1:8080).")
@click.option("--data", metavar="DIR", default=DEFAULT_DATA, show_default=True, help="Data folder.")
@click.option(
    "--archive",
    metavar="URL",
    help="Copy everything to s3://bucket/prefix, gs://…, az://…, or a folder that exists (archive.url).",
)
@click.option("--memory", is_flag=True, help="Keep all data in memory; it is lost when the server stops.")
@click.option("--config", metavar="FILE", help="Settings in TOML (env: DRIFTQ_CONFIG).")
@click.option(
    "--set", "assignments", metavar="KEY=VALUE", multiple=True, help="Set one setting, e.g. queue.lease_ms=5000."
)
def serve(
    address: str | None,
    data: str,
    archive: str | None,
    memory: bool,
    config: str | None,
    assignments: tuple[str, ...],
) -> None:
    """Run a server until Ctrl-C or SIGTERM.

    The server replies to a write only after it is on disk. The API is under /v1; its documentation is at /v1/docs.

    Example: driftq serve --data ./data --listen 127.0.0.1:8080 --set queue.lease_ms=5000
    """
    require("the broker", "server")
    import uvloop

    from driftq.cli.exit_codes import exit_on_error
    from driftq.server.run import run
    from driftq.server.settings import load_from_environment
    from driftq.settings.loader import SettingsError
    from driftq.settings.log_lines import capture_all, configure

    if address is not None:
        host, colon, port = address.rpartition(":")
        if not colon or not port.isdigit():
            raise click.UsageError(f"--listen takes HOST:PORT, not {address!r}")
        assignments = (f"listen.host={host.strip('[]')}", f"listen.port={port}", *assignments)
    if archive is not None:
        assignments = (f"archive.url={archive}", *assignments)
    try:
        loaded = load_from_environment(config, assignments)
    except SettingsError as error:
        raise click.UsageError(str(error)) from None
    settings = loaded.settings
    configure(settings.log)
    capture_all()
    is_json = settings.log.format == "json"  # then all lines are JSON, the first and the last too
    echo = logging.getLogger("driftq").info if is_json else partial(click.echo, err=True)
    report = logging.getLogger("driftq").critical if is_json else None
    with exit_on_error(report), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(run(settings, None if memory else data, echo, loaded.origins))
        except SettingsError as error:
            raise click.UsageError(str(error)) from None


@click.group()
def config() -> None:
    """Show the settings of the server."""


@config.command()
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
