"""`driftq consume` and `driftq claim`: taking messages in the name of a group."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from driftq.cli import messages, output
from driftq.cli.command import Invocation, asks, group_argument, topic_argument
from driftq.cli.output import while_read
from driftq.cli.param_types import DURATION, Moment

if TYPE_CHECKING:
    from driftq.client.message import Message

WAIT_MS = 20_000

_OPTIONS = (
    click.option("--lease", "lease_ms", type=DURATION, help="How long they are yours (default: the topic's)."),
    click.option(
        "--start",
        type=Moment(words=("earliest", "latest")),
        default="earliest",
        help="Where a new group begins: earliest, latest, a time, or 1h for an hour ago.",
    ),
    click.option("--task", help="Only messages for this handler."),
    click.option("--label", help="Only messages the router gave this label."),
)


def _claim_options(function: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@click.command()
@topic_argument
@group_argument
@click.option("--count", "-n", type=click.IntRange(1), help="End after this many.")
@click.option("--drain", is_flag=True, help="End when nothing is left to be claimed now.")
@click.option("--no-ack", is_flag=True, help="Give each back after printing it; it will come again.")
@click.option("--prefetch", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Claimed at a time.")
@messages.raw_option
@_claim_options
@asks
def consume(
    asked: Invocation,
    topic: str,
    group: str,
    count: int | None,
    drain: bool,
    no_ack: bool,
    prefetch: int,
    raw: bool,
    **words: Any,
) -> None:
    """Take messages for GROUP, print them, and ack what was printed. Runs until Ctrl-C.

    What was claimed and not printed goes back uncounted. With --no-ack everything does, at the end.

    \b
    Examples:
      driftq consume orders billing
      driftq consume orders export --drain --raw > orders.txt
      driftq consume orders audit --json | jq .value
    """
    done = 0
    looked: list[Message] = []
    try:
        with while_read():
            while count is None or done < count:
                most = prefetch if count is None else min(prefetch, count - done)
                found = asked.broker.claim(topic, group, max=most, wait_ms=0 if drain else WAIT_MS, **words)
                if not found and drain:
                    return
                done += len(found)
                _hand_out(asked, topic, found, looked, no_ack=no_ack, raw=raw)
    finally:
        if looked:
            asked.broker.release(looked)


def _hand_out(
    asked: Invocation, topic: str, found: list[Message], looked: list[Message], *, no_ack: bool, raw: bool
) -> None:
    """Print, then ack. Whatever happens on the way, what was not printed is given back."""
    printed: list[Message] = []
    try:
        for message in found:
            messages.show(topic, message.delivered, as_json=asked.as_json, only_value=raw)
            printed.append(message)
        output.flush()
    except BaseException:
        asked.broker.release(found)
        raise
    if no_ack:
        looked += found
    elif found:
        refused = asked.broker.ack(found).refused
        if refused:
            output.remark(f"{len(refused)} of them were lost before the ack and will come again: a longer --lease?")


@click.command()
@topic_argument
@group_argument
@click.option("--count", "-n", type=click.IntRange(1, 10_000), default=1, show_default=True, help="At most so many.")
@click.option("--wait", "wait_ms", type=DURATION, default=0, help="Wait up to this long for the first (at most 1m).")
@click.option("--owner", default="", help="In whose name (default: this process).")
@_claim_options
@asks
def claim(asked: Invocation, topic: str, group: str, count: int, wait_ms: int, owner: str, **words: Any) -> None:
    """Take messages under a lease and keep them: ack, nack, release or extend them by hand.

    \b
    Examples:
      driftq claim orders billing --lease 10m
      driftq claim orders billing -n 5 --json > held; driftq ack orders billing - < held
    """
    broker = asked.broker
    broker.owner = owner or broker.owner
    found = broker.claim(topic, group, max=count, wait_ms=min(wait_ms, 60_000), **words)
    for message in found:
        messages.show(topic, message.delivered, as_json=asked.as_json)
    if not asked.as_json and found:
        from driftq.wire.fields import to_rfc3339

        first = found[0].delivered
        token = f" --token {first.token}" if first.token else ""
        output.remark(
            f"{len(found)} held until {to_rfc3339(first.lease_until_ms)}. When done:\n"
            f"  driftq ack {topic} {group} {first.partition}:{first.offset}{token}"
        )
    elif not found:
        output.remark("Nothing to claim now.")
