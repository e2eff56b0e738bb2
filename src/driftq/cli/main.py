"""The `driftq` command: finds the module of a subcommand and runs it. It also prints its own completion script.

The subcommand `name` is the click command `command` in `driftq.cli.name`; those that belong together share a module and
have their own names there (`SHARED`). The summary that `--help` shows is kept here, next to the name, so that help
imports no subcommand and is quick. This module does not know what subcommands do.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import click

from driftq import __version__
from driftq.extras import MissingExtra
from driftq.settings.suggestions import closest

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


PACKAGE = "driftq.cli"
PROGRAM = "driftq"
COMPLETION_VARIABLE = "_DRIFTQ_COMPLETE"  # set by the completion script when it calls the program

SECTIONS: Mapping[str, Mapping[str, str]] = {
    "Messages": {
        "produce": "Send messages from arguments, files or standard input.",
        "consume": "Claim messages for a group, print and ack them.",
        "tail": "Follow a topic without claiming messages.",
        "claim": "Claim messages under a lease, to settle them by hand.",
        "ack": "Mark claimed messages as done.",
        "nack": "Report that claimed messages failed.",
        "reject": "Move claimed messages to the dead letters.",
        "release": "Give claimed messages back without counting an attempt.",
        "extend": "Extend the lease of claimed messages.",
        "explain": "Explain why a message is not delivered, and when it will be.",
        "route": "Show where a message would be routed, without sending it.",
    },
    "Resources": {
        "topics": "List, create, show, change and delete topics; peek at messages.",
        "groups": "Show the lag of groups; seek, pause, resume and delete them.",
        "dlq": "List, show, count and redrive dead letters.",
        "jobs": "Enqueue, list, show and cancel jobs.",
        "job-batches": "List, show and cancel job batches, and wait for their end.",
        "schedules": "Create, list, show, pause, resume, run and delete schedules.",
        "streams": "Create, append to, read and follow durable streams.",
        "pipeline": "Run pipelines on Spark.",
        "tenants": "Create, list, show and delete tenants, and set their quotas.",
        "tokens": "Create, list, narrow, rotate and revoke access tokens.",
    },
    "Workers": {
        "worker": "Run the workers and tasks of modules.",
        "runs": "List and show runs: messages and streams that share a run id.",
        "workers": "List the processes that run workers; drain and stop them.",
    },
    "Server": {
        "serve": "Run the server.",
        "demo": "Run a broker, a workload, Spark pipelines and an audit.",
        "status": "Show a summary of a server.",
        "top": "Show the state of a server and the groups with the most lag, and keep it current.",
        "health": "Check whether a server is alive and ready.",
        "doctor": "Check machine, data folder and broker, and show what helps.",
        "clock": "Show the broker's clock and its machine's; accept the machine's.",
        "bench": "Measure produce and consume rates of a server.",
        "version": "Show the versions of this program and of the server.",
        "config": "Show every setting and where it comes from.",
        "backup": "Copy a broker's data while it runs, and check the copy.",
        "audit": "Show who changed what, and who was refused.",
        "auth": "Make the first access token of a data folder.",
        "inspect": "Read a data folder: dump, verify, stats.",
        "restore": "Make a data folder from an archive, as of now or of an earlier point.",
        "archive": "List and verify an archive.",
        "repair": "Make a damaged data folder readable again, keeping what is cut.",
    },
    "Client": {
        "context": "Manage named servers: add, list, use, remove.",
        "completion": "Print a shell completion script.",
    },
}
SUMMARIES: Mapping[str, str] = {name: line for section in SECTIONS.values() for name, line in section.items()}

SHARED: Mapping[str, str] = {
    "consume": "consume",
    "claim": "consume",
    "tail": "consume",
    "ack": "settle",
    "nack": "settle",
    "reject": "settle",
    "release": "settle",
    "extend": "settle",
    "explain": "explain",
    "route": "explain",
    "status": "status",
    "health": "status",
    "clock": "status",
    "version": "status",
    "serve": "serve",
    "config": "serve",
    "job-batches": "job_batches",
    "restore": "archive",
    "archive": "archive",
    "completion": "main",
}


class LazyGroup(click.Group):
    """A group that imports a subcommand when it is called, not when it is listed."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """With --json, errors in the command line are printed as JSON, too. A missing extra is one."""
        arguments = sys.argv[1:] if args is None else list(args)
        try:
            return self._main(arguments, prog_name, complete_var, standalone_mode, **extra)
        except MissingExtra as error:
            from driftq.cli.exit_codes import Exit, fail

            fail(Exit.NOTHING_THERE, str(error), as_json="--json" in arguments)

    def _main(
        self, arguments: list[str], prog_name: str | None, complete_var: str | None, standalone_mode: bool, **extra: Any
    ) -> Any:
        if not standalone_mode or "--json" not in arguments:
            return super().main(arguments, prog_name, complete_var, standalone_mode, **extra)
        try:
            code = super().main(arguments, prog_name, complete_var, False, **extra)
        except click.ClickException as error:
            body = {"error": "USAGE", "message": error.format_message()}
            click.echo(json.dumps(body, ensure_ascii=False), err=True)
            sys.exit(error.exit_code)
        except click.Abort:
            sys.exit(1)
        sys.exit(code if isinstance(code, int) else 0)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in SUMMARIES if importlib.util.find_spec(f"{PACKAGE}.{SHARED.get(name, name)}")]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(f"{PACKAGE}.{SHARED.get(cmd_name, cmd_name)}")
        command = getattr(module, cmd_name.replace("-", "_") if cmd_name in SHARED else "command")
        assert isinstance(command, click.Command), f"{module.__name__} has no click command for {cmd_name}"
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and name not in self.list_commands(ctx):
            self._unknown(ctx, name)
        return super().resolve_command(ctx, args)

    def _unknown(self, ctx: click.Context, name: str) -> NoReturn:
        near = closest(name, self.list_commands(ctx))
        hint = f" Did you mean {' or '.join(near)}?" if near else " See `driftq --help`."
        raise click.UsageError(f"There is no command {name!r}.{hint}", ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        available = set(self.list_commands(ctx))
        for title, section in SECTIONS.items():
            rows = [(name, line) for name, line in section.items() if name in available]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Completion imports no subcommand either, so that it is quick."""
        from click.shell_completion import CompletionItem

        if incomplete.startswith("-"):
            return click.Command.shell_complete(self, ctx, incomplete)
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        return [CompletionItem(name, help=SUMMARIES[name]) for name in names]


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="driftq")
@click.option("--url", metavar="URL", help="URL of the server (env: DRIFTQ_URL).")
@click.option("--context", metavar="NAME", help="Named server, see `driftq context` (env: DRIFTQ_CONTEXT).")
@click.option("--ca", metavar="FILE", help="Authorities to trust for https, in PEM (env: DRIFTQ_CA).")
@click.option("--token-file", metavar="FILE", help="File with the token (env: DRIFTQ_TOKEN_FILE).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def main(url: str | None, context: str | None, ca: str | None, token_file: str | None, as_json: bool) -> None:
    """Queues, jobs and durable streams on one journal.

    Start with `driftq serve`, then `driftq topics create orders` and `driftq produce orders hello`.
    """


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script that completes commands, options and names of topics, groups, streams and contexts.

    \b
    Examples:
      driftq completion bash > ~/.local/share/bash-completion/completions/driftq
      driftq completion zsh > "${fpath[1]}/_driftq"
      driftq completion fish > ~/.config/fish/completions/driftq.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(main, {}, PROGRAM, COMPLETION_VARIABLE)
    click.echo(script.source_template % script.source_vars())


if __name__ == "__main__":
    main()
