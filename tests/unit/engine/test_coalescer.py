"""Messages of many callers in one append: every caller hears what it would have heard alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftq.core.broker import Broker
from driftq.core.model import commands as c
from driftq.core.model.limits import BrokerLimits
from driftq.core.model.replies import Produced, Rejected, Reply
from driftq.engine import coalescer
from driftq.engine.clock import SystemChance
from driftq.engine.coalescer import Coalescer, PlainMessage
from driftq.engine.projection import StoreReader
from driftq.engine.sequencer import Sequencer
from driftq.storage.log_store import MemoryLogStore
from driftq.wire.errors import Code
from driftq.wire.records import read_header, unpack

NOW_MS = 1_000


class Desk:
    """A sequencer whose commits are made by hand, and the replies by caller."""

    def __init__(self, limits: BrokerLimits | None = None, room_bytes: int = 1 << 40) -> None:
        self.store = MemoryLogStore()
        broker = Broker(limits or BrokerLimits(), StoreReader(self.store), SystemChance())
        self.room_bytes = room_bytes
        self.sequencer = Sequencer(broker, self.store, 0, lambda: self.room_bytes)
        self.joiner = Coalescer(self.sequencer, lambda: NOW_MS)
        self.replies: dict[int, Reply] = {}
        self.told: list[Reply] = []
        self.sequencer.reply_observers.append(lambda command, reply: self.told.append(reply))
        self.submit(c.CreateTopic("t", 3))
        self.submit(c.CreateTopic("u", 1))
        self.submit(c.CreateGroup("t", "g"))
        self.commit()

    def submit(self, command: c.Command) -> None:
        self.sequencer.submit(command, NOW_MS, lambda reply: None)

    def commit(self) -> None:
        while (batch := self.sequencer.take_batch()) is not None:
            self.sequencer.on_durable(batch.expected_lsn + len(batch.frames))

    def send(self, number: int, topic: str, value: bytes, key: bytes = b"") -> None:
        def on_reply(reply: Reply) -> None:
            assert number not in self.replies, "a caller is answered once"
            self.replies[number] = reply

        self.joiner.add(PlainMessage(topic, value, key, on_reply))

    def flush(self) -> None:
        self.joiner.flush()
        self.commit()

    def records(self, topic: str) -> dict[tuple[int, int], tuple[bytes, bytes]]:
        """(partition, offset): value and key."""
        found = {}
        for partition, log_id in enumerate(self.sequencer.broker.state.topics[topic].log_ids):
            for batch in self.store.read(log_id, 0, 1 << 40, 1 << 40):
                for index, record in enumerate(unpack(batch)):
                    found[partition, read_header(batch).first_offset + index] = (record.value, record.key)
        return found


def test_messages_of_one_turn_become_one_frame_and_each_caller_gets_its_offset():
    desk = Desk()
    before = desk.sequencer.decided_lsn
    for number in range(5):
        desk.send(number, "t", b"value-%d" % number)
    assert not desk.replies, "nothing is decided before the turn ends"
    desk.joiner.flush()
    assert not desk.replies, "nothing is answered before it is durable"
    assert desk.sequencer.decided_lsn == before + 1
    desk.commit()
    assert [desk.replies[number] for number in range(5)] == [Produced("t", 0, number, 1) for number in range(5)]
    assert desk.records("t") == {(0, number): (b"value-%d" % number, b"") for number in range(5)}


def test_every_caller_counts_until_it_is_answered():
    desk = Desk()
    for number in range(5):
        desk.send(number, "t", b"value")
    assert desk.joiner.callers() == 5
    desk.joiner.flush()
    assert desk.joiner.callers() + desk.sequencer.waiting_replies() == 5
    desk.commit()
    assert desk.joiner.callers() + desk.sequencer.waiting_replies() == 0


def test_a_full_turn_does_not_wait_for_its_end(monkeypatch):
    monkeypatch.setattr(coalescer, "COUNT_MAX", 3)
    desk = Desk()
    for number in range(4):
        desk.send(number, "t", b"v")
    assert len(desk.joiner) == 1
    monkeypatch.setattr(coalescer, "TOTAL_BYTES_MAX", 10)
    desk.send(4, "t", b"0123456789")
    assert len(desk.joiner) == 0


def test_what_one_caller_may_not_send_is_refused_to_that_one_alone():
    desk = Desk(BrokerLimits(message_bytes=100))
    for number, value in enumerate((b"a", bytes(101), b"b")):
        desk.send(number, "t", value)
    desk.send(3, "nowhere", b"c")
    desk.send(4, "nowhere", b"d")
    desk.flush()
    codes = {number: reply.code if isinstance(reply, Rejected) else None for number, reply in desk.replies.items()}
    assert codes == {0: None, 1: Code.TOO_LARGE, 2: None, 3: Code.NOT_FOUND, 4: Code.NOT_FOUND}
    assert len(desk.told) == 3, "each refusal is counted once"


def test_a_partition_that_has_room_for_some_takes_the_first():
    desk = Desk(BrokerLimits(partition_messages=2))
    for number in range(4):
        desk.send(number, "t", b"v")
    desk.flush()
    assert [type(desk.replies[number]) for number in range(4)] == [Produced, Produced, Rejected, Rejected]


def test_a_full_disk_is_told_to_every_caller():
    desk = Desk()
    desk.room_bytes = 0
    for number in range(3):
        desk.send(number, "t", b"v")
    desk.flush()
    assert {reply.code for reply in desk.replies.values() if isinstance(reply, Rejected)} == {Code.DISK_FULL}
    assert len(desk.replies) == len(desk.told) == 3


def test_a_caller_that_fails_does_not_keep_the_others_from_their_answers():
    desk = Desk()
    errors: list[Exception] = []
    desk.sequencer.on_caller_error = errors.append

    def broken(reply: Reply) -> None:
        raise RuntimeError("gone")

    desk.send(0, "t", b"a")
    desk.joiner.add(PlainMessage("t", b"b", b"", broken))
    desk.send(2, "t", b"c")
    desk.flush()
    assert set(desk.replies) == {0, 2}
    assert [str(error) for error in errors] == ["gone"]


messages = st.lists(
    st.tuples(
        st.sampled_from(["t", "u", "nowhere"]),
        st.binary(min_size=1, max_size=40),
        st.sampled_from([b"", b"k1", b"k2", b"k3"]),
    ),
    max_size=30,
)


@given(turns=st.lists(messages, max_size=4), most=st.integers(1, 60))
def test_joined_means_the_same_as_one_by_one(turns, most):
    limits = BrokerLimits(partition_messages=most, message_bytes=38)
    joined, single = Desk(limits), Desk(limits)
    number = 0
    for turn in turns:
        for topic, value, key in turn:
            joined.send(number, topic, value, key)
            single.send(number, topic, value, key)
            single.flush()
            number += 1
        joined.flush()
    assert joined.replies == single.replies
    assert len(joined.told) == len(single.told)
    for topic in ("t", "u"):
        assert joined.records(topic) == single.records(topic)


@pytest.mark.parametrize("count", [1, 2])
def test_a_key_decides_the_partition_in_company_too(count):
    desk = Desk()
    for number in range(count):
        desk.send(number, "t", b"v", b"some key")
    desk.flush()
    alone = Desk()
    alone.send(0, "t", b"v", b"some key")
    alone.flush()
    first, other = desk.replies[0], alone.replies[0]
    assert isinstance(first, Produced)
    assert isinstance(other, Produced)
    assert first.partition == other.partition
