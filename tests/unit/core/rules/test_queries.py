"""Questions about streams, and what a stream forgets by itself."""

from __future__ import annotations

from driftq.core.model import commands as c
from driftq.core.model.queries import ListStreams, ReadStream
from driftq.core.model.replies import Rejected
from driftq.core.model.stream_facts import StreamTouched
from driftq.engine.journal_room import JournalRoom
from driftq.engine.sequencer import Sequencer
from driftq.storage.log_store import MemoryLogStore
from tests.support.broker_fixture import BrokerFixture, packed


def append(fixture: BrokerFixture, path: str, *values: str) -> None:
    batch, count, payload_bytes = packed(*values)
    assert not isinstance(fixture.do(c.AppendStream(path, "text/plain", batch, count, payload_bytes)), Rejected)


def test_a_stream_forgets_what_is_older_than_it_keeps():
    fixture = BrokerFixture()
    fixture.do(c.CreateStream("s", "text/plain", retention_ms=1_000))
    fixture.do(c.CreateStream("all", "text/plain"))
    for path in ("s", "all"):
        append(fixture, path, "a", "b")
    fixture.advance(600)
    append(fixture, "s", "c")
    fixture.advance(600)
    fixture.regular_sweeps()
    assert (fixture.do(ReadStream("s")).start_offset, fixture.do(ReadStream("all")).start_offset) == (2, 0)


def test_a_stream_forgets_what_is_more_than_it_keeps_but_never_its_last_append():
    fixture = BrokerFixture()
    fixture.do(c.CreateStream("s", "text/plain", retention_bytes=1))
    for value in ("a", "b", "c"):
        append(fixture, "s", value)
    fixture.regular_sweeps()
    assert fixture.do(ReadStream("s")).start_offset == 2


def test_the_beginning_of_a_chain_of_forks_is_found_through_its_sources():
    fixture = BrokerFixture()
    fixture.do(c.CreateStream("a", "text/plain"))
    append(fixture, "a", "1", "2", "3", "4")
    fixture.do(c.CreateStream("b", source="a", fork_offset=3))
    append(fixture, "b", "5")
    fixture.do(c.CreateStream("c", source="b"))
    view = fixture.do(ReadStream("c"))
    assert (view.start_offset, view.end_offset) == (0, 4)
    assert [(first, end) for _, first, end in view.inherited] == [(0, 3), (3, 4)]
    fixture.do(c.TrimStream("a", 2))
    assert [fixture.do(ReadStream(path)).start_offset for path in "abc"] == [2, 2, 2]
    fixture.do(c.TrimStream("a", 4))
    assert [fixture.do(ReadStream(path)).start_offset for path in "abc"] == [4, 3, 3]


def test_looking_renews_nothing_and_reading_does_once_in_a_while():
    fixture = BrokerFixture()
    fixture.do(c.CreateStream("s", "text/plain", ttl_s=10))
    fixture.advance(2_000)
    assert not fixture.take(ReadStream("s", renews=False)).facts
    assert [type(fact) for fact in fixture.take(ReadStream("s")).facts] == [StreamTouched]
    assert not fixture.take(ReadStream("s")).facts
    fixture.advance(9_000)
    assert not isinstance(fixture.do(ReadStream("s")), Rejected)


def test_a_listing_is_in_order_and_knows_what_came_and_went():
    fixture = BrokerFixture()
    for number in range(3_000):
        fixture.do(c.CreateStream(f"x/{number:04d}", "text/plain"))
        if number >= 5:
            fixture.do(c.DeleteStream(f"x/{number:04d}"))
    fixture.do(c.CreateStream("y/1", "text/plain"))
    fixture.do(c.CreateStream("x/0002", "text/plain"))
    listed = fixture.do(ListStreams("x/", limit=2))
    assert ([stream.path for stream in listed.streams], listed.more) == (["x/0000", "x/0001"], True)
    listed = fixture.do(ListStreams("x/", "x/0001", 10))
    assert ([stream.path for stream in listed.streams], listed.more) == (["x/0002", "x/0003", "x/0004"], False)
    assert [stream.path for stream in fixture.do(ListStreams()).streams][-1] == "y/1"
    there = fixture.restarted()
    assert list(there.state.streams.paths_from("", "")) == list(fixture.broker.state.streams.paths_from("", ""))


def test_no_query_shows_an_end_that_is_not_durable():
    sequencer = Sequencer(BrokerFixture().broker, MemoryLogStore(), 0, JournalRoom(1 << 40))
    answers: list[object] = []
    sequencer.submit(c.CreateStream("s", "text/plain"), 0, answers.append)
    sequencer.submit(ReadStream("s", renews=False), 0, answers.append)
    sequencer.submit(ListStreams(), 0, answers.append)
    assert answers == []
    batch = sequencer.take_batch(100)
    assert batch is not None
    sequencer.on_durable(batch.expected_lsn + len(batch.frames))
    assert len(answers) == 3
