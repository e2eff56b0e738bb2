"""`driftq jobs`: messages that are work, by their id."""

from __future__ import annotations

from typing import Any

import click

from driftq.cli import messages, output
from driftq.cli.command import Invocation, asks, topic_argument
from driftq.cli.exit_codes import Exit, fail

tenant_option = click.option("--tenant", default="", help="For whom the job is.")


@click.group()
def command() -> None:
    """Enqueue, show and cancel jobs."""


@command.command()
@topic_argument
@click.argument("value")
@messages.message_options
@asks
def enqueue(asked: Invocation, topic: str, value: str, **words: Any) -> None:
    """Enqueue a job: a message with a --task, an --id, or both. The same id again changes nothing.

    Example: driftq jobs enqueue emails '{"to": "ann"}' --task email.send.v1 --id mail-7 --delay 10m
    """
    from driftq.client.calls.queue import item

    if not (words["task"] or words["id"]):
        raise click.UsageError("a job has a --task, an --id, or both")
    made = asked.broker.jobs.enqueue(topic, item(value, **messages.said_of(words)))
    if asked.as_json:
        output.document(made)
        return
    again = " (known already: nothing changed)" if made.duplicate else ""
    click.echo(f"{made.id}  {made.topic} {made.partition}:{made.offset}{again}")


@command.command()
@topic_argument
@click.argument("id")
@tenant_option
@asks
def show(asked: Invocation, topic: str, id: str, tenant: str) -> None:
    """A job's state for each group, with every attempt.

    Example: driftq jobs show emails mail-7
    """
    found = asked.broker.jobs.find(topic, id, tenant=tenant)
    if asked.as_json:
        output.document(found)
        return
    output.fields(
        [
            ("job", found["id"]),
            ("state", found["state"]),
            ("task", found["task"]),
            ("place", f"{found['topic']} {found['partition']}:{found['offset']}"),
            ("priority", found["priority"] or None),
            ("not before", found["not_before"]),
        ]
    )
    if not found["groups"]:
        click.echo("No group reads this topic yet.")
    for group in found["groups"]:
        _show_group(group)


def _show_group(group: dict[str, Any]) -> None:
    click.echo()
    state = [f"group {group['group']}: {group['state']}"]
    state += [f"due {group['due_at']}"] if "due_at" in group else []
    state += [f"held by {group['owner']} until {group['lease_until']}"] if "owner" in group else []
    click.echo(output.printable(", ".join(state)))
    if "result" in group:
        click.echo(f"result: {output.printable(group['result'])}")
    rows = (
        (
            each["attempt"],
            each["began_at"],
            each["ended_at"],
            each["end"],
            each["owner"],
            output.shortened(each["error"]),
        )
        for each in group["attempts"]
    )
    output.table(("ATTEMPT", "BEGAN", "ENDED", "END", "OWNER", "ERROR"), rows)


@command.command()
@topic_argument
@click.argument("id")
@tenant_option
@asks
def cancel(asked: Invocation, topic: str, id: str, tenant: str) -> None:
    """Nobody gets the job any more; whoever runs it hears of it at the next heartbeat.

    Example: driftq jobs cancel emails mail-7
    """
    changed = asked.broker.jobs.cancel(topic, id, tenant=tenant)
    if asked.as_json:
        output.document({"id": id, "cancelled": changed})
        return
    if not changed:
        fail(Exit.REFUSED, f"{id} is over already; there is nothing to cancel")
    click.echo(f"{id}: cancelled")
