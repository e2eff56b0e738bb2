"""`driftq tail`: follow a topic without a group, so that no messages are claimed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from driftq.cli import messages, output
from driftq.cli.command import Invocation, broker_command, topic_argument
from driftq.cli.output import until_reader_closes
from driftq.cli.param_types import Moment

if TYPE_CHECKING:
    from driftq.client.api import AsyncDriftQ
    from driftq.wire.message import StoredMessage

WAIT_MS = 30_000


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
def command(
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
    tail = _Tail(invocation, topic, starts, ends, count, raw)
    with until_reader_closes():
        asyncio.run(tail.run())


class _Tail:
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
                fetched = await broker.topics.fetch(self._topic, partition, offset, wait_ms=0 if end else WAIT_MS)
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
