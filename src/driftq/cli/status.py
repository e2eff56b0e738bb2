"""`driftq status`, `health`, `clock` and `version`: the server as a whole."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from driftq import __version__
from driftq.cli import output
from driftq.cli.command import Invocation, broker_command, confirm, connect_once, yes_option
from driftq.cli.exit_codes import Exit
from driftq.cli.watch import watchable

if TYPE_CHECKING:
    from driftq.wire.server_info import ClockInfo
    from driftq.wire.topics import TopicInfo


@click.command()
@broker_command
@watchable
def status(invocation: Invocation) -> None:
    """Show a summary of a server: version, topics, lag of groups, dead letters.

    Example: driftq status --watch --every 5s
    """
    broker = invocation.broker
    version_info = broker.version()
    topics = [broker.topics.describe(name) for name in broker.topics.list()]
    groups = broker.groups.list()
    if invocation.as_json:
        summary = {"url": broker.url, "server": version_info, "topics": topics, "groups": groups}
        output.document({**summary, "warnings": list(_warnings(topics))})
        return
    output.fields(
        [
            ("server", broker.url),
            ("version", version_info["version"]),
            ("durability", version_info["durability"]),
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
        of_topic = [group for group in groups if group.topic == topic.name]
        oldest_ms = max((group.lag_ms for group in of_topic if group.lag), default=0)
        rows.append(
            (
                topic.name, sum(part.messages for part in topic.partitions), len(of_topic),
                sum(group.lag for group in of_topic), output.age(oldest_ms) if oldest_ms else "", topic.dead_letters,
            )
        )  # fmt: skip
    output.table(("TOPIC", "MESSAGES", "GROUPS", "LAG", "OLDEST", "DEAD"), rows)
    for warning in _warnings(topics):
        click.echo(output.printable(f"\n{warning['message']}"))
        for command in warning["commands"]:
            click.echo(output.printable(f"  {command}"))


def _warnings(topics: list[TopicInfo]) -> Iterator[dict[str, Any]]:
    """Partitions that are full or nearly full, and the group that holds up producers."""
    for topic in topics:
        for part in topic.partitions:
            backlog = part.backlog
            if backlog is None or not backlog.commands:
                continue
            state = "full: produces are refused" if backlog.used >= 1 else f"{backlog.used:.0%} full"
            messages = f"{backlog.messages:,} of {backlog.messages_max:,} messages"
            sizes = f"{output.size(backlog.payload_bytes)} of {output.size(backlog.bytes_max)}"
            yield {
                "message": f"Partition {part.partition} of {topic.name} is {state}. {messages} and {sizes} wait for "
                f"group {backlog.group}. Besides starting consumers, these commands help:",
                "topic": topic.name,
                "partition": part.partition,
                "group": backlog.group,
                "lag": backlog.lag,
                "commands": backlog.commands,
            }


@click.command()
@broker_command
def health(invocation: Invocation) -> None:
    """Check whether a server is alive and ready. Exits with 0, 69 (no answer) or 75 (not ready).

    Example: driftq health || systemctl restart driftq
    """
    from driftq.client.errors import Unavailable

    with connect_once(invocation.address) as broker:
        broker.healthy()
        try:
            state: dict[str, Any] = {"alive": True, **broker.ready()}
        except Unavailable as error:
            state = {"alive": True, "status": error.message}
    if invocation.as_json:
        output.document(state)
    else:
        click.echo(f"{invocation.broker.url}: {state['status']}")
    if state["status"] != "ready":
        sys.exit(Exit.IN_USE)


@click.group()
def clock() -> None:
    """Show the broker's clock and its machine's; accept the machine's."""


@clock.command("show", short_help="Show the broker's time and the machine's.")
@broker_command
def show_clock(invocation: Invocation) -> None:
    """Show the broker's time and its machine's, and whether they disagree.

    Example: driftq clock show
    """
    _print_clock(invocation, invocation.broker.read_clock())


@clock.command("accept", short_help="Set the broker's time to the machine's.")
@yes_option
@broker_command
def accept_clock(invocation: Invocation, yes: bool) -> None:
    """Set the broker's time to the machine's clock, whether that is earlier or later.

    Leases and backoffs keep their remaining time. Deadlines, expiry and retention use the new time.

    Example: driftq clock accept --yes
    """
    info = invocation.broker.read_clock()
    confirm(f"Set the broker's time from {info.broker_at} to {info.machine_at}", yes)
    _print_clock(invocation, invocation.broker.accept_clock())


def _print_clock(invocation: Invocation, info: ClockInfo) -> None:
    if invocation.as_json:
        output.document(info)
        return
    output.fields([("broker", info.broker_at), ("machine", info.machine_at), ("ahead", f"{info.ahead_ms} ms")])
    if info.held:
        click.echo(f"\n{info.advice[0].upper()}{info.advice[1:]}")


@click.command()
@broker_command
def version(invocation: Invocation) -> None:
    """Show the versions of this program and of the server.

    Example: driftq version --json
    """
    from driftq.client.errors import DriftQError

    try:
        server: dict[str, Any] | None = invocation.broker.version()
        reason = ""
    except DriftQError as error:
        server, reason = None, str(error).partition(";")[0]
    if invocation.as_json:
        output.document({"client": __version__, "server": server, "url": invocation.broker.url})
        return
    click.echo(f"client  {__version__}")
    click.echo(
        f"server  {server['version']} at {invocation.broker.url} ({server['durability']})"
        if server
        else f"server  {reason}"
    )
