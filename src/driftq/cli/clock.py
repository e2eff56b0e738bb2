"""`driftq clock`: the broker's time beside its machine's, and accepting the machine's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from driftq.cli import output
from driftq.cli.command import Invocation, asks, confirmed, yes_option

if TYPE_CHECKING:
    from driftq.wire.server_info import ClockInfo


@click.group()
def command() -> None:
    """The broker's time beside the machine's; accept the machine's."""


@command.command()
@asks
def show(asked: Invocation) -> None:
    """The broker's time and its machine's, and whether they disagree.

    Example: driftq clock show
    """
    _show(asked, asked.broker.read_clock())


@command.command()
@yes_option
@asks
def accept(asked: Invocation, yes: bool) -> None:
    """Accept the machine's clock as the broker's time, be it earlier or later.

    Leases and backoffs keep the time they had left. Deadlines, expiry and retention follow the new time.

    Example: driftq clock accept --yes
    """
    found = asked.broker.read_clock()
    confirmed(f"Set the broker's time from {found.broker_at} to {found.machine_at}", yes)
    _show(asked, asked.broker.accept_clock())


def _show(asked: Invocation, found: ClockInfo) -> None:
    if asked.as_json:
        output.document(found)
        return
    output.fields([("broker", found.broker_at), ("machine", found.machine_at), ("ahead", f"{found.ahead_ms} ms")])
    if found.held:
        click.echo(f"\n{found.advice[0].upper()}{found.advice[1:]}")
