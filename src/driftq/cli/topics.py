"""`driftq topics`: what there is, how it is set, and a look at the messages in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from driftq.cli import messages, output
from driftq.cli.command import Invocation, asks, confirmed, topic_argument, yes_option
from driftq.cli.param_types import AGO, DURATION, SIZE

if TYPE_CHECKING:
    from driftq.wire.topics import TopicInfo


@click.group()
def command() -> None:
    """List, create, show, change and delete topics; look at their messages."""


@command.command("list")
@asks
def list_(asked: Invocation) -> None:
    """Every topic with its size and its dead letters.

    Example: driftq topics list
    """
    found = [asked.broker.topics.describe(name) for name in asked.broker.topics.list()]
    if asked.as_json:
        output.document([_summary(info) for info in found])
        return
    header = ("TOPIC", "PARTITIONS", "MESSAGES", "BYTES", "GROUPS", "DEAD")
    output.table(header, (tuple(_summary(info).values()) for info in found), "No topics. driftq topics create NAME")


def _summary(info: TopicInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "partitions": len(info.partitions),
        "messages": sum(each.messages for each in info.partitions),
        "bytes": sum(each.payload_bytes for each in info.partitions),
        "groups": len(info.groups),
        "dead_letters": info.dead_letters,
    }


_SETTINGS = (
    click.option("--retention", "retention_ms", type=DURATION, help="Messages are kept this long (7d)."),
    click.option("--retention-bytes", type=SIZE, help="And this much of each partition (10GB)."),
    click.option("--lease", "lease_ms", type=DURATION, help="How long a claim holds (30s)."),
    click.option("--in-flight-max", type=click.IntRange(0), help="Claimed at a time, for each group and partition."),
    click.option("--backlog-messages-max", type=click.IntRange(0), help="More than this unread refuses new ones."),
    click.option("--backlog-bytes-max", type=SIZE, help="The same in bytes."),
    click.option("--fair", type=click.Choice(["tenant", "off"]), help="tenant: hand out messages of tenants in turns."),
    click.option("--max-attempts", type=click.IntRange(0), help="Deliveries before a message is a dead letter."),
    click.option("--backoff", "backoff_ms", type=DURATION, help="The first pause between attempts."),
    click.option("--max-backoff", "max_backoff_ms", type=DURATION, help="The longest pause."),
)


def _settings(function: Any) -> Any:
    for option in reversed(_SETTINGS):
        function = option(function)
    return function


def _given(words: dict[str, Any]) -> dict[str, Any]:
    """Only what was said; the three words about retries are one setting."""
    retry = {
        "max_attempts": words.pop("max_attempts"),
        "backoff_ms": words.pop("backoff_ms"),
        "max_backoff_ms": words.pop("max_backoff_ms"),
    }
    said = {name: value for name, value in words.items() if value is not None}
    if said.get("fair") == "off":
        said["fair"] = ""
    if any(value is not None for value in retry.values()):
        said["retry"] = {name: value for name, value in retry.items() if value is not None}
    return said


@command.command()
@click.argument("name")
@click.option("--partitions", "-p", type=click.IntRange(1, 1_024), default=1, show_default=True, help="How many.")
@_settings
@asks
def create(asked: Invocation, name: str, partitions: int, **words: Any) -> None:
    """Make a topic. The same again changes nothing.

    Example: driftq topics create orders --partitions 4 --retention 7d --max-attempts 5
    """
    reply = asked.broker.topics.create(name, partitions=partitions, **_given(words))
    if asked.as_json:
        output.document(reply)
        return
    click.echo(f"{reply.name}: {reply.status}, partitions: {reply.partitions}")


@command.command()
@topic_argument
@asks
def show(asked: Invocation, topic: str) -> None:
    """Partitions, groups, settings and dead letters of a topic.

    Example: driftq topics show orders
    """
    _show(asked, asked.broker.topics.describe(topic))


def _show(asked: Invocation, info: TopicInfo) -> None:
    if asked.as_json:
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
        (each.partition, each.start_offset, each.end_offset, each.messages, each.payload_bytes)
        for each in info.partitions
    )
    output.table(header, rows)


@command.command("set")
@topic_argument
@_settings
@asks
def set_(asked: Invocation, topic: str, **words: Any) -> None:
    """Change settings of a topic; 0 goes back to the server's own.

    Example: driftq topics set orders --lease 2m --retention 0
    """
    given = _given(words)
    if not given:
        raise click.UsageError("nothing to change; see `driftq topics set --help`")
    _show(asked, asked.broker.topics.change(topic, **given))


@command.command()
@topic_argument
@yes_option
@asks
def delete(asked: Invocation, topic: str, yes: bool) -> None:
    """Delete a topic with its messages, dead letters and groups.

    Example: driftq topics delete orders --yes
    """
    info = asked.broker.topics.describe(topic)
    count = sum(each.messages for each in info.partitions)
    confirmed(f"Delete {topic} with {count:,} messages and {info.dead_letters:,} dead letters", yes)
    asked.broker.topics.delete(topic)
    if asked.as_json:
        output.document({"topic": topic, "status": "deleted"})
    else:
        click.echo(f"{topic}: deleted")


@command.command()
@topic_argument
@click.option("--at", type=AGO, help="Also the first offset at or after a time (RFC 3339, or 1h for an hour ago).")
@asks
def offsets(asked: Invocation, topic: str, at: str | None) -> None:
    """First and next offset of each partition.

    Example: driftq topics offsets orders --at 1h
    """
    found = asked.broker.topics.offsets(topic, at=at)
    if asked.as_json:
        output.document(found)
        return
    header = ("PARTITION", "FIRST", "NEXT", *(["AT"] if at else []))
    rows = ((each.partition, each.start, each.end, *([each.at] if at else [])) for each in found.partitions)
    output.table(header, rows)


@command.command()
@topic_argument
@click.option("--partition", "-p", type=click.IntRange(0), default=0, show_default=True, help="Which partition.")
@click.option("--offset", type=click.IntRange(0), help="From here on (default: the last ones).")
@click.option("--count", "-n", type=click.IntRange(1, 1_000), default=10, show_default=True, help="How many.")
@messages.raw_option
@asks
def peek(asked: Invocation, topic: str, partition: int, offset: int | None, count: int, raw: bool) -> None:
    """Look at messages without claiming them.

    Example: driftq topics peek orders --partition 2 --offset 100
    """
    for message in asked.broker.topics.peek(topic, partition, offset=offset, limit=count):
        messages.show(topic, message, as_json=asked.as_json, only_value=raw)
