"""`driftq groups`: how far each group is, and moving, pausing and deleting them."""

from __future__ import annotations

import click

from driftq.cli import output
from driftq.cli.command import Invocation, asks, confirmed, group_argument, topic_argument, topic_names, yes_option
from driftq.cli.param_types import Moment


@click.group()
def command() -> None:
    """Lag of groups; seek, pause, resume, delete."""


@command.command("list")
@click.argument("topic", required=False, default="", shell_complete=topic_names)
@asks
def list_(asked: Invocation, topic: str) -> None:
    """Every group, or those of TOPIC, with how far behind it is.

    Example: driftq groups list orders
    """
    found = asked.broker.groups.list(topic)
    if asked.as_json:
        output.document(found)
        return
    rows = (
        (
            each.topic, each.group, each.lag, output.age(each.lag_ms) if each.lag else "", each.in_flight,
            each.resting, "paused" if each.paused else "idle" if each.idle else "",
        )
        for each in found
    )  # fmt: skip
    header = ("TOPIC", "GROUP", "LAG", "OLDEST", "IN FLIGHT", "RESTING", "")
    output.table(header, rows, "No groups: a group is there from its first claim on.")


@command.command()
@topic_argument
@group_argument
@asks
def show(asked: Invocation, topic: str, group: str) -> None:
    """One group, partition by partition.

    Example: driftq groups show orders billing
    """
    found = asked.broker.groups.describe(topic, group)
    if asked.as_json:
        output.document(found)
        return
    output.fields(
        [
            ("topic", found.topic),
            ("group", found.group),
            ("created", found.created_at),
            ("last active", found.active_at),
            ("paused", found.paused),
            ("idle", found.idle),
            ("lag", found.lag),
            ("other tasks", found.unclaimed or None),
            ("oldest", output.age(found.lag_ms) if found.lag else ""),
            ("in flight", found.in_flight),
            ("resting", found.resting),
        ]
    )
    click.echo()
    header = ("PARTITION", "SETTLED TO", "CURSOR", "NEXT", "LAG", "IN FLIGHT", "RESTING", "GAPS")
    rows = (
        (each.partition, each.floor, each.cursor, each.end_offset, each.lag, each.in_flight, each.resting, each.gaps)
        for each in found.partitions
    )
    output.table(header, rows)


class _Target(Moment):
    """Also an offset."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return str(value) if str(value).isdecimal() else super().convert(value, param, ctx)


@command.command()
@topic_argument
@group_argument
@click.argument("to", type=_Target(words=("earliest", "latest")))
@click.option("--partition", "-p", type=click.IntRange(0), help="Only this one; an offset needs it.")
@asks
def seek(asked: Invocation, topic: str, group: str, to: str, partition: int | None) -> None:
    """Move a group TO earliest, latest, a time (RFC 3339, or 1h for an hour ago), or an offset of a partition.

    \b
    Examples:
      driftq groups seek orders billing 1h
      driftq groups seek orders billing 1200 --partition 0
    """
    if to.isdecimal() and partition is None:
        raise click.UsageError("an offset is one of a partition: add --partition N")
    asked.broker.groups.seek(topic, group, int(to) if to.isdecimal() else to, partition=partition)
    _said(asked, topic, group, "moved", to=to)


@command.command()
@topic_argument
@group_argument
@asks
def pause(asked: Invocation, topic: str, group: str) -> None:
    """Hand out nothing to a group until it is resumed; what is claimed stays claimed.

    Example: driftq groups pause orders billing
    """
    asked.broker.groups.pause(topic, group)
    _said(asked, topic, group, "paused")


@command.command()
@topic_argument
@group_argument
@asks
def resume(asked: Invocation, topic: str, group: str) -> None:
    """Let a paused group go on.

    Example: driftq groups resume orders billing
    """
    asked.broker.groups.resume(topic, group)
    _said(asked, topic, group, "resumed")


@command.command()
@topic_argument
@group_argument
@yes_option
@asks
def delete(asked: Invocation, topic: str, group: str, yes: bool) -> None:
    """Forget a group and how far it was; messages stay.

    Example: driftq groups delete orders billing --yes
    """
    found = asked.broker.groups.describe(topic, group)
    confirmed(f"Forget group {group} of {topic}, which has {found.lag:,} messages to go", yes)
    asked.broker.groups.delete(topic, group)
    _said(asked, topic, group, "deleted")


def _said(asked: Invocation, topic: str, group: str, done: str, **more: str) -> None:
    if asked.as_json:
        output.document({"topic": topic, "group": group, "status": done, **more})
    else:
        click.echo(f"{group} of {topic}: {done}" + "".join(f" {name} {value}" for name, value in more.items()))
