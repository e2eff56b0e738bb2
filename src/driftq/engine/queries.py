"""The one read path: every answer from the broker's state is a query.

A query looks at the state as of the last decision, at once. Its answer leaves when everything that was decided by then
is durable, as a reply to a command does: no answer shows what a crash can take back. It is immediate when everything is
durable already. Records are immutable and are read from the log store, which holds only durable ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from driftq.storage.cold_segments import ColdRange

if TYPE_CHECKING:
    from driftq.core.broker import Broker
    from driftq.core.context import LogReader
    from driftq.core.model.commands import Command
    from driftq.core.model.limits import BrokerLimits
    from driftq.core.model.replies import Reply
    from driftq.core.state.state import State
    from driftq.engine.cold_reads import ColdReads, RecordsAway
    from driftq.engine.sequencer import Sequencer

T = TypeVar("T")


class StateView:
    """What a query may look at, during its call and not after."""

    __slots__ = ("_broker", "limits", "now_ms", "reader", "state")

    def __init__(self, broker: Broker, now_ms: int) -> None:
        self._broker = broker
        self.state: State = broker.state
        self.reader: LogReader = broker.reader
        self.limits: BrokerLimits = broker.limits
        self.now_ms = now_ms

    def decide(self, command: Command) -> Reply:
        """The reply that a command would get now. Changes nothing."""
        return self._broker.decide(command, self.now_ms).reply


class Queries:
    """The queries of one engine."""

    def __init__(self, sequencer: Sequencer, now_ms: Callable[[], int], cold_reads: ColdReads | None = None) -> None:
        self._sequencer = sequencer
        self._cold_reads = cold_reads
        self._now_ms = now_ms
        self.limits = sequencer.broker.limits

    def run(
        self,
        look: Callable[[StateView], T],
        on_response: Callable[[T], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        """Look now; `on_response` is called when the answer may leave. Not called if the engine fails before that.
        A look that needs records which are only in the archive is repeated when they are here; `on_error` is called if
        they cannot be had."""
        view = StateView(self._sequencer.broker, self._now_ms())
        try:
            self._sequencer.query(partial(look, view), on_response)
        except ColdRange as cold:
            if self._cold_reads is None:
                raise
            self._cold_reads.fetch(cold, partial(self._look_again, look, on_response, on_error))

    def _look_again(
        self,
        look: Callable[[StateView], T],
        on_response: Callable[[T], None],
        on_error: Callable[[Exception], None],
        away: RecordsAway | None,
    ) -> None:
        try:
            if away is not None:
                raise away
            self.run(look, on_response, on_error)
        except Exception as error:  # of the look, which has no caller any more
            on_error(error)

    def offset_at(self, log_id: int, at_ms: int) -> int:
        """The first durable offset at or after a time."""
        return self._sequencer.broker.reader.offset_at(log_id, at_ms)

    def stored_end(self, log_id: int) -> int:
        """The end of what can be read of a log now; 0 if the log does not exist."""
        return self._sequencer.broker.reader.end(log_id)

    async def result(self, look: Callable[[StateView], T]) -> T:
        """`run` for a coroutine."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.run(look, partial(_resolve, future), partial(_fail, future))
        return await future


def known_time(reader: LogReader, log_id: int, offset: int) -> int:
    """When a record was appended; of one that is only in the archive, when the last of its neighbours was. For figures
    that are read often: they cause no download."""
    try:
        return reader.time_of(log_id, offset)
    except ColdRange as cold:
        return cold.at_ms


def _resolve(future: asyncio.Future[T], answer: T) -> None:
    if not future.done():
        future.set_result(answer)


def _fail(future: asyncio.Future[T], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
