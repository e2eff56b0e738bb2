"""`driftq jobs`: enqueue, list, show, retry and cancel jobs, and wait for their results."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import click
import msgspec

from driftq.cli import messages, output
from driftq.cli.command import Invocation, broker_command, topic_argument
from driftq.cli.exit_codes import Exit, fail
from driftq.cli.param_types import AGO, DURATION
from driftq.cli.watch import watchable

SLICE_JOBS = 1_000

tenant_option = click.option("--tenant", default="", help="Tenant of the job.")


@click.group()
def command() -> None:
    """Enqueue, list, show, retry and cancel jobs, and wait for their results."""


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


@command.command("list")
@click.argument("topic", default="")
@click.option("--state", default="", help="Only jobs in these states, separated by commas: running, retrying, dead, …")
@click.option("--task", default="", help="Only jobs of this task.")
@tenant_option
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="How many.")
@broker_command
@watchable
def list_(invocation: Invocation, topic: str, state: str, task: str, tenant: str, limit: int) -> None:
    """List jobs of a topic, or of all topics.

    The newest of each partition come first.

    Example: driftq jobs list emails --state dead,retrying
    """
    jobs = invocation.broker.jobs.list(topic, state=state, task=task, tenant=tenant, limit=limit)
    if invocation.as_json:
        output.document(jobs)
        return
    rows = (
        (
            job.id, job.topic, job.task, job.state, job.attempts, job.created_at, job.tenant, job.owner,
            output.shortened(job.error),
        )
        for job in jobs
    )  # fmt: skip
    header = ("ID", "TOPIC", "TASK", "STATE", "ATTEMPTS", "CREATED", "TENANT", "OWNER", "ERROR")
    output.table(header, rows, "No such jobs. Enqueue one: driftq jobs enqueue TOPIC VALUE --task TASK")


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


def _chosen(function: Callable[..., None]) -> Callable[..., None]:
    """Jobs by their ids, or by a filter."""
    for option in reversed(_FILTER):
        function = option(function)
    return click.argument("ids", metavar="[ID]...", nargs=-1)(function)


_FILTER = (
    click.option("--state", default="", help="Only jobs in these states, separated by commas."),
    click.option("--task", default="", help="Only jobs of this task."),
    tenant_option,
    click.option("--since", type=AGO, help="Only jobs since this time (RFC 3339, or 1h for an hour ago)."),
    click.option("--until", type=AGO, help="Only jobs before this time."),
    click.option("--all", "everything", is_flag=True, help="All jobs of the topic."),
    click.option("--dry-run", is_flag=True, help="Only count the jobs."),
)


def _check_chosen(ids: tuple[str, ...], everything: bool, filters: dict[str, Any]) -> None:
    named = any(filters[name] for name in ("state", "task", "since", "until")) or everything
    if not ids and not named:
        raise click.UsageError("name jobs by their ids, or choose them with --state, --task, --since or --all")
    if ids and named:
        raise click.UsageError("jobs are named by their ids, or chosen by a filter, not both")


@command.command()
@topic_argument
@_chosen
@broker_command
def cancel(
    invocation: Invocation, topic: str, ids: tuple[str, ...], everything: bool, dry_run: bool, **filters: Any
) -> None:
    """Cancel jobs by their ids, or by a filter. A worker that runs one is notified at its next heartbeat.

    \b
    Examples:
      driftq jobs cancel emails mail-7
      driftq jobs cancel emails --task email.send.v1 --state ready,scheduled --dry-run
    """
    _check_chosen(ids, everything, filters)
    if len(ids) == 1 and not dry_run:
        changed = invocation.broker.jobs.cancel(topic, ids[0], tenant=filters["tenant"])
        if invocation.as_json:
            output.document({"id": ids[0], "cancelled": changed})
            return
        if not changed:
            fail(Exit.REFUSED, f"{ids[0]} has already ended; there is nothing to cancel")
        click.echo(f"{ids[0]}: cancelled")
        return
    call = functools.partial(invocation.broker.jobs.cancel_many, topic, dry_run=dry_run, **filters)
    matched, cancelled = 0, 0
    for reply in _in_slices(call, ids):
        matched, cancelled = matched + reply.matched, cancelled + reply.cancelled
    _report(invocation, dry_run, {"matched": matched, "cancelled": cancelled}, f"{cancelled} of {matched} cancelled")


@command.command(short_help="Retry jobs now, without waiting.")
@topic_argument
@_chosen
@broker_command
def retry(
    invocation: Invocation, topic: str, ids: tuple[str, ...], everything: bool, dry_run: bool, **filters: Any
) -> None:
    """Retry jobs now: those that wait in backoff or for their delay are due at once, dead ones are sent back.

    \b
    Examples:
      driftq jobs retry emails mail-7
      driftq jobs retry emails --state retrying,dead --task email.send.v1
    """
    _check_chosen(ids, everything, filters)
    if len(ids) == 1 and not dry_run:
        job = invocation.broker.jobs.retry(topic, ids[0], tenant=filters["tenant"])
        if invocation.as_json:
            output.document(job)
            return
        if not job.retried:
            fail(Exit.REFUSED, f"{job.id} is {job.state}; there is nothing to retry")
        click.echo(f"{job.id}: " + ("sent back from the dead letters" if job.redriven else "due now"))
        return
    call = functools.partial(invocation.broker.jobs.retry_many, topic, dry_run=dry_run, **filters)
    matched, retried, redriven = 0, 0, 0
    for reply in _in_slices(call, ids):
        matched, retried, redriven = matched + reply.matched, retried + reply.retried, redriven + reply.redriven
    counts = {"matched": matched, "retried": retried, "redriven": redriven}
    _report(invocation, dry_run, counts, f"{retried} due now, {redriven} sent back, of {matched}")


def _in_slices(call: Callable[..., Any], ids: tuple[str, ...]) -> Iterator[Any]:
    """The replies of calls for a thousand jobs each."""
    for first in range(0, len(ids), SLICE_JOBS):
        yield call(ids=ids[first : first + SLICE_JOBS])
    after: str | None = None if ids else ""
    while after is not None:
        reply = call(after=after)
        yield reply
        after = reply.after


def _report(invocation: Invocation, dry_run: bool, counts: dict[str, int], text: str) -> None:
    if invocation.as_json:
        output.document({"dry_run": dry_run, **counts})
    elif dry_run:
        click.echo(f"{counts['matched']} jobs fit; nothing was changed")
    else:
        click.echo(text)
