"""Group commit: every caller of a coalesced append gets the reply it would have got alone; a commit waits for callers
that are expected back, but not for long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftq.core.broker import Broker
from driftq.core.model import commands as c
from driftq.core.model.limits import BrokerLimits
from driftq.core.model.replies import Produced, Rejected, Reply
from driftq.engine import group_commit
from driftq.engine.clock import SystemChance
from driftq.engine.group_commit import DELAY_MAX_S, INLINE_BYTES_MAX, QUICK_APPENDS, QUICK_S, GroupCommit, PlainMessage
from driftq.engine.journal_room import JournalRoom
from driftq.engine.projection import StoreReader
from driftq.engine.sequencer import Sequencer
from driftq.storage.log_store import MemoryLogStore
from driftq.wire.errors import Code
from driftq.wire.records import read_header, unpack

NOW_MS = 1_000


class Commits:
    """A group commit that is driven by hand, and the reply of each caller."""

    def __init__(self, limits: BrokerLimits | None = None, room_bytes: int = 1 << 40) -> None:
        self.store = MemoryLogStore()
        broker = Broker(limits or BrokerLimits(), StoreReader(self.store), SystemChance())
        self.sequencer = Sequencer(broker, self.store, 0, JournalRoom(room_bytes))
        self.group = GroupCommit(self.sequencer, lambda: NOW_MS)
        self.replies: dict[int, Reply] = {}
        self.refused: list[Reply] = []
        self.sequencer.reply_observers.append(lambda command, reply: self.refused.append(reply))
        self.submit(c.CreateTopic("t", 3))
        self.submit(c.CreateTopic("u", 1))
        self.submit(c.CreateGroup("t", "g"))
        self.commit()

    def submit(self, command: c.Command) -> None:
        self.group.submit(command, NOW_MS, lambda reply: None)

    def commit(self) -> None:
        while (batch := self.group.take_batch()) is not None:
            self.group.on_durable(batch.expected_lsn + len(batch.frames))

    def send(self, number: int, topic: str, value: bytes, key: bytes = b"") -> None:
        def on_reply(reply: Reply) -> None:
            assert number not in self.replies, "a caller is answered once"
            self.replies[number] = reply

        self.group.produce(PlainMessage(topic, value, key, on_reply))

    def flush(self) -> None:
        self.group.flush()
        self.commit()

    def records(self, topic: str) -> dict[tuple[int, int], tuple[bytes, bytes]]:
        """(partition, offset): value and key."""
        by_log = {}
        for partition, log_id in enumerate(self.sequencer.broker.state.topics[topic].log_ids):
            for batch in self.store.read(log_id, 0, 1 << 40, 1 << 40):
                for index, record in enumerate(unpack(batch)):
                    by_log[partition, read_header(batch).first_offset + index] = (record.value, record.key)
        return by_log


def test_messages_of_one_turn_become_one_frame_and_each_caller_gets_its_offset():
    commits = Commits()
    before = commits.sequencer.decided_lsn
    for number in range(5):
        commits.send(number, "t", b"value-%d" % number)
    assert not commits.replies, "nothing is decided before the turn ends"
    commits.group.flush()
    assert not commits.replies, "nothing is answered before it is durable"
    assert commits.sequencer.decided_lsn == before + 1
    commits.commit()
    assert [commits.replies[number] for number in range(5)] == [Produced("t", 0, number, 1) for number in range(5)]
    assert commits.records("t") == {(0, number): (b"value-%d" % number, b"") for number in range(5)}


def test_every_caller_counts_until_it_has_its_reply():
    commits = Commits()
    for number in range(5):
        commits.send(number, "t", b"value")
    assert commits.group.callers() == 5
    commits.group.flush()
    assert commits.group.callers() == 5
    commits.commit()
    assert commits.group.callers() == 0


def test_a_full_append_does_not_wait_for_the_end_of_the_turn(monkeypatch):
    monkeypatch.setattr(group_commit, "COALESCED_MAX", 3)
    commits = Commits()
    before = commits.sequencer.decided_lsn
    for number in range(4):
        commits.send(number, "t", b"v")
    assert commits.sequencer.decided_lsn == before + 1, "three are decided, the fourth waits"
    monkeypatch.setattr(group_commit, "COALESCED_BYTES_MAX", 10)
    commits.send(4, "t", b"0123456789")
    assert commits.sequencer.decided_lsn == before + 2


def test_a_message_that_must_be_refused_is_refused_alone():
    commits = Commits(BrokerLimits(message_bytes=100))
    for number, value in enumerate((b"a", bytes(101), b"b")):
        commits.send(number, "t", value)
    commits.send(3, "nowhere", b"c")
    commits.send(4, "nowhere", b"d")
    commits.flush()
    codes = {number: reply.code if isinstance(reply, Rejected) else None for number, reply in commits.replies.items()}
    assert codes == {0: None, 1: Code.TOO_LARGE, 2: None, 3: Code.NOT_FOUND, 4: Code.NOT_FOUND}
    assert len(commits.refused) == 3, "each refusal is counted once"


def test_a_partition_with_room_for_some_messages_takes_the_first_ones():
    commits = Commits(BrokerLimits(partition_messages=2))
    for number in range(4):
        commits.send(number, "t", b"v")
    commits.flush()
    assert [type(commits.replies[number]) for number in range(4)] == [Produced, Produced, Rejected, Rejected]


def test_a_full_disk_refuses_every_caller():
    commits = Commits()
    commits.sequencer.room.free_bytes = 0
    for number in range(3):
        commits.send(number, "t", b"v")
    commits.flush()
    assert {reply.code for reply in commits.replies.values() if isinstance(reply, Rejected)} == {Code.DISK_FULL}
    assert len(commits.replies) == len(commits.refused) == 3


def test_a_caller_whose_callback_raises_does_not_affect_the_others():
    commits = Commits()
    errors: list[Exception] = []
    commits.sequencer.on_caller_error = errors.append

    def broken(reply: Reply) -> None:
        raise RuntimeError("gone")

    commits.send(0, "t", b"a")
    commits.group.produce(PlainMessage("t", b"b", b"", broken))
    commits.send(2, "t", b"c")
    commits.flush()
    assert set(commits.replies) == {0, 2}
    assert [str(error) for error in errors] == ["gone"]


messages = st.lists(
    st.tuples(
        st.sampled_from(["t", "u", "nowhere"]),
        st.binary(min_size=1, max_size=40),
        st.sampled_from([b"", b"k1", b"k2", b"k3"]),
    ),
    max_size=30,
)


@given(turns=st.lists(messages, max_size=4), partition_messages=st.integers(1, 60))
def test_coalesced_messages_mean_the_same_as_single_ones(turns, partition_messages):
    limits = BrokerLimits(partition_messages=partition_messages, message_bytes=38)
    coalesced, single = Commits(limits), Commits(limits)
    number = 0
    for turn in turns:
        for topic, value, key in turn:
            coalesced.send(number, topic, value, key)
            single.send(number, topic, value, key)
            single.flush()
            number += 1
        coalesced.flush()
    assert coalesced.replies == single.replies
    assert len(coalesced.refused) == len(single.refused)
    for topic in ("t", "u"):
        assert coalesced.records(topic) == single.records(topic)


@pytest.mark.parametrize("count", [1, 2])
def test_a_key_chooses_the_partition_of_a_coalesced_message(count):
    commits = Commits()
    for number in range(count):
        commits.send(number, "t", b"v", b"some key")
    commits.flush()
    alone = Commits()
    alone.send(0, "t", b"v", b"some key")
    alone.flush()
    first, other = commits.replies[0], alone.replies[0]
    assert isinstance(first, Produced)
    assert isinstance(other, Produced)
    assert first.partition == other.partition


# --- the commit delay ---

SYNC_S = 0.0004


def after_a_commit_of(callers: int, append_s: float) -> Commits:
    """At time 0 a commit has just answered so many callers."""
    commits = Commits()
    for number in range(callers):
        commits.send(number, "t", b"v")
    commits.flush()
    commits.group.start_delay(append_s, 0.0)
    commits.send(callers, "t", b"v")
    return commits


def test_the_first_commit_is_not_delayed():
    commits = Commits()
    commits.send(0, "t", b"v")
    assert not commits.group.is_delayed(0.0)


def test_a_commit_waits_until_as_many_callers_are_back_as_the_last_one_answered():
    commits = after_a_commit_of(5, SYNC_S)
    assert commits.group.is_delayed(0.0)
    for number in range(6, 9):
        commits.send(number, "t", b"v")
        assert commits.group.is_delayed(SYNC_S / 2)
    commits.send(9, "t", b"v")
    assert not commits.group.is_delayed(SYNC_S / 2)


def test_a_commit_waits_no_longer_than_the_last_append_took():
    commits = after_a_commit_of(5, SYNC_S)
    assert commits.group.is_delayed(0.9 * SYNC_S)
    assert not commits.group.is_delayed(1.1 * SYNC_S)


def test_on_a_slow_disk_a_commit_waits_for_a_moment_and_not_for_a_whole_sync():
    commits = after_a_commit_of(5, 30 * DELAY_MAX_S)
    assert commits.group.is_delayed(0.9 * DELAY_MAX_S)
    assert not commits.group.is_delayed(1.1 * DELAY_MAX_S)


def test_a_lone_caller_is_never_delayed():
    assert not after_a_commit_of(1, SYNC_S).group.is_delayed(0.0)


def after_quick_appends(count: int) -> Commits:
    """A lone caller whose last `count` commits were quick, and who sends again."""
    commits = Commits()
    for number in range(count):
        commits.send(number, "t", b"v")
        commits.flush()
        commits.group.start_delay(QUICK_S / 2, 0.0)
    commits.send(count, "t", b"v")
    return commits


def is_inline(commits: Commits) -> bool:
    batch = commits.group.take_batch()
    assert batch is not None
    return commits.group.is_inline(batch)


def test_a_lone_caller_on_a_quick_disk_is_committed_inline():
    assert is_inline(after_quick_appends(QUICK_APPENDS))
    assert not is_inline(after_quick_appends(QUICK_APPENDS - 1))


def test_one_slow_append_moves_the_work_back_to_the_thread():
    commits = after_quick_appends(QUICK_APPENDS)
    commits.group.start_delay(QUICK_S, 0.0)
    assert not is_inline(commits)


def test_a_second_caller_or_a_large_batch_is_not_committed_inline():
    commits = after_quick_appends(QUICK_APPENDS)
    commits.send(QUICK_APPENDS + 1, "t", b"v")
    assert not is_inline(commits)
    commits = after_quick_appends(QUICK_APPENDS)
    commits.flush()
    commits.send(QUICK_APPENDS + 1, "t", b"v" * (INLINE_BYTES_MAX + 1))
    assert not is_inline(commits)
