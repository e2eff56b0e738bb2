"""`driftq clock`: compare the broker's clock with its machine's, and accept the machine's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from driftq.cli import output
from driftq.cli.command import Invocation, broker_command, confirm, yes_option

if TYPE_CHECKING:
    from driftq.wire.server_info import ClockInfo


@click.group()
def command() -> None:
    """Show the broker's clock and its machine's; accept the machine's."""


@command.command()
@broker_command
def show(invocation: Invocation) -> None:
    """Show the broker's time and its machine's, and whether they disagree.

    Example: driftq clock show
    """
    _show(invocation, invocation.broker.read_clock())


@command.command()
@yes_option
@broker_command
def accept(invocation: Invocation, yes: bool) -> None:
    """Set the broker's time to the machine's clock, whether that is earlier or later.

    Leases and backoffs keep their remaining time. Deadlines, expiry and retention use the new time.

    Example: driftq clock accept --yes
    """
    clock = invocation.broker.read_clock()
    confirm(f"Set the broker's time from {clock.broker_at} to {clock.machine_at}", yes)
    _show(invocation, invocation.broker.accept_clock())


def _show(invocation: Invocation, clock: ClockInfo) -> None:
    if invocation.as_json:
        output.document(clock)
        return
    output.fields([("broker", clock.broker_at), ("machine", clock.machine_at), ("ahead", f"{clock.ahead_ms} ms")])
    if clock.held:
        click.echo(f"\n{clock.advice[0].upper()}{clock.advice[1:]}")
