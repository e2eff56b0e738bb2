"""The sequencer: replies and answers wait for the disk, in order; batches are bounded; a full journal refuses work."""

from __future__ import annotations

from driftq.core.broker import Broker
from driftq.core.model import commands as c
from driftq.core.model.limits import BrokerLimits
from driftq.core.model.replies import Produced, Rejected, Reply, TopicReady
from driftq.engine.clock import SystemChance
from driftq.engine.group_commit import COMMIT_FRAMES_MAX
from driftq.engine.journal_room import JournalRoom
from driftq.engine.projection import StoreReader
from driftq.engine.sequencer import Sequencer
from driftq.storage.log_store import MemoryLogStore
from driftq.wire.errors import Code
from driftq.wire.records import pack_one


class Commits:
    """A sequencer that is driven by hand."""

    def __init__(self, room_bytes: int = 1 << 40, **sizes: int) -> None:
        self.store = MemoryLogStore()
        broker = Broker(BrokerLimits(), StoreReader(self.store), SystemChance())
        self.sequencer = Sequencer(broker, self.store, 0, JournalRoom(room_bytes, **sizes))
        self.replies: list[Reply] = []

    def submit(self, command: c.Command) -> None:
        self.sequencer.submit(command, 1_000, self.replies.append)

    def produce(self, value: bytes = b"value") -> None:
        self.submit(c.Produce("t", pack_one(value), 1, len(value)))

    def commit(self, frames_max: int = COMMIT_FRAMES_MAX) -> int:
        batch = self.sequencer.take_batch(frames_max)
        if batch is None:
            return 0
        self.sequencer.on_durable(batch.expected_lsn + len(batch.frames))
        return len(batch.frames)


def test_replies_leave_when_their_frame_is_durable_and_in_order():
    commits = Commits()
    commits.submit(c.CreateTopic("t", 1))
    commits.produce()
    commits.submit(c.CreateTopic("t", 2))
    assert commits.replies == []
    assert commits.commit() == 2, "a refusal makes no frame"
    assert [type(reply) for reply in commits.replies] == [TopicReady, Produced, Rejected]


def test_a_refusal_leaves_at_once_when_everything_is_durable():
    commits = Commits()
    commits.produce()
    assert [type(reply) for reply in commits.replies] == [Rejected]


def test_a_query_sees_the_last_decision_and_answers_when_that_is_durable():
    commits = Commits()
    answers: list[int] = []
    commits.submit(c.CreateTopic("t", 1))
    commits.sequencer.query(lambda: len(commits.sequencer.broker.state.topics), answers.append)
    assert answers == []
    commits.commit()
    assert answers
    assert answers[0] > 0


def test_only_one_batch_is_taken_at_a_time():
    commits = Commits()
    commits.submit(c.CreateTopic("t", 1))
    batch = commits.sequencer.take_batch(COMMIT_FRAMES_MAX)
    assert batch is not None
    commits.produce()
    assert commits.sequencer.take_batch(COMMIT_FRAMES_MAX) is None
    commits.sequencer.on_durable(batch.expected_lsn + len(batch.frames))
    assert commits.commit() == 1


def test_a_batch_holds_no_more_than_a_block_and_no_more_frames_than_can_be_answered_at_once():
    commits = Commits(block_bytes=600)
    commits.submit(c.CreateTopic("t", 1))
    commits.commit()
    for _ in range(10):
        commits.produce(bytes(100))
    sizes = []
    while count := commits.commit():
        sizes.append(count)
    assert sum(sizes) == 10
    assert 1 < max(sizes) < 6
    commits = Commits()
    commits.submit(c.CreateTopic("t", 1))
    for _ in range(6):
        commits.produce()
    assert [commits.commit(3) for _ in range(4)] == [3, 3, 1, 0]


def test_observers_and_the_log_store_come_before_the_reply():
    commits = Commits()
    events: list[str] = []
    commits.submit(c.CreateTopic("t", 1))
    commits.commit()
    (log_id,) = commits.sequencer.broker.state.topics["t"].log_ids
    commits.sequencer.observers.append(lambda lsn, facts: events.append(f"frame {lsn}"))
    command = c.Produce("t", pack_one(b"v"), 1, 1)
    commits.sequencer.submit(command, 1_000, lambda reply: events.append(f"end {commits.store.end(log_id)}"))
    commits.commit()
    assert events == ["frame 2", "end 1"]


def test_new_work_is_refused_when_the_journal_has_no_room_and_taken_when_it_has_again():
    commits = Commits()
    commits.submit(c.CreateTopic("t", 1))
    commits.commit()
    commits.sequencer.room.free_bytes = 0
    assert commits.sequencer.is_full()
    commits.produce()
    refused = commits.replies[-1]
    assert isinstance(refused, Rejected)
    assert refused.code is Code.DISK_FULL
    commits.sequencer.room.free_bytes = 1 << 40
    assert not commits.sequencer.is_full()
    commits.produce()
    commits.commit()
    assert isinstance(commits.replies[-1], Produced)


def test_new_work_is_refused_while_too_much_waits_for_the_disk():
    commits = Commits(unsynced_bytes_max=500)
    commits.submit(c.CreateTopic("t", 1))
    for _ in range(10):
        commits.produce(bytes(200))
    codes = {reply.code for reply in commits.replies if isinstance(reply, Rejected)}
    assert codes == {Code.OVERLOADED}
    while commits.commit():
        pass
    commits.produce()
    commits.commit()
    assert isinstance(commits.replies[-1], Produced)
