"""`driftq worker`: run the workers and tasks of modules, in one or more processes."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from driftq.cli import context_file, output
from driftq.cli.command import as_json_option, context_names, exit_cleanly
from driftq.cli.exit_codes import Exit, fail
from driftq.cli.param_types import DURATION
from driftq.extras import require

if TYPE_CHECKING:
    from driftq.cli.context_file import ServerAddress
    from driftq.client.worker.supervisor import LoadFailure

PROCESSES_MAX = 256


def _names(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """Names by comma, or with the option repeated."""
    return tuple(name for value in values for name in value.split(",") if name)


@click.command()
@click.argument("targets", metavar="MODULE[:NAME]...", nargs=-1, required=True)
@click.option(
    "--processes", "-p", type=click.IntRange(1, PROCESSES_MAX), default=1, show_default=True, help="Processes to run."
)
@click.option(
    "--concurrency", "-c", type=click.IntRange(1, 10_000),
    help="Calls of each worker that run at a time, in each process (default: the worker's own).",
)  # fmt: skip
@click.option(
    "--queues", "-q", metavar="TOPICS", multiple=True, callback=_names, help="Only workers of these topics, by comma."
)
@click.option("--drain", "drain_ms", type=DURATION, help="Time for running calls after a signal (default: 30s).")
@click.option("--burst", is_flag=True, help="End when nothing is left to claim. Delayed messages are not waited for.")
@click.option("--reload", "reload_", is_flag=True, help="Load the modules again when one of their files changes.")
@click.option("--trace", is_flag=True, help="Make spans, and export them by OTLP (OTEL_EXPORTER_OTLP_ENDPOINT).")
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True,
    help="Lowest level that is logged.",
)  # fmt: skip
@click.option("--url", metavar="URL", help="URL of the server (default: DRIFTQ_URL, the context, this machine).")
@click.option("--context", "context_name", metavar="NAME", shell_complete=context_names, help="Named server.")
@click.option("--ca", metavar="FILE", help="Whom to trust for https: authorities in PEM.")
@click.option("--token-file", metavar="FILE", help="File with the token (default: DRIFTQ_TOKEN, the context).")
@as_json_option
def command(
    targets: tuple[str, ...],
    processes: int,
    concurrency: int | None,
    queues: tuple[str, ...],
    drain_ms: int | None,
    burst: bool,
    reload_: bool,
    trace: bool,
    log_level: str,
    url: str | None,
    context_name: str | None,
    ca: str | None,
    token_file: str | None,
    as_json: bool,
) -> None:
    """Run all workers and tasks of modules, or the named ones, until SIGTERM or Ctrl-C.

    A signal ends the claims and waits for the calls that run; a second one ends them at once, and their messages go to
    other workers. Processes that die are started again, after a growing pause. With --json, log lines are JSON.

    \b
    Examples:
      driftq worker app
      driftq worker shop.orders shop.emails:send --processes 4 --concurrency 16
      driftq worker app --reload
      driftq worker app --queues emails,reports --burst
    """
    _check(burst=burst, reload=reload_, trace=trace, as_json=as_json)
    import asyncio

    import msgspec

    from driftq.cli.worker_process import MODULE, LogFormat, WorkerOrder
    from driftq.client.worker.options import WorkerOptions
    from driftq.client.worker.supervisor import Supervisor, SupervisorOptions
    from driftq.settings.log_lines import capture_all, configure

    with exit_cleanly(as_json):
        address = _address(url, context_name, ca, token_file)
        log = LogFormat(log_level, "json" if as_json else "text")
        order = WorkerOrder(targets, queues, concurrency, drain_ms, burst, reload_, log, trace)
        configure(log)
        capture_all()
        broker = {"DRIFTQ_URL": address.url, **address.credential.environment(), **address.tls_files.environment()}
        env = {**os.environ, **broker}
        drain_default_ms = WorkerOptions().drain_ms
        supervisor = Supervisor(
            [sys.executable, "-m", MODULE, msgspec.json.encode(order).decode()],
            env,
            SupervisorOptions(processes, drain_default_ms if drain_ms is None else drain_ms, reload_, burst),
            lambda loaded: _banner(loaded["workers"], address.url, processes, as_json),
            lambda failure: _wait_for_a_change(failure, as_json),
        )
        code = asyncio.run(supervisor.run())
        if supervisor.failure is not None:
            _fail(supervisor.failure, as_json)
        sys.exit(code)


def _address(url: str | None, context: str | None, ca: str | None, token_file: str | None) -> ServerAddress:
    """The server, named after or before the name of the command."""
    root = click.get_current_context().find_root().params
    if not (url or context):
        url, context = root.get("url"), root.get("context")
    return context_file.resolve(url, context, ca or root.get("ca"), token_file or root.get("token_file"))


def _check(*, burst: bool, reload: bool, trace: bool, as_json: bool) -> None:
    """What is refused before anything starts."""
    if burst and reload:
        raise click.UsageError("--burst ends by itself, and --reload never does: use one of them")
    if sys.platform == "win32":
        fail(Exit.USAGE, "driftq worker does not run on Windows: it needs signals and sockets of Linux or macOS. "
             "Call driftq.run(…) in a program of your own, or use a container.", as_json=as_json)  # fmt: skip
    if trace:
        require("driftq worker --trace", "otel")


def _fail(failure: LoadFailure, as_json: bool) -> None:
    if failure.detail and not as_json:
        click.echo(failure.detail, err=True, nl=False)
    fail(Exit(failure.code), failure.message, details={"traceback": failure.detail} if failure.detail else None,
         as_json=as_json)  # fmt: skip


def _wait_for_a_change(failure: LoadFailure, as_json: bool) -> None:
    import logging

    fields = {"traceback": failure.detail} if as_json else {}
    if not as_json:
        click.echo(failure.detail, err=True, nl=False)
    logger = logging.getLogger("driftq.supervisor")
    logger.error("%s; waiting for a change", failure.message, extra={"fields": fields})


def _banner(workers: list[dict[str, Any]], url: str, processes: int, as_json: bool) -> None:
    """What runs where, on stderr."""
    import logging

    from driftq import __version__

    where = f"driftq {__version__} · {url} · {processes} process{'es' if processes > 1 else ''}"
    if as_json:
        fields = {"version": __version__, "url": url, "processes": processes, "workers": workers}
        logging.getLogger("driftq.supervisor").info("%s", where, extra={"fields": fields})
        return
    output.note(where)
    names = [worker["name"] for worker in workers]
    width = max(map(len, names))
    for worker in workers:
        filters = "".join(f", {name} {worker[name]}" for name in ("task", "label") if worker[name])
        calls = f"{worker['concurrency']} at a time, {worker['kind']}"
        output.note(f"  {worker['name']:<{width}}  topic {worker['topic']}, group {worker['group']}{filters} · {calls}")
