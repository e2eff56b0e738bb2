"""`driftq consume` and `driftq claim`: claim messages for a group."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from driftq.cli import messages, output
from driftq.cli.command import Invocation, broker_command, group_argument, topic_argument
from driftq.cli.output import until_reader_closes
from driftq.cli.param_types import DURATION, Moment

if TYPE_CHECKING:
    from driftq.client.message import Message

WAIT_MS = 20_000

_OPTIONS = (
    click.option("--lease", "lease_ms", type=DURATION, help="Length of the lease (default: the topic's)."),
    click.option(
        "--start",
        type=Moment(words=("earliest", "latest")),
        default="earliest",
        help="Where a new group starts: earliest, latest, a time, or 1h for an hour ago.",
    ),
    click.option("--task", help="Only messages for this handler."),
    click.option("--label", help="Only messages with this routing label."),
)


def _claim_options(function: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@click.command()
@topic_argument
@group_argument
@click.option("--count", "-n", type=click.IntRange(1), help="Stop after this many.")
@click.option("--drain", is_flag=True, help="Stop when there is nothing left to claim.")
@click.option("--no-ack", is_flag=True, help="Release messages after printing, so that they are delivered again.")
@click.option("--prefetch", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Messages per claim.")
@messages.raw_option
@_claim_options
@broker_command
def consume(
    invocation: Invocation,
    topic: str,
    group: str,
    count: int | None,
    drain: bool,
    no_ack: bool,
    prefetch: int,
    raw: bool,
    **options: Any,
) -> None:
    """Claim messages for GROUP, print them, and ack what was printed. Runs until Ctrl-C.

    Messages that were claimed and not printed are released. With --no-ack all are, at the end.

    \b
    Examples:
      driftq consume orders billing
      driftq consume orders export --drain --raw > orders.txt
      driftq consume orders audit --json | jq .value
    """
    done = 0
    unacked: list[Message] = []
    try:
        with until_reader_closes():
            while count is None or done < count:
                limit = prefetch if count is None else min(prefetch, count - done)
                claimed = invocation.broker.claim(topic, group, max=limit, wait_ms=0 if drain else WAIT_MS, **options)
                if not claimed and drain:
                    return
                done += len(claimed)
                _print_and_ack(invocation, topic, claimed, unacked, no_ack=no_ack, raw=raw)
    finally:
        if unacked:
            invocation.broker.release(unacked)


def _print_and_ack(
    invocation: Invocation, topic: str, claimed: list[Message], unacked: list[Message], *, no_ack: bool, raw: bool
) -> None:
    """Print, then ack. If printing fails, all are released."""
    try:
        for message in claimed:
            messages.show(topic, message.delivered, as_json=invocation.as_json, only_value=raw)
        output.flush()
    except BaseException:
        invocation.broker.release(claimed)
        raise
    if no_ack:
        unacked += claimed
    elif claimed:
        refused = invocation.broker.ack(claimed).refused
        if refused:
            expired = f"{len(refused)} leases expired before the ack; those messages are delivered again."
            output.note(f"{expired} Use a longer --lease")


@click.command()
@topic_argument
@group_argument
@click.option(
    "--count", "-n", type=click.IntRange(1, 10_000), default=1, show_default=True, help="Maximum number of messages."
)
@click.option("--wait", "wait_ms", type=DURATION, default=0, help="Wait up to this long for a message (at most 1m).")
@click.option("--owner", default="", help="Name of the owner (default: this process).")
@_claim_options
@broker_command
def claim(invocation: Invocation, topic: str, group: str, count: int, wait_ms: int, owner: str, **options: Any) -> None:
    """Claim messages under a lease, to ack, nack, release or extend them by hand.

    \b
    Examples:
      driftq claim orders billing --lease 10m
      driftq claim orders billing -n 5 --json > held; driftq ack orders billing - < held
    """
    broker = invocation.broker
    broker.owner = owner or broker.owner
    claimed = broker.claim(topic, group, max=count, wait_ms=min(wait_ms, 60_000), **options)
    for message in claimed:
        messages.show(topic, message.delivered, as_json=invocation.as_json)
    if not invocation.as_json and claimed:
        from driftq.wire.fields import to_rfc3339

        first = claimed[0].delivered
        token = f" --token {first.token}" if first.token else ""
        output.note(
            f"{len(claimed)} claimed until {to_rfc3339(first.lease_until_ms)}. When done:\n"
            f"  driftq ack {topic} {group} {first.partition}:{first.offset}{token}"
        )
    elif not claimed:
        output.note("There is nothing to claim.")
