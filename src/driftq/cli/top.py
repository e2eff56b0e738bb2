"""`driftq top`: the state of a broker, live."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from driftq.cli import output
from driftq.cli.command import Invocation, broker_command
from driftq.cli.param_types import DURATION

if TYPE_CHECKING:
    from driftq.wire.overview import OverviewReply

CLEAR = "\x1b[2J\x1b[H"


@click.command()
@click.option("--every", "every_ms", type=DURATION, default="2s", show_default=True, help="The time between updates.")
@click.option(
    "--count", type=click.IntRange(min=0), default=0, help="Stop after so many updates; without it, at Ctrl-C."
)
@click.option("--sort", default="lag", show_default=True, help="Order of the groups: lag, rate, in_flight, name.")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="How many groups.")
@broker_command
def command(invocation: Invocation, every_ms: int, count: int, sort: str, limit: int) -> None:
    """Show the state of a server and the groups with the most lag, and keep it current.

    Output that is not a terminal is written once.

    Example: driftq top --every 5s --sort rate
    """
    shown, is_live = 0, output.is_terminal() and not invocation.as_json
    while True:
        overview = invocation.broker.overview()
        groups = invocation.broker.groups.sorted(sort=sort, limit=limit)
        if invocation.as_json:
            output.document({"overview": overview, "groups": groups})
        else:
            if is_live:
                click.echo(CLEAR, nl=False)
            _show(overview)
            rows = (
                (group.topic, group.group, group.lag, output.age(group.lag_ms), group.in_flight, group.resting)
                for group in groups
            )
            output.table(("TOPIC", "GROUP", "LAG", "OLDEST", "IN FLIGHT", "WAITING"), rows, "No groups.")
        shown += 1
        if shown == count or (not count and not is_live):
            return
        output.flush()
        time.sleep(every_ms / 1_000)


def _show(overview: OverviewReply) -> None:
    counts, rates, latency = overview.counts, overview.rates, overview.latency
    free = output.size(overview.disk.free_bytes) if overview.disk is not None else "in memory"
    per_second = (
        f"{rates.produced:,.0f} produced, {rates.delivered:,.0f} delivered, {rates.settled:,.0f} settled, "
        f"{rates.failed:,.1f} failed, {rates.stream_records:,.0f} stream records"
    )
    now = (
        f"{counts.topics:,} topics, {counts.groups:,} groups, {counts.streams:,} streams, {counts.lag:,} lag, "
        f"{counts.in_flight:,} in flight, {counts.dead_letters:,} dead letters, {counts.workers:,} workers"
    )
    delays = (
        f"commit {latency.commit_p50_ms:g} / {latency.commit_p99_ms:g} ms, fsync {latency.fsync_p50_ms:g} / "
        f"{latency.fsync_p99_ms:g} ms (p50 / p99), {overview.stalls.count} stalls"
    )
    output.fields(
        [
            ("server", f"{overview.version}, up {output.age(overview.uptime_ms)}, {overview.durability}"),
            ("per second", per_second),
            ("now", now),
            ("latency", delays),
            ("disk free", free),
        ]
    )
    for item in overview.attention:
        click.echo(f"{item.severity}: {output.printable(item.text)}")
    click.echo()
