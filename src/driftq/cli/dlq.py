"""`driftq dlq`: dead letters, looked at and sent back. A redrive goes in slices, to be watched and stopped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from driftq.cli import messages, output
from driftq.cli.command import Invocation, asks, topic_argument
from driftq.cli.exit_codes import Exit, fail
from driftq.cli.param_types import AGO, RUN, OffsetRun

SLICE = 200

_FILTER = (
    click.option("--group", default="", help="Only letters of this group."),
    click.option("--error", default="", help="Only letters whose last error has this text in it."),
    click.option("--reason", default="", help="Only letters that died for this reason (rejected, max_attempts …)."),
    click.option("--since", type=AGO, help="Only from then on (RFC 3339, or 1h for an hour ago)."),
    click.option("--until", type=AGO, help="Only before."),
)


def _filtered(function: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_FILTER):
        function = option(function)
    return function


@click.group()
def command() -> None:
    """Dead letters: list, show, group by error, send back."""


@command.command("list")
@topic_argument
@_filtered
@click.option("--count", "-n", type=click.IntRange(1), default=100, show_default=True, help="At most so many.")
@click.option("--all", "every", is_flag=True, help="All of them.")
@asks
def list_(asked: Invocation, topic: str, count: int, every: bool, **filters: Any) -> None:
    """Dead letters of a topic that were not sent back yet. --json prints one object a line, as there may be many.

    Example: driftq dlq list orders --since 1d --error timeout
    """
    found = asked.broker.dead_letters.iterate(topic, limit=None if every else count, **filters)
    if asked.as_json:
        for each in found:
            output.line(messages.as_object(f"dlq.{topic.removeprefix('dlq.')}", each))
        return
    header = ("PLACE", "DIED", "GROUP", "ATTEMPTS", "REASON", "LAST ERROR", "VALUE")
    rows = (
        (
            f"{each.partition}:{each.offset}", each.dlq.dead_at, each.dlq.group, each.dlq.attempts, each.dlq.reason,
            output.shortened(each.dlq.last_error), output.shortened(messages.text_of(each)),
        )
        for each in found
        if each.dlq is not None
    )  # fmt: skip
    output.table(header, rows, f"No dead letters of {topic}.")


@command.command()
@topic_argument
@click.argument("place", type=RUN, metavar="PLACE")
@messages.raw_option
@asks
def show(asked: Invocation, topic: str, place: OffsetRun, raw: bool) -> None:
    """One dead letter whole: where it came from, why it died, its value. PLACE is PARTITION:OFFSET as listed.

    Example: driftq dlq show orders 0:3
    """
    dead = f"dlq.{topic.removeprefix('dlq.')}"
    found = asked.broker.topics.peek(dead, place.partition, offset=place.offset, limit=1)
    if not found:
        fail(Exit.NOTHING_THERE, f"{dead} has nothing at {place.partition}:{place.offset}", as_json=asked.as_json)
    letter = found[0]
    if asked.as_json or raw:
        messages.show(dead, letter, as_json=asked.as_json, only_value=raw)
        return
    if letter.dlq is not None:
        origin = letter.dlq
        output.fields(
            [
                ("from", f"{origin.topic} {origin.partition}:{origin.offset}"),
                ("group", origin.group),
                ("died", origin.dead_at),
                ("reason", origin.reason),
                ("attempts", origin.attempts),
                ("leases lost", origin.lease_losses or None),
                ("last error", origin.last_error),
                ("key", letter.key),
                ("task", letter.job.task if letter.job is not None else ""),
            ]
        )
    click.echo()
    click.echo(output.printable(messages.text_of(letter)))


@command.command()
@topic_argument
@asks
def errors(asked: Invocation, topic: str) -> None:
    """How many dead letters of each kind of error; numbers and ids in a text do not count.

    Example: driftq dlq errors orders
    """
    found = list(asked.broker.dead_letters.iterate_errors(topic))
    if asked.as_json:
        output.document({"errors": found})
        return
    header = ("COUNT", "GROUP", "REASON", "LAST", "EXAMPLE")
    rows = (
        (each["count"], each["group"], each["reason"], each["last_at"], output.shortened(each["example"]))
        for each in found
    )
    output.table(header, rows, f"No dead letters of {topic}.")


@command.command()
@topic_argument
@click.argument("places", nargs=-1, type=RUN, metavar="[PLACE]...")
@_filtered
@click.option("--dry-run", is_flag=True, help="Only count what would be sent back.")
@click.option("--limit", type=click.IntRange(1, 1_000_000), default=1_000_000, help="At most so many.")
@click.option("--rate", "rate_per_s", type=click.IntRange(1), help="So many a second.")
@click.option("--value", help="Replace the value of each.")
@click.option("--key", help="Replace the key of each.")
@click.option("--all-groups", is_flag=True, help="To every group of the topic, not only to the one in which it died.")
@click.option("--keep-deadline", is_flag=True, help="Leave a deadline that has passed in the message.")
@asks
def redrive(
    asked: Invocation,
    topic: str,
    places: tuple[OffsetRun, ...],
    dry_run: bool,
    limit: int,
    rate_per_s: int | None,
    **words: Any,
) -> None:
    """Send dead letters back, each to the group in which it died: all, those of a filter, or those at the PLACEs.

    Each is produced again and marked in one write, so this can be stopped and repeated without doubling anything.

    \b
    Examples:
      driftq dlq redrive orders --error timeout --dry-run
      driftq dlq redrive orders --error timeout --rate 50
      driftq dlq redrive orders 0:3 --value '{"id": 7}'
    """
    offsets = [(each.partition, offset) for each in places for offset in range(each.offset, each.end)]
    words["offsets"] = offsets or None
    matched = int(asked.broker.dead_letters.redrive(topic, dry_run=True, limit=limit, **words)["matched"])
    if dry_run:
        _report(asked, {"status": "dry run", "matched": matched, "redriven": 0, "failed": []})
        return
    _report(asked, _in_slices(asked, topic, min(matched, limit), rate_per_s or 0, words))


def _in_slices(asked: Invocation, topic: str, matched: int, rate_per_s: int, words: dict[str, Any]) -> dict[str, Any]:
    """A slice is about a second of work, so that the bar moves and Ctrl-C is heard."""
    redriven = 0
    failed: dict[tuple[int, int], dict[str, Any]] = {}
    with output.progress(f"redriving to {topic}", matched) as advance:
        while redriven < matched:
            size = min(matched - redriven, rate_per_s or SLICE) + len(failed)  # those that fail come first again
            reply = asked.broker.dead_letters.redrive(topic, limit=size, rate_per_s=rate_per_s, **words)
            failed |= {(each["partition"], each["offset"]): each for each in reply["failed"]}
            redriven += reply["redriven"]
            advance(reply["redriven"])
            if not reply["redriven"]:
                break
    return {"status": "redriven", "matched": matched, "redriven": redriven, "failed": list(failed.values())}


def _report(asked: Invocation, found: dict[str, Any]) -> None:
    if asked.as_json:
        output.document(found)
    elif found["status"] == "dry run":
        click.echo(f"{found['matched']} would be sent back; nothing was changed")
    else:
        for each in found["failed"]:
            output.remark(f"{each['partition']}:{each['offset']} was refused: {each['message']}")
        click.echo(f"{found['redriven']} of {found['matched']} sent back")
    if found["failed"]:
        fail(Exit.REFUSED, f"{len(found['failed'])} could not be sent back", as_json=asked.as_json)
