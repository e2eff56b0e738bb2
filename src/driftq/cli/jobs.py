"""`driftq jobs`: enqueue, show and cancel jobs, and wait for their results."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from driftq.cli import messages, output
from driftq.cli.command import Invocation, broker_command, topic_argument
from driftq.cli.exit_codes import Exit, fail
from driftq.cli.param_types import DURATION

tenant_option = click.option("--tenant", default="", help="Tenant of the job.")


@click.group()
def command() -> None:
    """Enqueue, show and cancel jobs, and wait for their results."""


@command.command()
@topic_argument
@click.argument("value")
@messages.message_options
@broker_command
def enqueue(invocation: Invocation, topic: str, value: str, **options: Any) -> None:
    """Enqueue a job: a message with a --task, an --id, or both. Repeating an id has no effect.

    Example: driftq jobs enqueue emails '{"to": "ann"}' --task email.send.v1 --id mail-7 --delay 10m
    """
    from driftq.client.calls.queue import item

    if not (options["task"] or options["id"]):
        raise click.UsageError("a job needs a --task, an --id, or both")
    job = invocation.broker.jobs.enqueue(topic, item(value, **messages.send_arguments(options)))
    if invocation.as_json:
        output.document(job)
        return
    duplicate = " (duplicate: nothing changed)" if job.duplicate else ""
    click.echo(f"{job.id}  {job.topic} {job.partition}:{job.offset}{duplicate}")


@command.command()
@topic_argument
@click.argument("id")
@tenant_option
@broker_command
def show(invocation: Invocation, topic: str, id: str, tenant: str) -> None:
    """Show the state of a job in each group, with every attempt.

    Example: driftq jobs show emails mail-7
    """
    job = invocation.broker.jobs.find(topic, id, tenant=tenant)
    if invocation.as_json:
        output.document(job)
        return
    output.fields(
        [
            ("job", job["id"]),
            ("state", job["state"]),
            ("task", job["task"]),
            ("message", f"{job['topic']} {job['partition']}:{job['offset']}"),
            ("priority", job["priority"] or None),
            ("not before", job["not_before"]),
        ]
    )
    if not job["groups"]:
        click.echo("No group reads this topic yet.")
    for group in job["groups"]:
        _show_group(group)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _show_group(group: dict[str, Any]) -> None:
    click.echo()
    state = [f"group {group['group']}: {group['state']}"]
    state += [f"due {group['due_at']}"] if "due_at" in group else []
    state += [f"held by {group['owner']} until {group['lease_until']}"] if "owner" in group else []
    click.echo(output.printable(", ".join(state)))
    if "progress" in group:
        click.echo(f"progress: {output.printable(_json(group['progress']))}  ({group['progress_at']})")
    if "result" in group:
        click.echo(f"result: {output.printable(group['result'])}")
    rows = (
        (
            attempt["attempt"],
            attempt["began_at"],
            attempt["ended_at"],
            attempt["end"],
            attempt["owner"],
            output.shortened(attempt["error"]),
        )
        for attempt in group["attempts"]
    )
    output.table(("ATTEMPT", "BEGAN", "ENDED", "END", "OWNER", "ERROR"), rows)


@command.command()
@topic_argument
@click.argument("id")
@click.option("--wait", type=DURATION, default=0, help="Wait this long for the end of the job.")
@click.option("--group", default="", help="The group whose result counts; by default every group that claims the job.")
@tenant_option
@broker_command
def result(invocation: Invocation, topic: str, id: str, wait: int, group: str, tenant: str) -> None:
    """Print what the worker of a job returned, as JSON. Fails if the job failed, or has not ended.

    Example: driftq jobs result photos photo-7 --wait 10s
    """
    from driftq.client.errors import JobFailed, ResultTimeout

    handle = invocation.broker.jobs.handle(topic, id, group=group, tenant=tenant)
    try:
        value = handle.result(timeout=wait / 1_000)
    except JobFailed as failed:
        if failed.traceback and not invocation.as_json:
            click.echo(output.printable(failed.traceback), err=True)
        fail(Exit.REFUSED, f"job {id} failed: {failed.error or 'it became a dead letter'}")
    except ResultTimeout as late:
        fail(Exit.IN_USE, str(late))
    output.document(value)


@command.command()
@topic_argument
@click.argument("id")
@tenant_option
@broker_command
def cancel(invocation: Invocation, topic: str, id: str, tenant: str) -> None:
    """Cancel a job. A worker that runs it is notified at its next heartbeat.

    Example: driftq jobs cancel emails mail-7
    """
    changed = invocation.broker.jobs.cancel(topic, id, tenant=tenant)
    if invocation.as_json:
        output.document({"id": id, "cancelled": changed})
        return
    if not changed:
        fail(Exit.REFUSED, f"{id} has already ended; there is nothing to cancel")
    click.echo(f"{id}: cancelled")
