"""`driftq workers`: list the processes that run workers; drain and stop them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from driftq.cli import output
from driftq.cli.command import Invocation, broker_command
from driftq.cli.exit_codes import Exit, fail
from driftq.cli.watch import watchable

if TYPE_CHECKING:
    from driftq.wire.workers import WorkerInfo

ids_argument = click.argument("ids", metavar="ID...", nargs=-1)
all_option = click.option("--all", "everything", is_flag=True, help="All workers that run now.")


@click.group()
def command() -> None:
    """List the processes that run workers; drain and stop them."""


@command.command("list")
@broker_command
@watchable
def list_(invocation: Invocation) -> None:
    """List the processes that run workers.

    They announce themselves with heartbeats. An entry ends a few seconds after its process. Its ID is the owner of the
    leases that the process holds.

    Example: driftq workers list
    """
    workers = invocation.broker.workers.list()
    if invocation.as_json:
        output.document(workers)
        return
    rows = (
        (
            info.id, info.host, str(info.pid), info.version, f"{info.busy}/{info.concurrency}", info.since,
            info.command if info.command and info.state == "running" else info.state, _runs(info),
        )
        for info in workers
    )  # fmt: skip
    header = ("ID", "HOST", "PID", "VERSION", "BUSY", "SINCE", "STATE", "RUNS")
    output.table(header, rows, "No workers. Run some: driftq worker MODULE")


@command.command()
@click.argument("id")
@broker_command
def show(invocation: Invocation, id: str) -> None:
    """Show one process: its worker functions, and how busy each is.

    Example: driftq workers show build-7:4242:a1b2c3
    """
    info = invocation.broker.workers.describe(id)
    if invocation.as_json:
        output.document(info)
        return
    output.fields(
        [
            ("id", info.id),
            ("host", info.host),
            ("pid", str(info.pid)),
            ("version", info.version),
            ("since", info.since),
            ("last seen", info.seen),
            ("state", info.state),
            ("asked to", info.command),
        ]
    )
    click.echo()
    header = ("FUNCTION", "TOPIC", "GROUP", "TASK", "LABEL", "BUSY", "HELD", "ACKED", "FAILED")
    rows = (
        (
            worker.name, worker.topic, worker.group, worker.task, worker.label, f"{worker.busy}/{worker.concurrency}",
            worker.held, worker.acked, worker.failed,
        )
        for worker in info.workers
    )  # fmt: skip
    output.table(header, rows)


@command.command()
@ids_argument
@all_option
@broker_command
def drain(invocation: Invocation, ids: tuple[str, ...], everything: bool) -> None:
    """Ask processes to finish what runs, and to end.

    They claim nothing more. They are notified with their next heartbeat, which is about a second away.

    Example: driftq workers drain build-7:4242:a1b2c3
    """
    _ask(invocation, ids, everything, "drain")


@command.command()
@ids_argument
@all_option
@broker_command
def stop(invocation: Invocation, ids: tuple[str, ...], everything: bool) -> None:
    """Ask processes to give back what they hold, and to end at once.

    No attempt is counted. They are notified with their next heartbeat, which is about a second away.

    Example: driftq workers stop --all
    """
    _ask(invocation, ids, everything, "stop")


def _ask(invocation: Invocation, ids: tuple[str, ...], everything: bool, verb: str) -> None:
    from driftq.client.errors import NotFound

    if bool(ids) == everything:
        raise click.UsageError("name the workers, or use --all; `driftq workers list` has their ids")
    workers = invocation.broker.workers
    if everything:
        ids = tuple(info.id for info in workers.list())
    asked, missing = [], []
    for id in ids:
        try:
            asked.append(workers.drain(id) if verb == "drain" else workers.stop(id))
        except NotFound:
            missing.append(id)
    if invocation.as_json:
        output.document(asked)
    else:
        for info in asked:
            click.echo(f"{info.id}: asked to {info.command}")
    if missing and not everything:
        hint = "`driftq workers list` lists those that run."
        fail(Exit.NOTHING_THERE, f"no such worker: {', '.join(missing)}", hint, as_json=invocation.as_json)


def _runs(info: WorkerInfo) -> str:
    """The tasks of a process, and the topics of its other workers."""
    others = [f"{worker.topic}/{worker.group}" for worker in info.workers if not worker.task]
    return output.shortened(", ".join([*info.tasks, *others]), 60)
