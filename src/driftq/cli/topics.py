"""`driftq topics`: list, create, show, change, purge and delete topics; move their messages, and peek at them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from driftq.cli import messages, output
from driftq.cli.command import Invocation, broker_command, confirm, topic_argument, topic_names, yes_option
from driftq.cli.exit_codes import Exit, fail
from driftq.cli.param_types import AGO, DURATION, SIZE
from driftq.cli.watch import watchable

if TYPE_CHECKING:
    from driftq.wire.topics import MoveFailure, TopicInfo


SLICE_MOVED = 10_000
FAILURES_MAX = 1_000


@click.group()
def command() -> None:
    """List, create, show, change, purge and delete topics; move and peek at messages."""


@command.command("list")
@broker_command
@watchable
def list_(invocation: Invocation) -> None:
    """List all topics with their size and dead letters.

    Example: driftq topics list
    """
    topics = [invocation.broker.topics.describe(name) for name in invocation.broker.topics.list()]
    if invocation.as_json:
        output.document([_summary(info) for info in topics])
        return
    header = ("TOPIC", "PARTITIONS", "MESSAGES", "BYTES", "GROUPS", "DEAD")
    output.table(
        header, (tuple(_summary(info).values()) for info in topics), "No topics. Create one: driftq topics create NAME"
    )


def _summary(info: TopicInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "partitions": len(info.partitions),
        "messages": sum(log.messages for log in info.partitions),
        "bytes": sum(log.payload_bytes for log in info.partitions),
        "groups": len(info.groups),
        "dead_letters": info.dead_letters,
    }


_SETTINGS = (
    click.option("--retention", "retention_ms", type=DURATION, help="Keep messages this long (e.g. 7d)."),
    click.option("--retention-bytes", type=SIZE, help="Keep this much of each partition (e.g. 10GB)."),
    click.option("--lease", "lease_ms", type=DURATION, help="Length of a lease (e.g. 30s)."),
    click.option(
        "--in-flight-max", type=click.IntRange(0), help="Maximum of claimed messages per group and partition."
    ),
    click.option("--backlog-messages-max", type=click.IntRange(0), help="Refuse new messages beyond this backlog."),
    click.option("--backlog-bytes-max", type=SIZE, help="Refuse new messages beyond this backlog in bytes."),
    click.option("--fair", type=click.Choice(["tenant", "off"]), help="tenant: deliver messages of tenants in turns."),
    click.option(
        "--keep-unread",
        type=click.Choice(["committed", "all", "none"]),
        help="Retention waits for groups that commit offsets, as Spark queries do; for all groups; or for none.",
    ),
    click.option("--max-attempts", type=click.IntRange(0), help="Deliveries before a message becomes a dead letter."),
    click.option("--backoff", "backoff_ms", type=DURATION, help="First backoff between attempts."),
    click.option("--max-backoff", "max_backoff_ms", type=DURATION, help="Longest backoff."),
)


def _settings(function: Any) -> Any:
    for option in reversed(_SETTINGS):
        function = option(function)
    return function


def _changes(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given. The three about retries are one setting."""
    retry = {
        "max_attempts": options.pop("max_attempts"),
        "backoff_ms": options.pop("backoff_ms"),
        "max_backoff_ms": options.pop("max_backoff_ms"),
    }
    changes = {name: value for name, value in options.items() if value is not None}
    if changes.get("fair") == "off":
        changes["fair"] = ""
    if changes.get("keep_unread") == "committed":
        changes["keep_unread"] = ""
    if any(value is not None for value in retry.values()):
        changes["retry"] = {name: value for name, value in retry.items() if value is not None}
    return changes


@command.command()
@click.argument("name")
@click.option(
    "--partitions", "-p", type=click.IntRange(1, 1_024), default=1, show_default=True, help="Number of partitions."
)
@_settings
@broker_command
def create(invocation: Invocation, name: str, partitions: int, **options: Any) -> None:
    """Create a topic. Repeating the command has no effect.

    Example: driftq topics create orders --partitions 4 --retention 7d --max-attempts 5
    """
    reply = invocation.broker.topics.create(name, partitions=partitions, **_changes(options))
    if invocation.as_json:
        output.document(reply)
        return
    click.echo(f"{reply.name}: {reply.status}, partitions: {reply.partitions}")


@command.command(short_help="Show a topic: partitions, groups, settings.")
@topic_argument
@broker_command
def show(invocation: Invocation, topic: str) -> None:
    """Show the partitions, groups, settings and dead letters of a topic.

    Example: driftq topics show orders
    """
    _show(invocation, invocation.broker.topics.describe(topic))


def _show(invocation: Invocation, info: TopicInfo) -> None:
    if invocation.as_json:
        output.document(info)
        return
    retry = info.config.get("retry") or {}
    settings = {name: value for name, value in info.config.items() if value and name != "retry"}
    output.fields(
        [
            ("topic", info.name),
            ("created", info.created_at),
            ("groups", ", ".join(info.groups) or "none yet"),
            ("dead letters", info.dead_letters),
            *((name, str(value)) for name, value in settings.items()),
            *((f"retry {name}", str(value)) for name, value in retry.items()),
        ]
    )
    click.echo()
    header = ("PARTITION", "FIRST", "NEXT", "MESSAGES", "BYTES")
    rows = (
        (log.partition, log.start_offset, log.end_offset, log.messages, log.payload_bytes) for log in info.partitions
    )
    output.table(header, rows)


@command.command("set")
@topic_argument
@_settings
@broker_command
def set_(invocation: Invocation, topic: str, **options: Any) -> None:
    """Change the settings of a topic. 0 restores the server's default.

    Example: driftq topics set orders --lease 2m --retention 0
    """
    changes = _changes(options)
    if not changes:
        raise click.UsageError("nothing to change; see `driftq topics set --help`")
    _show(invocation, invocation.broker.topics.change(topic, **changes))


@command.command()
@topic_argument
@yes_option
@broker_command
def delete(invocation: Invocation, topic: str, yes: bool) -> None:
    """Delete a topic with its messages, dead letters and groups.

    Example: driftq topics delete orders --yes
    """
    info = invocation.broker.topics.describe(topic)
    count = sum(log.messages for log in info.partitions)
    confirm(f"Delete {topic} with {count:,} messages and {info.dead_letters:,} dead letters", yes)
    invocation.broker.topics.delete(topic)
    if invocation.as_json:
        output.document({"topic": topic, "status": "deleted"})
    else:
        click.echo(f"{topic}: deleted")


@command.command(short_help="Drop every message of a topic.")
@topic_argument
@click.option("--dry-run", is_flag=True, help="Only count what would be dropped.")
@yes_option
@broker_command
def purge(invocation: Invocation, topic: str, dry_run: bool, yes: bool) -> None:
    """Drop every message of a topic for every group, also those that a worker holds or that wait.

    Groups, settings and dead letters stay. To purge the dead letters: driftq topics purge dlq.TOPIC.

    Example: driftq topics purge orders --dry-run
    """
    counted = invocation.broker.topics.purge(topic, dry_run=True)
    if not dry_run:
        confirm(f"Drop {counted.messages:,} messages of {topic} ({counted.in_flight:,} of them in flight)", yes)
        counted = invocation.broker.topics.purge(topic)
    if invocation.as_json:
        output.document(counted)
        return
    does = "would be dropped; nothing was changed" if dry_run else "dropped"
    pending = f"{counted.in_flight} in flight, {counted.waiting} waiting"
    click.echo(f"{topic}: {counted.messages} messages {does} ({pending})")


@command.command(short_help="Move messages to another topic.")
@topic_argument
@click.argument("to", shell_complete=topic_names)
@click.option("--partition", "-p", type=click.IntRange(0), help="Only messages of this partition.")
@click.option("--task", default="", help="Only messages of this task.")
@click.option("--since", type=AGO, help="Only messages since this time (RFC 3339, or 1h for an hour ago).")
@click.option("--until", type=AGO, help="Only messages before this time.")
@click.option("--limit", type=click.IntRange(1), help="How many (all).")
@click.option("--dry-run", is_flag=True, help="Only count what would be moved.")
@broker_command
def move(invocation: Invocation, topic: str, to: str, limit: int | None, dry_run: bool, **chosen: Any) -> None:
    """Move the messages that are not finished from TOPIC to another topic.

    Each is produced there and settled for every group of TOPIC in one write, so this can be stopped and repeated
    without duplicates. Messages that a worker holds stay.

    Example: driftq topics move orders orders.slow --task report --dry-run
    """
    matched, moved, after = 0, 0, ""
    failed: list[MoveFailure] = []
    with output.progress(f"moving to {to}", limit) as advance:
        while limit is None or matched < limit:
            size = min(SLICE_MOVED, limit - matched if limit is not None else SLICE_MOVED)
            reply = invocation.broker.topics.move(topic, to, limit=size, after=after, dry_run=dry_run, **chosen)
            matched, moved, failed = matched + reply.matched, moved + reply.moved, failed + reply.failed
            advance(reply.matched)
            if reply.after is None or len(failed) >= FAILURES_MAX:
                break
            after = reply.after
    if invocation.as_json:
        status = "dry run" if dry_run else "moved"
        output.document({"status": status, "matched": matched, "moved": moved, "failed": failed})
    elif dry_run:
        click.echo(f"{matched} would be moved; nothing was changed")
    else:
        for item in failed:
            output.note(f"{item.partition}:{item.offset} was not moved: {item.message}")
        click.echo(f"{moved} of {matched} moved to {to}")
    if failed:
        fail(Exit.REFUSED, f"{len(failed)} could not be moved", as_json=invocation.as_json)


@command.command()
@topic_argument
@click.option(
    "--at", type=AGO, help="Also show the first offset at or after this time (RFC 3339, or 1h for an hour ago)."
)
@broker_command
def offsets(invocation: Invocation, topic: str, at: str | None) -> None:
    """Show the first and the next offset of each partition.

    Example: driftq topics offsets orders --at 1h
    """
    info = invocation.broker.topics.offsets(topic, at=at)
    if invocation.as_json:
        output.document(info)
        return
    header = ("PARTITION", "FIRST", "NEXT", *(["AT"] if at else []))
    rows = ((log.partition, log.start, log.end, *([log.at] if at else [])) for log in info.partitions)
    output.table(header, rows)


@command.command()
@topic_argument
@click.option("--partition", "-p", type=click.IntRange(0), default=0, show_default=True, help="Partition.")
@click.option("--offset", type=click.IntRange(0), help="First offset (default: the last messages).")
@click.option("--count", "-n", type=click.IntRange(1, 1_000), default=10, show_default=True, help="Number of messages.")
@messages.raw_option
@broker_command
def peek(invocation: Invocation, topic: str, partition: int, offset: int | None, count: int, raw: bool) -> None:
    """Print messages without claiming them.

    Example: driftq topics peek orders --partition 2 --offset 100
    """
    for message in invocation.broker.topics.peek(topic, partition, offset=offset, limit=count):
        messages.show(topic, message, as_json=invocation.as_json, only_value=raw)
