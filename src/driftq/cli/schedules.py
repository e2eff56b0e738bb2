"""`driftq schedules`: create, list, show, pause, resume, run and delete schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from driftq.cli import output
from driftq.cli.command import Invocation, broker_command, confirm, topic_argument, yes_option
from driftq.cli.param_types import DURATION, PAIR, Moment
from driftq.cli.watch import watchable

if TYPE_CHECKING:
    from driftq.wire.schedules import ScheduleInfo

_moment = Moment(ahead=True)


@click.group()
def command() -> None:
    """Create, list, show, pause, resume, run and delete schedules.

    A schedule sends its message at each time of a cron expression, or at an interval. Each firing has the id
    `schedule@time` and is produced exactly once, whatever crashes.
    """


@command.command()
@click.argument("name")
@topic_argument
@click.argument("value")
@click.option("--cron", default="", help="Five fields, like '0 9 * * MON-FRI'; six with seconds in front.")
@click.option(
    "--timezone", default="UTC", show_default=True, help="Zone of --cron, like Europe/Paris; not for --every."
)
@click.option("--every", type=DURATION, default=0, help="An interval instead of --cron, like 15m.")
@click.option("--jitter", type=DURATION, default=0, help="Fire later by up to this much.")
@click.option(
    "--catch-up",
    type=click.Choice(["none", "last", "all"]),
    default="last",
    show_default=True,
    help="Which of the times to fire that passed while the broker was down.",
)
@click.option("--window", type=DURATION, default=0, help="A time that passed longer ago is missed; at most 366d.")
@click.option("--start", type=_moment, help="No time before this (e.g. 2030-01-31T12:00:00Z or 2h from now).")
@click.option("--end", type=_moment, help="No time after this.")
@click.option("--key", default="", help="Key of the message.")
@click.option("--task", default="", help="Task of the message: the workers of this task run it.")
@click.option("--priority", type=click.IntRange(0, 9), default=0, help="Priority of the message.")
@click.option("--timeout", type=DURATION, default=0, help="How long an attempt may take.")
@click.option("--tenant", default="", help="Tenant of the message.")
@click.option("--label", "labels", type=PAIR, multiple=True, metavar="NAME=VALUE", help="Label of the message.")
@click.option("--replace", is_flag=True, help="Change the schedule if it exists.")
@broker_command
def create(
    invocation: Invocation, name: str, topic: str, value: str, every: int, jitter: int, window: int, **options: Any
) -> None:
    """Create a schedule. Repeating the command has no further effect.

    Example: driftq schedules create report emails '{"to": "ann"}' --task mail.v1 --cron '0 9 * * MON-FRI' --timezone
    Europe/Paris
    """
    if bool(options["cron"]) == bool(every):
        raise click.UsageError("give either --cron or --every")
    options["labels"] = dict(options["labels"]) or None
    timeout_ms = options.pop("timeout")
    _show(
        invocation,
        invocation.broker.schedules.create(
            name, topic, value, every_ms=every, jitter_ms=jitter, catch_up_window_ms=window, timeout_ms=timeout_ms,
            **options,
        ),
    )  # fmt: skip


@command.command("list")
@click.argument("prefix", default="")
@click.option("--topic", default="", help="Only schedules of this topic.")
@click.option("--limit", type=click.IntRange(min=1), help="How many; all by default.")
@broker_command
@watchable
def list_(invocation: Invocation, prefix: str, topic: str, limit: int | None) -> None:
    """List schedules, each with its next time.

    Example: driftq schedules list reports.
    """
    schedules = invocation.broker.schedules.list(prefix, topic=topic, limit=limit)
    if invocation.as_json:
        output.document(schedules)
        return
    rows = (
        (
            schedule.name, schedule.state, schedule.topic, _rhythm(schedule), next(iter(schedule.next_times), "-"),
            schedule.firings, schedule.missed, output.shortened(schedule.error),
        )
        for schedule in schedules
    )  # fmt: skip
    header = ("SCHEDULE", "STATE", "TOPIC", "WHEN", "NEXT", "FIRINGS", "MISSED", "ERROR")
    output.table(header, rows, "No schedules. See `driftq schedules create`.")


@command.command()
@click.argument("name")
@broker_command
def show(invocation: Invocation, name: str) -> None:
    """Show a schedule with its next ten times.

    Example: driftq schedules show report
    """
    _show(invocation, invocation.broker.schedules.show(name))


@command.command()
@click.argument("name")
@broker_command
def pause(invocation: Invocation, name: str) -> None:
    """Pause a schedule: it does not fire until it is resumed.

    Example: driftq schedules pause report
    """
    invocation.broker.schedules.pause(name)
    _report(invocation, name, "paused")


@command.command()
@click.argument("name")
@broker_command
def resume(invocation: Invocation, name: str) -> None:
    """Resume a schedule from its next time on.

    Example: driftq schedules resume report
    """
    invocation.broker.schedules.resume(name)
    _report(invocation, name, "resumed")


@command.command()
@click.argument("name")
@click.option("--request-id", default="", help="A second run with the same id produces nothing.")
@broker_command
def run(invocation: Invocation, name: str, request_id: str) -> None:
    """Produce the message of a schedule now. Its times stay as they are.

    Example: driftq schedules run report
    """
    ran = invocation.broker.schedules.run(name, request_id=request_id)
    if invocation.as_json:
        output.document(ran)
        return
    duplicate = " (duplicate: nothing changed)" if ran.duplicate else ""
    click.echo(f"{ran.id}  {ran.topic} {ran.partition}:{ran.offset}{duplicate}")


@command.command()
@click.argument("name")
@yes_option
@broker_command
def delete(invocation: Invocation, name: str, yes: bool) -> None:
    """Delete a schedule. Its messages stay.

    Example: driftq schedules delete report --yes
    """
    confirm(f"Delete schedule {name}", yes)
    invocation.broker.schedules.delete(name)
    _report(invocation, name, "deleted")


def _report(invocation: Invocation, name: str, status: str) -> None:
    if invocation.as_json:
        output.document({"schedule": name, "status": status})
    else:
        click.echo(f"{name}: {status}")


def _rhythm(schedule: ScheduleInfo) -> str:
    if schedule.cron:
        return f"{schedule.cron} ({schedule.timezone})"
    return f"every {output.duration(schedule.every_ms)}"


def _show(invocation: Invocation, schedule: ScheduleInfo) -> None:
    if invocation.as_json:
        output.document(schedule)
        return
    last = schedule.last
    output.fields(
        [
            ("schedule", schedule.name),
            ("state", schedule.state),
            ("topic", schedule.topic),
            ("task", schedule.message.task or None),
            ("when", _rhythm(schedule)),
            ("jitter", f"up to {output.duration(schedule.jitter_ms)}" if schedule.jitter_ms else None),
            ("catch up", f"{schedule.catch_up}, up to {output.duration(schedule.catch_up_window_ms)}"),
            ("start", schedule.start or None),
            ("end", schedule.end or None),
            ("firings", f"{schedule.firings}, and {schedule.missed} missed"),
            ("last", f"{last.id} at {last.partition}:{last.offset}, {last.fired_at}" if last is not None else None),
            ("error", f"{schedule.error} ({schedule.error_at})" if schedule.error else None),
        ]
    )
    for time in schedule.next_times:
        click.echo(f"next: {time}")
