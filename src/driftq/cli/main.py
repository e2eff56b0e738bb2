"""The `driftq` command: finds the module of a subcommand and hands over to it.

A subcommand `name` lives in `driftq.cli.name` and is a click command called `command` there. The line shown by `--help`
is kept here, next to the name, so that help imports no subcommand and answers at once. A subcommand whose module does
not exist is not offered. This module knows nothing about what the subcommands do.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping

import click

from driftq import __version__

PACKAGE = "driftq.cli"

SUMMARIES: Mapping[str, str] = {
    "serve": "Run the server.",
    "inspect": "Look into a data folder: dump, verify, stats.",
    "config": "Show every setting and where it came from.",
    "repair": "Make a damaged data folder readable again, keeping what is cut.",
}


class LateCommands(click.Group):
    """A group that imports a subcommand when it is called, not when it is listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in SUMMARIES if importlib.util.find_spec(f"{PACKAGE}.{name}") is not None]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        command = importlib.import_module(f"{PACKAGE}.{cmd_name}").command
        assert isinstance(command, click.Command), f"{PACKAGE}.{cmd_name}.command is not a click command"
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, SUMMARIES[name]) for name in self.list_commands(ctx)]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


@click.group(cls=LateCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="driftq")
def main() -> None:
    """Queues, jobs and durable streams on one journal."""


if __name__ == "__main__":
    main()
