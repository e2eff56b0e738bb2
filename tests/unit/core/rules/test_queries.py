"""Questions about streams, and what a stream forgets by itself."""

from __future__ import annotations

from driftq.core.model import commands as c
from driftq.core.model.queries import ListStreams, ReadStream
from driftq.core.model.replies import Rejected
from driftq.core.model.stream_facts import StreamTouched
from driftq.engine.sequencer import Sequencer
from driftq.storage.log_store import MemoryLogStore
from tests.support.broker_fixture import BrokerFixture, packed


def append(desk: BrokerFixture, path: str, *values: str) -> None:
    batch, count, payload_bytes = packed(*values)
    assert not isinstance(desk.do(c.AppendStream(path, "text/plain", batch, count, payload_bytes)), Rejected)


def test_a_stream_forgets_what_is_older_than_it_keeps():
    desk = BrokerFixture()
    desk.do(c.CreateStream("s", "text/plain", retention_ms=1_000))
    desk.do(c.CreateStream("all", "text/plain"))
    for path in ("s", "all"):
        append(desk, path, "a", "b")
    desk.advance(600)
    append(desk, "s", "c")
    desk.advance(600)
    desk.do(c.Sweep(retention=True))
    assert (desk.do(ReadStream("s")).start_offset, desk.do(ReadStream("all")).start_offset) == (2, 0)


def test_a_stream_forgets_what_is_more_than_it_keeps_but_never_its_last_append():
    desk = BrokerFixture()
    desk.do(c.CreateStream("s", "text/plain", retention_bytes=1))
    for value in ("a", "b", "c"):
        append(desk, "s", value)
    desk.do(c.Sweep(retention=True))
    assert desk.do(ReadStream("s")).start_offset == 2


def test_the_beginning_of_a_chain_of_forks_is_found_through_its_sources():
    desk = BrokerFixture()
    desk.do(c.CreateStream("a", "text/plain"))
    append(desk, "a", "1", "2", "3", "4")
    desk.do(c.CreateStream("b", source="a", fork_offset=3))
    append(desk, "b", "5")
    desk.do(c.CreateStream("c", source="b"))
    view = desk.do(ReadStream("c"))
    assert (view.start_offset, view.end_offset) == (0, 4)
    assert [(first, end) for _, first, end in view.inherited] == [(0, 3), (3, 4)]
    desk.do(c.TrimStream("a", 2))
    assert [desk.do(ReadStream(path)).start_offset for path in "abc"] == [2, 2, 2]
    desk.do(c.TrimStream("a", 4))
    assert [desk.do(ReadStream(path)).start_offset for path in "abc"] == [4, 3, 3]


def test_looking_renews_nothing_and_reading_does_once_in_a_while():
    desk = BrokerFixture()
    desk.do(c.CreateStream("s", "text/plain", ttl_s=10))
    desk.advance(2_000)
    assert not desk.take(ReadStream("s", renews=False)).facts
    assert [type(fact) for fact in desk.take(ReadStream("s")).facts] == [StreamTouched]
    assert not desk.take(ReadStream("s")).facts
    desk.advance(9_000)
    assert not isinstance(desk.do(ReadStream("s")), Rejected)


def test_a_listing_is_in_order_and_knows_what_came_and_went():
    desk = BrokerFixture()
    for number in range(3_000):
        desk.do(c.CreateStream(f"x/{number:04d}", "text/plain"))
        if number >= 5:
            desk.do(c.DeleteStream(f"x/{number:04d}"))
    desk.do(c.CreateStream("y/1", "text/plain"))
    desk.do(c.CreateStream("x/0002", "text/plain"))
    listed = desk.do(ListStreams("x/", limit=2))
    assert ([each.path for each in listed.streams], listed.more) == (["x/0000", "x/0001"], True)
    listed = desk.do(ListStreams("x/", "x/0001", 10))
    assert ([each.path for each in listed.streams], listed.more) == (["x/0002", "x/0003", "x/0004"], False)
    assert [each.path for each in desk.do(ListStreams()).streams][-1] == "y/1"
    there = desk.restarted()
    assert list(there.state.streams.paths_from("", "")) == list(desk.broker.state.streams.paths_from("", ""))


def test_nobody_is_told_of_an_end_that_is_not_durable():
    sequencer = Sequencer(BrokerFixture().broker, MemoryLogStore(), 0, 1 << 40)
    answers: list[object] = []
    sequencer.submit(c.CreateStream("s", "text/plain"), 0, answers.append)
    sequencer.submit(ReadStream("s", renews=False), 0, answers.append)
    sequencer.submit(ListStreams(), 0, answers.append)
    assert answers == []
    batch = sequencer.take_batch(100)
    assert batch is not None
    sequencer.on_durable(batch.expected_lsn + len(batch.frames))
    assert len(answers) == 3
