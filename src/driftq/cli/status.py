"""`driftq status`, `health` and `version`: the server as a whole."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from driftq import __version__
from driftq.cli import output
from driftq.cli.command import Invocation, asks, connect_once
from driftq.cli.exit_codes import Exit

if TYPE_CHECKING:
    from driftq.wire.topics import TopicInfo


@click.command()
@asks
def status(asked: Invocation) -> None:
    """A server at a glance: what it is, its topics and how far behind their groups are.

    Example: driftq status
    """
    broker = asked.broker
    about = broker.version()
    topics = [broker.topics.describe(name) for name in broker.topics.list()]
    groups = broker.groups.list()
    if asked.as_json:
        found = {"url": broker.url, "server": about, "topics": topics, "groups": groups}
        output.document({**found, "warnings": list(_warnings(topics))})
        return
    output.fields(
        [
            ("server", broker.url),
            ("version", about["version"]),
            ("durability", about["durability"]),
            ("topics", len(topics)),
            ("messages", sum(part.messages for topic in topics for part in topic.partitions)),
            ("lag", sum(group.lag for group in groups)),
            ("in flight", sum(group.in_flight for group in groups)),
            ("dead letters", sum(topic.dead_letters for topic in topics)),
        ]
    )
    if not topics:
        return
    click.echo()
    rows = []
    for topic in topics:
        mine = [group for group in groups if group.topic == topic.name]
        oldest_ms = max((group.lag_ms for group in mine if group.lag), default=0)
        rows.append(
            (
                topic.name, sum(part.messages for part in topic.partitions), len(mine),
                sum(group.lag for group in mine), output.age(oldest_ms) if oldest_ms else "", topic.dead_letters,
            )
        )  # fmt: skip
    output.table(("TOPIC", "MESSAGES", "GROUPS", "LAG", "OLDEST", "DEAD"), rows)
    for warning in _warnings(topics):
        click.echo(output.printable(f"\n{warning['message']}"))
        for command in warning["commands"]:
            click.echo(output.printable(f"  {command}"))


def _warnings(topics: list[TopicInfo]) -> Iterator[dict[str, Any]]:
    """Partitions that are full for producers, or nearly, and which group holds them up."""
    for topic in topics:
        for part in topic.partitions:
            full = part.backlog
            if full is None or not full.commands:
                continue
            state = "full: produces are refused" if full.used >= 1 else f"{full.used:.0%} full"
            messages = f"{full.messages:,} of {full.messages_max:,} messages"
            sizes = f"{output.size(full.payload_bytes)} of {output.size(full.bytes_max)}"
            yield {
                "message": f"Partition {part.partition} of {topic.name} is {state}. {messages} and {sizes} wait for "
                f"group {full.group}. Besides its consumers these help:",
                "topic": topic.name,
                "partition": part.partition,
                "group": full.group,
                "lag": full.lag,
                "commands": full.commands,
            }


@click.command()
@asks
def health(asked: Invocation) -> None:
    """Whether a server is alive and ready; the exit code is 0, 69 (nobody answers) or 75 (not ready).

    Example: driftq health || systemctl restart driftq
    """
    from driftq.client.errors import Unavailable

    with connect_once(asked.place) as broker:
        broker.healthy()
        try:
            found: dict[str, Any] = {"alive": True, **broker.ready()}
        except Unavailable as error:
            found = {"alive": True, "status": error.message}
    if asked.as_json:
        output.document(found)
    else:
        click.echo(f"{asked.broker.url}: {found['status']}")
    if found["status"] != "ready":
        sys.exit(Exit.IN_USE)


@click.command()
@asks
def version(asked: Invocation) -> None:
    """The version of this program and of the server, if one answers.

    Example: driftq version --json
    """
    from driftq.client.errors import DriftQError

    try:
        server: dict[str, Any] | None = asked.broker.version()
        reason = ""
    except DriftQError as error:
        server, reason = None, str(error).partition(";")[0]
    if asked.as_json:
        output.document({"client": __version__, "server": server, "url": asked.broker.url})
        return
    click.echo(f"client  {__version__}")
    click.echo(
        f"server  {server['version']} at {asked.broker.url} ({server['durability']})" if server else f"server  {reason}"
    )
