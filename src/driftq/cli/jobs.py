"""`driftq jobs`: messages that are work, by their id."""

from __future__ import annotations

from typing import Any

import click

from driftq.cli import messages, showing
from driftq.cli.asking import Asked, asks, fail, topic_argument
from driftq.cli.exits import Exit

tenant_option = click.option("--tenant", default="", help="For whom the job is.")


@click.group()
def command() -> None:
    """Enqueue, show and cancel jobs."""


@command.command()
@topic_argument
@click.argument("value")
@messages.message_options
@asks
def enqueue(asked: Asked, topic: str, value: str, **words: Any) -> None:
    """Enqueue a job: a message with a --task, an --id, or both. The same id again changes nothing.

    Example: driftq jobs enqueue emails '{"to": "ann"}' --task email.send.v1 --id mail-7 --delay 10m
    """
    from driftq.client.calls import item

    if not (words["task"] or words["id"]):
        raise click.UsageError("a job has a --task, an --id, or both")
    made = asked.broker.jobs.enqueue(topic, item(value, **messages.said_of(words)))
    if asked.as_json:
        showing.document(made)
        return
    again = " (known already: nothing changed)" if made.duplicate else ""
    click.echo(f"{made.id}  {made.topic} {made.partition}:{made.offset}{again}")


@command.command()
@topic_argument
@click.argument("id")
@tenant_option
@asks
def show(asked: Asked, topic: str, id: str, tenant: str) -> None:
    """A job's state for each group, with every attempt.

    Example: driftq jobs show emails mail-7
    """
    found = asked.broker.jobs.find(topic, id, tenant=tenant)
    if asked.as_json:
        showing.document(found)
        return
    showing.fields(
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
    click.echo(showing.printable(", ".join(state)))
    if "result" in group:
        click.echo(f"result: {showing.printable(group['result'])}")
    rows = (
        (
            each["attempt"],
            each["began_at"],
            each["ended_at"],
            each["end"],
            each["owner"],
            showing.shortened(each["error"]),
        )
        for each in group["attempts"]
    )
    showing.table(("ATTEMPT", "BEGAN", "ENDED", "END", "OWNER", "ERROR"), rows)


@command.command()
@topic_argument
@click.argument("id")
@tenant_option
@asks
def cancel(asked: Asked, topic: str, id: str, tenant: str) -> None:
    """Nobody gets the job any more; whoever runs it hears of it at the next heartbeat.

    Example: driftq jobs cancel emails mail-7
    """
    changed = asked.broker.jobs.cancel(topic, id, tenant=tenant)
    if asked.as_json:
        showing.document({"id": id, "cancelled": changed})
        return
    if not changed:
        fail(Exit.REFUSED, f"{id} is over already; there is nothing to cancel")
    click.echo(f"{id}: cancelled")
