"""`driftq job-batches`: list, show and cancel job batches, wait for their end, print their results."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from driftq.cli import output
from driftq.cli.command import Invocation, broker_command
from driftq.cli.exit_codes import Exit, fail
from driftq.cli.param_types import DURATION
from driftq.cli.watch import watchable

if TYPE_CHECKING:
    from driftq.wire.job_batches import JobBatchInfo

state_option = click.option("--state", default="", help="Only those in this state.")
limit_option = click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="How many.")


@click.group("job-batches")
def job_batches() -> None:
    """List, show and cancel job batches, and wait for their end."""


@job_batches.command("list")
@state_option
@limit_option
@broker_command
@watchable
def list_(invocation: Invocation, state: str, limit: int) -> None:
    """List job batches, the newest first.

    Example: driftq job-batches list --state running
    """
    batches = invocation.broker.job_batches.list(state, limit=limit)
    if invocation.as_json:
        output.document(batches)
        return
    rows = (
        (
            info.id, info.kind, info.state, _done(info), info.counts.failed, info.parent, info.created_at,
            info.ended_at or "",
        )
        for info in batches
    )  # fmt: skip
    header = ("ID", "KIND", "STATE", "ENDED", "FAILED", "PARENT", "CREATED", "ENDED AT")
    output.table(header, rows, "No such job batches. `driftq.group` and `driftq.chain` make some.")


@job_batches.command()
@click.argument("id")
@state_option
@limit_option
@broker_command
def show(invocation: Invocation, id: str, state: str, limit: int) -> None:
    """Show a job batch, with the states and errors of its jobs.

    Example: driftq job-batches show nightly-7 --state failed
    """
    batch = invocation.broker.job_batches.describe(id)
    jobs = invocation.broker.job_batches.results(id, state, limit=limit)
    if invocation.as_json:
        output.document({"job_batch": batch, "jobs": jobs})
        return
    _show(batch)
    click.echo()
    rows = (
        (
            job.index, job.batch or job.id, job.state,
            f"{job.topic} {job.partition}:{job.offset}" if job.topic else "", output.shortened(job.error),
        )
        for job in jobs
    )  # fmt: skip
    output.table(("INDEX", "JOB OR BATCH", "STATE", "MESSAGE", "ERROR"), rows, "No such jobs.")


@job_batches.command()
@click.argument("id")
@click.option("--for", "wait_ms", type=DURATION, default=60_000, help="Wait this long at most (default: 1m).")
@broker_command
def wait(invocation: Invocation, id: str, wait_ms: int) -> None:
    """Wait for the end of a job batch.

    Fails if it has not ended in time, or if not all of its jobs succeeded.

    Example: driftq job-batches wait nightly-7 --for 10m
    """
    from driftq.client.errors import ResultTimeout

    try:
        batch = invocation.broker.job_batches.handle(id).wait(wait_ms / 1_000)
    except ResultTimeout as error:
        hint = f"Wait longer with --for, or see `driftq job-batches show {id}`."
        fail(Exit.IN_USE, str(error), hint, as_json=invocation.as_json)
    if invocation.as_json:
        output.document(batch)
    elif batch.state == "succeeded":
        click.echo(f"{batch.id}: {batch.state}")
    if batch.state != "succeeded":
        hint = f"`driftq job-batches show {id} --state failed` lists the jobs that failed."
        fail(Exit.REFUSED, f"job batch {id} has ended as {batch.state}", hint)


@job_batches.command()
@click.argument("id")
@broker_command
def results(invocation: Invocation, id: str) -> None:
    """Print what the workers of its jobs returned, one line each.

    Example: driftq job-batches results nightly-7
    """
    for job in invocation.broker.job_batches.results(id):
        output.line(job) if invocation.as_json else click.echo(_result(job.result))


@job_batches.command()
@click.argument("id")
@broker_command
def cancel(invocation: Invocation, id: str) -> None:
    """Cancel all jobs of a job batch that have not ended.

    Example: driftq job-batches cancel nightly-7
    """
    cancelled = invocation.broker.job_batches.cancel(id)
    if invocation.as_json:
        output.document({"id": id, "cancelled": cancelled})
        return
    if not cancelled:
        fail(Exit.REFUSED, f"{id} has already ended; there is nothing to cancel")
    click.echo(f"{id}: cancelled")


def _done(info: JobBatchInfo) -> str:
    counts = info.counts
    return f"{info.count - counts.running - counts.waiting}/{info.count}"


def _show(batch: JobBatchInfo) -> None:
    counts = msgspec.structs.asdict(batch.counts)
    output.fields(
        [
            ("job batch", batch.id),
            ("kind", batch.kind),
            ("state", batch.state),
            ("part of", batch.parent),
            ("jobs", ", ".join(f"{count} {state}" for state, count in counts.items() if count) or "none"),
            ("group", batch.group),
            ("created", batch.created_at),
            ("cancelled", batch.cancelled_at),
            ("ended", batch.ended_at),
            ("kept until", batch.expires_at),
        ]
    )
    for message in batch.messages:
        place = f"{message.topic} {message.partition}:{message.offset}" if message.topic else message.error
        click.echo(output.printable(f"{message.role}: {place}"))


def _result(result: object) -> str:
    return "" if result is msgspec.UNSET else msgspec.json.encode(result).decode()
