"""`driftq consume` and `claim` take messages of a topic for a group; `driftq tail` follows a topic without claiming."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from driftq.cli import messages, output
from driftq.cli.command import Invocation, broker_command, group_argument, topic_argument
from driftq.cli.output import until_reader_closes
from driftq.cli.param_types import DURATION, Moment

if TYPE_CHECKING:
    from driftq.client.api import AsyncDriftQ
    from driftq.client.message import Message
    from driftq.wire.message import StoredMessage

CLAIM_WAIT_MS = 20_000
TAIL_WAIT_MS = 30_000

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
                claimed = invocation.broker.claim(
                    topic, group, max=limit, wait_ms=0 if drain else CLAIM_WAIT_MS, **options
                )
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


@click.command()
@topic_argument
@click.option(
    "--last",
    "-n",
    type=click.IntRange(0),
    default=10,
    show_default=True,
    help="Start this many messages before the end.",
)
@click.option(
    "--from",
    "start",
    type=Moment(words=("earliest", "latest")),
    help="Start at earliest, latest, a time, or 1h for an hour ago.",
)
@click.option("--partition", "-p", "partitions", type=click.IntRange(0), multiple=True, help="Only these partitions.")
@click.option("--count", type=click.IntRange(1), help="Stop after this many.")
@click.option("--no-follow", is_flag=True, help="Stop at the end of the topic.")
@messages.raw_option
@broker_command
def tail(
    invocation: Invocation,
    topic: str,
    last: int,
    start: str | None,
    partitions: tuple[int, ...],
    count: int | None,
    no_follow: bool,
    raw: bool,
) -> None:
    """Follow a topic without claiming messages. Runs until Ctrl-C.

    \b
    Examples:
      driftq tail orders
      driftq tail orders --from 1h --no-follow --json | jq .key
      driftq tail dlq.orders
    """
    at = start if start not in (None, "earliest", "latest") else None
    offsets = invocation.broker.topics.offsets(topic, at=at).partitions
    logs = [log for log in offsets if not partitions or log.partition in partitions]
    missing = set(partitions) - {log.partition for log in logs}
    if missing:
        raise click.UsageError(f"{topic} has no partition {min(missing)}")
    starts: dict[int, int] = {}
    for log in logs:
        named = {None: max(log.start, log.end - last), "earliest": log.start, "latest": log.end}
        starts[log.partition] = log.at if at is not None and log.at is not None else named.get(start, log.end)
    ends = {log.partition: log.end for log in logs} if no_follow else {}
    follower = _Follower(invocation, topic, starts, ends, count, raw)
    with until_reader_closes():
        asyncio.run(follower.run())


class _Follower:
    """One long poll for each partition; messages are printed as they arrive."""

    def __init__(
        self,
        invocation: Invocation,
        topic: str,
        starts: dict[int, int],
        ends: dict[int, int],
        count: int | None,
        raw: bool,
    ) -> None:
        self._invocation = invocation
        self._topic = topic
        self._starts = starts
        self._ends = ends
        self._left = count
        self._raw = raw

    async def run(self) -> None:
        async with self._invocation.broker.asynchronous() as broker:
            tasks = [asyncio.ensure_future(self._read(broker, partition)) for partition in self._starts]
            try:
                # An error or a full count ends all reads; otherwise each ends by itself.
                while tasks:
                    done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        task.result()
                    if self._left == 0:
                        return
                    tasks = list(rest)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, broker: AsyncDriftQ, partition: int) -> None:
        from driftq.client.errors import Gone

        offset = self._starts[partition]
        while (end := self._ends.get(partition)) is None or offset < end:
            try:
                fetched = await broker.topics.fetch(self._topic, partition, offset, wait_ms=0 if end else TAIL_WAIT_MS)
            except Gone as gone:
                offset = int(gone.earliest)
                output.note(f"partition {partition} starts at {offset} now; earlier messages are gone")
                continue
            offset = fetched.next_offset
            if not self._show(message for message in fetched.messages if end is None or message.offset < end):
                return

    def _show(self, fetched: Iterable[StoredMessage]) -> bool:
        """False if enough messages were printed."""
        for message in fetched:
            if self._left == 0:
                return False
            messages.show(self._topic, message, as_json=self._invocation.as_json, only_value=self._raw)
            if self._left is not None:
                self._left -= 1
        output.flush()
        return self._left != 0
