"""`driftq groups`: show the lag of groups; seek, pause, resume and delete them."""

from __future__ import annotations

import click

from driftq.cli import output
from driftq.cli.command import (
    Invocation,
    broker_command,
    confirm,
    group_argument,
    topic_argument,
    topic_names,
    yes_option,
)
from driftq.cli.param_types import Moment
from driftq.cli.watch import watchable


@click.group()
def command() -> None:
    """Show the lag of groups; seek, pause, resume and delete them."""


@command.command("list")
@click.argument("topic", required=False, default="", shell_complete=topic_names)
@broker_command
@watchable
def list_(invocation: Invocation, topic: str) -> None:
    """List all groups, or those of TOPIC, with their lag.

    IN FLIGHT messages are leased. WAITING ones are in backoff, or delayed until a time (`resting` in the JSON).

    Example: driftq groups list orders
    """
    groups = invocation.broker.groups.list(topic)
    if invocation.as_json:
        output.document(groups)
        return
    rows = (
        (
            info.topic, info.group, info.lag, output.age(info.lag_ms) if info.lag else "", info.in_flight,
            info.resting, "paused" if info.paused else "idle" if info.idle else "",
        )
        for info in groups
    )  # fmt: skip
    header = ("TOPIC", "GROUP", "LAG", "OLDEST", "IN FLIGHT", "WAITING", "")
    output.table(header, rows, "No groups. A group is created by its first claim.")


@command.command()
@topic_argument
@group_argument
@broker_command
def show(invocation: Invocation, topic: str, group: str) -> None:
    """Show one group, partition by partition. The columns are those of `driftq groups list`.

    Example: driftq groups show orders billing
    """
    info = invocation.broker.groups.describe(topic, group)
    if invocation.as_json:
        output.document(info)
        return
    output.fields(
        [
            ("topic", info.topic),
            ("group", info.group),
            ("created", info.created_at),
            ("last active", info.active_at),
            ("paused", info.paused),
            ("idle", info.idle),
            ("lag", info.lag),
            ("other tasks", info.unclaimed or None),
            ("oldest", output.age(info.lag_ms) if info.lag else ""),
            ("in flight", info.in_flight),
            ("waiting", info.resting),
        ]
    )
    click.echo()
    header = ("PARTITION", "SETTLED TO", "CURSOR", "NEXT", "LAG", "IN FLIGHT", "WAITING", "GAPS")
    rows = (
        (log.partition, log.floor, log.cursor, log.end_offset, log.lag, log.in_flight, log.resting, log.gaps)
        for log in info.partitions
    )
    output.table(header, rows)


class _Target(Moment):
    """A time, or an offset."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return str(value) if str(value).isdecimal() else super().convert(value, param, ctx)


@command.command(short_help="Move a group to another position.")
@topic_argument
@group_argument
@click.argument("to", type=_Target(words=("earliest", "latest")))
@click.option("--partition", "-p", type=click.IntRange(0), help="Only this partition; required with an offset.")
@broker_command
def seek(invocation: Invocation, topic: str, group: str, to: str, partition: int | None) -> None:
    """Move a group to earliest, latest, a time (RFC 3339, or 1h for an hour ago), or an offset of a partition.

    \b
    Examples:
      driftq groups seek orders billing 1h
      driftq groups seek orders billing 1200 --partition 0
    """
    if to.isdecimal() and partition is None:
        raise click.UsageError("an offset needs a partition: add --partition N")
    invocation.broker.groups.seek(topic, group, int(to) if to.isdecimal() else to, partition=partition)
    _report(invocation, topic, group, "moved", to=to)


@command.command()
@topic_argument
@group_argument
@broker_command
def pause(invocation: Invocation, topic: str, group: str) -> None:
    """Deliver nothing to a group until it is resumed. Messages that are claimed stay claimed.

    Example: driftq groups pause orders billing
    """
    invocation.broker.groups.pause(topic, group)
    _report(invocation, topic, group, "paused")


@command.command()
@topic_argument
@group_argument
@broker_command
def resume(invocation: Invocation, topic: str, group: str) -> None:
    """Resume a paused group.

    Example: driftq groups resume orders billing
    """
    invocation.broker.groups.resume(topic, group)
    _report(invocation, topic, group, "resumed")


@command.command()
@topic_argument
@group_argument
@yes_option
@broker_command
def delete(invocation: Invocation, topic: str, group: str, yes: bool) -> None:
    """Delete a group and its progress. Messages stay.

    Example: driftq groups delete orders billing --yes
    """
    info = invocation.broker.groups.describe(topic, group)
    confirm(f"Delete group {group} of {topic}, which has a lag of {info.lag:,} messages", yes)
    invocation.broker.groups.delete(topic, group)
    _report(invocation, topic, group, "deleted")


def _report(invocation: Invocation, topic: str, group: str, status: str, **more: str) -> None:
    if invocation.as_json:
        output.document({"topic": topic, "group": group, "status": status, **more})
    else:
        click.echo(f"{group} of {topic}: {status}" + "".join(f" {name} {value}" for name, value in more.items()))
