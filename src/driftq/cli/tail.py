"""`driftq tail`: a topic as it goes by, read without a group, so that nobody's messages are taken."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from driftq.cli import messages, output
from driftq.cli.command import Invocation, asks, topic_argument
from driftq.cli.output import while_read
from driftq.cli.param_types import Moment

if TYPE_CHECKING:
    from driftq.client.api import AsyncDriftQ
    from driftq.wire.message import StoredMessage

WAIT_MS = 30_000


@click.command()
@topic_argument
@click.option(
    "--last", "-n", type=click.IntRange(0), default=10, show_default=True, help="Begin so many before the end."
)
@click.option(
    "--from", "start", type=Moment(words=("earliest", "latest")), help="Begin at earliest, latest, a time, 1h ago."
)
@click.option("--partition", "-p", "chosen", type=click.IntRange(0), multiple=True, help="Only these partitions.")
@click.option("--count", type=click.IntRange(1), help="End after this many.")
@click.option("--no-follow", is_flag=True, help="End at the end.")
@messages.raw_option
@asks
def command(
    asked: Invocation,
    topic: str,
    last: int,
    start: str | None,
    chosen: tuple[int, ...],
    count: int | None,
    no_follow: bool,
    raw: bool,
) -> None:
    """Watch a topic. Nothing is claimed, no group is touched. Runs until Ctrl-C.

    \b
    Examples:
      driftq tail orders
      driftq tail orders --from 1h --no-follow --json | jq .key
      driftq tail dlq.orders
    """
    at = start if start not in (None, "earliest", "latest") else None
    places = [
        each for each in asked.broker.topics.offsets(topic, at=at).partitions if not chosen or each.partition in chosen
    ]
    missing = set(chosen) - {each.partition for each in places}
    if missing:
        raise click.UsageError(f"{topic} has no partition {min(missing)}")
    begin: dict[int, int] = {}
    for each in places:
        shown = {None: max(each.start, each.end - last), "earliest": each.start, "latest": each.end}
        begin[each.partition] = each.at if at is not None and each.at is not None else shown.get(start, each.end)
    ends = {each.partition: each.end for each in places} if no_follow else {}
    watch = _Watch(asked, topic, begin, ends, count, raw)
    with while_read():
        asyncio.run(watch.run())


class _Watch:
    """One long read for each partition; lines come as they arrive."""

    def __init__(
        self, asked: Invocation, topic: str, begin: dict[int, int], ends: dict[int, int], count: int | None, raw: bool
    ) -> None:
        self._asked = asked
        self._topic = topic
        self._begin = begin
        self._ends = ends
        self._left = count
        self._raw = raw

    async def run(self) -> None:
        async with self._asked.broker.asynchronous() as broker:
            tasks = [asyncio.ensure_future(self._read(broker, each)) for each in self._begin]
            try:
                # The first end ends all, if it is an error or the count is full; else all go to their own.
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

        offset = self._begin[partition]
        while (end := self._ends.get(partition)) is None or offset < end:
            try:
                found = await broker.topics.fetch(self._topic, partition, offset, wait_ms=0 if end else WAIT_MS)
            except Gone as gone:
                offset = int(gone.earliest)
                output.remark(f"partition {partition} begins at {offset} now; what was before is gone")
                continue
            offset = found.next_offset
            if not self._show(each for each in found.messages if end is None or each.offset < end):
                return

    def _show(self, found: Iterable[StoredMessage]) -> bool:
        """False when enough was shown."""
        for message in found:
            if self._left == 0:
                return False
            messages.show(self._topic, message, as_json=self._asked.as_json, only_value=self._raw)
            if self._left is not None:
                self._left -= 1
        output.flush()
        return self._left != 0
