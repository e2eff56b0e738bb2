"""Group commit: which commands share one sync, and when that sync starts.

A sync costs the same for one frame as for a thousand, so commands that wait for the disk at the same time share one.

    submit(command) ──────────────────────────────┐
                                                  ▼
    produce(message) ──▶ plain messages ──▶ Sequencer: decide, apply, frame
                         (coalesced on flush)     │
                                                  ▼
                   take_batch() ──▶ Journal.append ──▶ on_durable(lsn) ──▶ replies

Five rules decide what is in a commit, and where it runs:

- **One at a time.** While a commit runs, the frames of the next one collect. A slow disk makes larger commits, not a
  longer queue of them.
- **Commit delay.** Callers that send their next request only after a reply tend to split into two halves: while the
  sync of one half runs, the other half arrives and waits, and every sync carries only half of them. So a commit waits
  until as many callers wait as the last commit answered, but never longer than one sync took, and never longer than
  `DELAY_MAX_S`. If the guess is wrong, it costs no more than the extra sync would have cost.
- **Coalescing.** Single messages without special properties that wait for the same commit become one append per
  partition. It means the same as separate appends: no other command is decided between them, each caller gets its own
  offset, and if the joined append would be refused, each message is decided alone and gets its own reply. It only costs
  less: one decision, one frame, and one batch to read later.

- **Bounded.** A commit has at most `COMMIT_FRAMES_MAX` frames, and at most one block of the journal (`block_bytes`).
- **Inline.** Handing an append to another thread and back costs a lone caller more than a quick sync does. So the
  driver appends by itself when one caller waits, the last commit answered no other, the batch is small, and the last
  `QUICK_APPENDS` appends were quick. A second caller or one slow append moves the work back to the thread.

What the driver must do (`engine.committer` with asyncio and a thread, the simulation with a disk that forgets):

1. Pass commands to `submit` and plain messages to `produce`.
2. While `has_work()` and no commit runs: ask `is_delayed(now_s)` now and then. When it is False, call `take_batch()`.
3. Append the batch to the journal: in place if `is_inline(batch)`, else without holding up `submit`. If that fails,
   stop: nothing that waits may be answered.
4. Call `on_durable(lsn)`, then `start_delay(append_s, now_s)`, and continue with step 2.

There is no clock and no asyncio in here: the driver passes the time.
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
    from driftq.engine.frame_queue import CommitBatch
    from driftq.engine.sequencer import OnReply, Sequencer

DELAY_MAX_S = 0.001  # a caller that takes longer to send its next request is not waited for
COMMIT_FRAMES_MAX = 2_048  # the replies of one commit are released in one go, and nothing else runs until then
QUICK_S = 0.002  # an append that takes longer holds the driver up too long
QUICK_APPENDS = 16  # so many in a row make a disk quick
INLINE_BYTES_MAX = 256 << 10
COALESCED_MAX = 1_000  # messages
COALESCED_BYTES_MAX = 1 << 20
COALESCED_VALUE_BYTES_MAX = 64 << 10  # larger values do not benefit from sharing a batch


class PlainMessage(NamedTuple):
    """A message with nothing but a topic, a key and a value: it may share an append with others."""

    topic: str
    value: bytes
    key: bytes
    on_reply: OnReply
    partition: int | None = None  # for a message without a key, chosen by the server

    def command(self) -> c.Produce:
        """The command that appends this message alone."""
        size = len(self.value) + len(self.key)
        return c.Produce(self.topic, pack_one(self.value, self.key), 1, size, self.key, self.partition)


class GroupCommit:
    """The commit policy of one sequencer."""

    def __init__(self, sequencer: Sequencer, now_ms: Callable[[], int], *, may_inline: bool = True) -> None:
        self._sequencer = sequencer
        self._may_inline = may_inline  # False: an append may wait for more than the disk
        self._now_ms = now_ms  # the broker's time, for commands that are decided on a flush
        self._plain: list[PlainMessage] = []  # messages that are not decided yet, in order of arrival
        self._plain_bytes = 0  # of their values
        self._coalesced_callers = 0  # callers beyond the first of each coalesced append that is not durable yet
        self._expected_callers = 0  # callers that the last commit answered, or that waited for the next one already
        self._delay_until_s = 0.0  # the next commit waits for them no longer than this
        self._quick_appends = 0  # quick appends in a row, up to now

    # --- for callers ---

    def submit(self, command: c.Command, now_ms: int, on_reply: OnReply) -> None:
        """Decide a command, after the plain messages that arrived before it."""
        if self._plain:
            self.flush()
        self._sequencer.submit(command, now_ms, on_reply)

    def produce(self, message: PlainMessage) -> None:
        """Take a message that is decided when the next commit starts, or when something else is submitted."""
        self._plain.append(message)
        self._plain_bytes += len(message.value)
        if len(self._plain) >= COALESCED_MAX or self._plain_bytes >= COALESCED_BYTES_MAX:
            self.flush()

    # --- for the driver ---

    def has_work(self) -> bool:
        """Whether there is something for a commit that has not started yet."""
        return bool(self._plain or self._sequencer.waiting_frames())

    def callers(self) -> int:
        """How many callers wait for a reply."""
        return self._sequencer.waiting_replies() + len(self._plain) + self._coalesced_callers

    def is_delayed(self, now_s: float) -> bool:
        """Whether the next commit should wait for callers that are expected back."""
        return self.callers() < self._expected_callers and now_s < self._delay_until_s

    def take_batch(self) -> CommitBatch | None:
        """The frames of the next commit; None if there are none."""
        if self._plain:
            self.flush()
        return self._sequencer.take_batch(COMMIT_FRAMES_MAX)

    def is_inline(self, batch: CommitBatch) -> bool:
        """Whether the driver should append this batch in place, because only one caller waits and the disk is quick."""
        if (
            not self._may_inline
            or self._quick_appends < QUICK_APPENDS
            or self._expected_callers > 1
            or self.callers() > 1
        ):
            return False
        return sum(map(len, batch.frames)) <= INLINE_BYTES_MAX

    def on_durable(self, lsn: int) -> None:
        """The commit up to `lsn` ended: publish its facts and answer its callers."""
        self._expected_callers = self.callers()
        self._sequencer.on_durable(lsn)

    def start_delay(self, append_s: float, now_s: float) -> None:
        """The callers were answered just now; the commit's append took `append_s`."""
        self._quick_appends = self._quick_appends + 1 if append_s < QUICK_S else 0
        self._delay_until_s = now_s + min(DELAY_MAX_S, append_s)

    # --- coalescing ---

    def flush(self) -> None:
        """Decide all plain messages, those of one partition in order of arrival."""
        plain, self._plain, self._plain_bytes = self._plain, [], 0
        if len(plain) == 1:
            self._submit_each(plain)
            return
        by_partition: dict[tuple[str, int], list[PlainMessage]] = {}
        topics = self._sequencer.broker.state.topics
        for message in plain:
            topic = topics.get(message.topic) if message.key else None
            partition = partition_of(message.key, len(topic.log_ids)) if topic is not None else message.partition or 0
            by_partition.setdefault((message.topic, partition), []).append(message)
        for (name, partition), messages in by_partition.items():
            self._submit_coalesced(name, partition, messages)

    def _submit_coalesced(self, topic: str, partition: int, messages: list[PlainMessage]) -> None:
        _, values, keys, callers, _ = zip(*messages, strict=True)
        now_ms = self._now_ms()
        largest_bytes = min(COALESCED_VALUE_BYTES_MAX, self._sequencer.broker.limits.message_bytes)
        if len(messages) > 1 and max(map(len, values)) + max(map(len, keys)) <= largest_bytes:
            size = sum(map(len, values)) + sum(map(len, keys))
            command = c.Produce(topic, pack_columns(values, keys), len(values), size, partition=partition)
            if not self._sequencer.refuses(command, now_ms):
                self._coalesced_callers += len(callers) - 1
                self._sequencer.submit(command, now_ms, partial(self._reply_to_each, callers))
                return
        self._submit_each(messages)

    def _submit_each(self, messages: list[PlainMessage]) -> None:
        for message in messages:
            self._sequencer.submit(message.command(), self._now_ms(), message.on_reply)

    def _reply_to_each(self, callers: tuple[OnReply, ...], reply: Reply) -> None:
        """Give each caller of a coalesced append its own offset."""
        self._coalesced_callers -= len(callers) - 1
        for index, on_reply in enumerate(callers):
            own = reply
            if type(reply) is Produced:
                own = Produced(reply.topic, reply.partition, reply.first_offset + index, 1)
            try:
                on_reply(own)
            except Exception as error:
                self._sequencer.on_caller_error(error)
