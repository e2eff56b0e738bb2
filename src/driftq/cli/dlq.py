"""`driftq dlq`: list, show, count, redrive, delete and export dead letters. What changes many runs in slices, so that
it can be stopped."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import IO, Any

import click

from driftq.cli import messages, output
from driftq.cli.command import Invocation, broker_command, confirm, topic_argument, yes_option
from driftq.cli.exit_codes import Exit, fail
from driftq.cli.param_types import AGO, RUN, OffsetRun
from driftq.cli.watch import watchable

SLICE_LETTERS = 200
SLICE_DELETED = 10_000
DELETED_MAX = 1_000_000
STDOUT = "<stdout>"

_FILTER = (
    click.option("--group", default="", help="Only letters of this group."),
    click.option("--error", default="", help="Only letters whose last error contains this text (case-sensitive)."),
    click.option("--kind", help="Only letters of this kind of error, as `driftq dlq errors --json` names it."),
    click.option("--reason", default="", help="Only letters with this reason (rejected, max_attempts, …)."),
    click.option("--since", type=AGO, help="Only letters since this time (RFC 3339, or 1h for an hour ago)."),
    click.option("--until", type=AGO, help="Only letters before this time."),
)


def _filtered(function: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_FILTER):
        function = option(function)
    return function


@click.group()
def command() -> None:
    """List, show, count, redrive, delete and export dead letters."""


@command.command("list")
@topic_argument
@_filtered
@click.option(
    "--count", "-n", type=click.IntRange(1), default=100, show_default=True, help="Maximum number of letters."
)
@click.option("--all", "no_limit", is_flag=True, help="No maximum.")
@broker_command
@watchable
def list_(invocation: Invocation, topic: str, count: int, no_limit: bool, **filters: Any) -> None:
    """List the dead letters of a topic that were not redriven yet. --json prints one object per line.

    Example: driftq dlq list orders --since 1d --error TimeoutError
    """
    letters = invocation.broker.dead_letters.iterate(topic, limit=None if no_limit else count, **filters)
    if invocation.as_json:
        for letter in letters:
            output.line(messages.as_object(f"dlq.{topic.removeprefix('dlq.')}", letter))
        return
    header = ("OFFSET", "DIED", "GROUP", "ATTEMPTS", "REASON", "LAST ERROR", "VALUE")
    rows = (
        (
            f"{letter.partition}:{letter.offset}", letter.dlq.dead_at, letter.dlq.group, letter.dlq.attempts,
            letter.dlq.reason, output.shortened(letter.dlq.last_error), output.shortened(messages.text_of(letter)),
        )
        for letter in letters
        if letter.dlq is not None
    )  # fmt: skip
    output.table(header, rows, f"No dead letters of {topic}.")


@command.command(short_help="Show one dead letter and why it died.")
@topic_argument
@click.argument("letter", type=RUN)
@messages.raw_option
@broker_command
def show(invocation: Invocation, topic: str, letter: OffsetRun, raw: bool) -> None:
    """Show one dead letter: where it came from, why it died, and its value.

    Example: driftq dlq show orders 0:3
    """
    dead = f"dlq.{topic.removeprefix('dlq.')}"
    records = invocation.broker.topics.peek(dead, letter.partition, offset=letter.offset, limit=1)
    if not records:
        fail(
            Exit.NOTHING_THERE,
            f"{dead} has no message at {letter.partition}:{letter.offset}",
            as_json=invocation.as_json,
        )
    record = records[0]
    if invocation.as_json or raw:
        messages.show(dead, record, as_json=invocation.as_json, only_value=raw)
        return
    if record.dlq is not None:
        origin = record.dlq
        output.fields(
            [
                ("from", f"{origin.topic} {origin.partition}:{origin.offset}"),
                ("group", origin.group),
                ("died", origin.dead_at),
                ("reason", origin.reason),
                ("attempts", origin.attempts),
                ("leases lost", origin.lease_losses or None),
                ("last error", origin.last_error),
                ("key", record.key),
                ("task", record.job.task if record.job is not None else ""),
            ]
        )
    click.echo()
    click.echo(output.printable(messages.text_of(record)))


@command.command()
@topic_argument
@broker_command
def errors(invocation: Invocation, topic: str) -> None:
    """Count dead letters by kind of error. Numbers and ids in an error are ignored.

    Example: driftq dlq errors orders
    """
    kinds = list(invocation.broker.dead_letters.iterate_errors(topic))
    if invocation.as_json:
        output.document({"errors": kinds})
        return
    header = ("COUNT", "GROUP", "REASON", "LAST", "EXAMPLE")
    rows = (
        (kind["count"], kind["group"], kind["reason"], kind["last_at"], output.shortened(kind["example"]))
        for kind in kinds
    )
    output.table(header, rows, f"No dead letters of {topic}.")


@command.command(short_help="Send dead letters back, each to its group.")
@topic_argument
@click.argument("letters", nargs=-1, type=RUN)
@_filtered
@click.option("--dry-run", is_flag=True, help="Only count what would be redriven.")
@click.option("--limit", type=click.IntRange(1, 1_000_000), default=1_000_000, help="Maximum number of letters.")
@click.option("--rate", "rate_per_s", type=click.IntRange(1), help="Letters per second.")
@click.option("--value", help="Replace the value of each letter.")
@click.option("--key", help="Replace the key of each letter.")
@click.option(
    "--all-groups", is_flag=True, help="Deliver to every group of the topic, not only to the one in which it died."
)
@click.option("--keep-deadline", is_flag=True, help="Keep a deadline that has passed.")
@click.option("--to", "to_topic", default="", metavar="TOPIC", help="Send them to another topic.")
@broker_command
def redrive(
    invocation: Invocation,
    topic: str,
    letters: tuple[OffsetRun, ...],
    dry_run: bool,
    limit: int,
    rate_per_s: int | None,
    **options: Any,
) -> None:
    """Redrive dead letters, each to the group in which it died: all, those of a filter, or the named ones.

    Each is produced again and settled in one write, so this can be stopped and repeated without duplicates. Exit code
    66 if a named one is not there; the others are redriven.

    \b
    Examples:
      driftq dlq redrive orders --error TimeoutError --dry-run
      driftq dlq redrive orders --error TimeoutError --rate 50
      driftq dlq redrive orders 0:3 --value '{"id": 7}'
      driftq dlq redrive orders --reason rejected --to orders.review
    """
    offsets = _named(letters)
    options["offsets"] = offsets or None
    matched = int(invocation.broker.dead_letters.redrive(topic, dry_run=True, limit=limit, **options)["matched"])
    if dry_run:
        _report(invocation, {"status": "dry run", "matched": matched, "redriven": 0, "failed": []})
    else:
        _report(invocation, _in_slices(invocation, topic, min(matched, limit), rate_per_s or 0, options))
    _refuse_missing(invocation, min(len(offsets), limit) - matched)


@command.command(short_help="Delete dead letters.")
@topic_argument
@click.argument("letters", nargs=-1, type=RUN)
@_filtered
@click.option("--dry-run", is_flag=True, help="Only count what would be deleted.")
@yes_option
@broker_command
def delete(
    invocation: Invocation, topic: str, letters: tuple[OffsetRun, ...], dry_run: bool, yes: bool, **filters: Any
) -> None:
    """Delete dead letters: all, those of a filter, or the named ones. They are not listed or redriven any more.

    Exit code 66 if a named one is not there: it was deleted or redriven, does not fit the filter, or never was. The
    others are deleted.

    \b
    Examples:
      driftq dlq delete orders --reason rejected --until 30d --dry-run
      driftq dlq delete orders 0:3 0:7-9 --yes
    """
    offsets = _named(letters)
    calls = functools.partial(invocation.broker.dead_letters.delete, topic, offsets=offsets or None, **filters)
    matched = calls(dry_run=True, limit=DELETED_MAX).matched
    if not dry_run:
        confirm(f"Delete {matched:,} dead letters of {topic}", yes)
    deleted, after = 0, ""
    with output.progress(f"deleting of {topic}", matched) as advance:
        while not dry_run and deleted < matched:
            reply = calls(limit=min(SLICE_DELETED, matched - deleted), after=after)
            deleted, after = deleted + reply.deleted, reply.after or ""
            advance(reply.deleted)
            if not after:
                break
    if invocation.as_json:
        output.document({"status": "dry run" if dry_run else "deleted", "matched": matched, "deleted": deleted})
    elif dry_run:
        click.echo(f"{matched} would be deleted; nothing was changed")
    else:
        click.echo(f"{deleted} of {matched} deleted")
    _refuse_missing(invocation, len(offsets) - matched)


@command.command(short_help="Write dead letters as NDJSON.")
@topic_argument
@_filtered
@click.option("--output", "-o", "file", type=click.File("wb"), default="-", help="File (default: standard output).")
@broker_command
def export(invocation: Invocation, topic: str, file: IO[bytes], **filters: Any) -> None:
    """Write the dead letters that were not redriven as NDJSON, one object a line. `driftq produce --ndjson` reads it.

    With --json the number of lines is printed, if they go to a file.

    \b
    Examples:
      driftq dlq export orders --since 1d --output orders.ndjson
      driftq dlq export orders | driftq produce orders.review --ndjson -
    """
    count = 0
    with output.until_reader_closes():
        for line in invocation.broker.dead_letters.export(topic, **filters):
            file.write(line)
            count += 1
    file.flush()
    name = str(getattr(file, "name", STDOUT))
    if name == STDOUT:
        return
    if invocation.as_json:
        output.document({"topic": topic, "file": name, "exported": count})
    else:
        click.echo(f"{count} dead letters of {topic} written to {name}")


def _named(letters: tuple[OffsetRun, ...]) -> list[tuple[int, int]]:
    """The letters that were named, each once."""
    return [*dict.fromkeys((run.partition, offset) for run in letters for offset in range(run.offset, run.end))]


def _refuse_missing(invocation: Invocation, missing: int) -> None:
    """A letter that was named and is not there is a mistake; a filter may well find none."""
    if missing > 0:
        letters = "letter is" if missing == 1 else "letters are"
        fail(Exit.NOTHING_THERE, f"{missing} named {letters} not there, or already deleted or redriven",
             "List what is there: driftq dlq list TOPIC", as_json=invocation.as_json)  # fmt: skip


def _in_slices(
    invocation: Invocation, topic: str, matched: int, rate_per_s: int, options: dict[str, Any]
) -> dict[str, Any]:
    """A slice is about a second of work, so that the progress bar moves and Ctrl-C takes effect."""
    redriven = 0
    failed: dict[tuple[int, int], dict[str, Any]] = {}
    with output.progress(f"redriving to {topic}", matched) as advance:
        while redriven < matched:
            size = min(matched - redriven, rate_per_s or SLICE_LETTERS) + len(
                failed
            )  # letters that failed come first again
            reply = invocation.broker.dead_letters.redrive(topic, limit=size, rate_per_s=rate_per_s, **options)
            failed |= {(letter["partition"], letter["offset"]): letter for letter in reply["failed"]}
            redriven += reply["redriven"]
            advance(reply["redriven"])
            if not reply["redriven"]:
                break
    return {"status": "redriven", "matched": matched, "redriven": redriven, "failed": list(failed.values())}


def _report(invocation: Invocation, result: dict[str, Any]) -> None:
    if invocation.as_json:
        output.document(result)
    elif result["status"] == "dry run":
        click.echo(f"{result['matched']} would be redriven; nothing was changed")
    else:
        for letter in result["failed"]:
            output.note(f"{letter['partition']}:{letter['offset']} was refused: {letter['message']}")
        click.echo(f"{result['redriven']} of {result['matched']} redriven")
    if result["failed"]:
        fail(Exit.REFUSED, f"{len(result['failed'])} could not be redriven", as_json=invocation.as_json)
