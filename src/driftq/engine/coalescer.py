"""Single messages of many callers, joined: those that arrive in one turn of the loop, or while a sync runs, become one
append for each partition instead of one each.

A joined append means the same as its parts one after the other: nothing else was asked in between (the engine sees to
that), each caller is told its own offset, and where a part might be refused all of them are asked one by one. It only
costs less: one decision, one frame and one batch to read later.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from driftq.core.model import commands as c
from driftq.core.model.replies import Produced, Reply
from driftq.wire.partitions import partition_of
from driftq.wire.records import pack_columns, pack_one

if TYPE_CHECKING:
    from driftq.engine.sequencer import OnReply, Sequencer

COUNT_MAX = 1_000
TOTAL_BYTES_MAX = 1 << 20
VALUE_BYTES_MAX = 64 << 10  # a larger one gains nothing by company


class PlainMessage(NamedTuple):
    topic: str
    value: bytes
    key: bytes
    on_reply: OnReply
    partition: int | None = None  # chosen for a message that may go to any

    def alone(self) -> c.Produce:
        size = len(self.value) + len(self.key)
        return c.Produce(self.topic, pack_one(self.value, self.key), 1, size, self.key, self.partition)


class Coalescer:
    """Messages that wait to be written down together."""

    def __init__(self, sequencer: Sequencer, now_ms: Callable[[], int]) -> None:
        self._sequencer = sequencer
        self._now_ms = now_ms
        self._waiting: list[PlainMessage] = []
        self._waiting_bytes = 0
        self._in_company = 0  # callers that wait for a reply which the sequencer counts as another's

    def __len__(self) -> int:
        return len(self._waiting)

    def callers(self) -> int:
        """How many wait whom the sequencer does not know of."""
        return len(self._waiting) + self._in_company

    def add(self, message: PlainMessage) -> None:
        self._waiting.append(message)
        self._waiting_bytes += len(message.value)
        if len(self._waiting) >= COUNT_MAX or self._waiting_bytes >= TOTAL_BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        """Let all that wait be decided, those of one partition in the order they came."""
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if len(waiting) == 1:
            self._one_by_one(waiting)
            return
        places: dict[tuple[str, int], list[PlainMessage]] = {}
        topics = self._sequencer.broker.state.topics
        for message in waiting:
            topic = topics.get(message.topic) if message.key else None
            partition = partition_of(message.key, len(topic.log_ids)) if topic is not None else message.partition or 0
            places.setdefault((message.topic, partition), []).append(message)
        for (name, partition), messages in places.items():
            self._together(name, partition, messages)

    def _together(self, topic: str, partition: int, messages: list[PlainMessage]) -> None:
        _, values, keys, callers, _ = zip(*messages, strict=True)
        now_ms = self._now_ms()
        largest = min(VALUE_BYTES_MAX, self._sequencer.broker.limits.message_bytes)
        if len(messages) > 1 and max(map(len, values)) + max(map(len, keys)) <= largest:
            size = sum(map(len, values)) + sum(map(len, keys))
            command = c.Produce(topic, pack_columns(values, keys), len(values), size, partition=partition)
            if not self._sequencer.refuses(command, now_ms):
                self._in_company += len(callers) - 1
                self._sequencer.submit(command, now_ms, partial(self._answer, callers))
                return
        self._one_by_one(messages)

    def _one_by_one(self, messages: list[PlainMessage]) -> None:
        for message in messages:
            self._sequencer.submit(message.alone(), self._now_ms(), message.on_reply)

    def _answer(self, callers: tuple[OnReply, ...], reply: Reply) -> None:
        """Tell each of those who were written down together its own offset."""
        self._in_company -= len(callers) - 1
        for index, on_reply in enumerate(callers):
            own = reply
            if type(reply) is Produced:
                own = Produced(reply.topic, reply.partition, reply.first_offset + index, 1)
            try:
                on_reply(own)
            except Exception as error:
                self._sequencer.on_caller_error(error)
