"""The engine: replies wait for the disk, claims wait in order, a failed disk stops all, a stop loses nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from driftq.core.model import commands as c
from driftq.core.model.replies import Claimed, Produced, Rejected, Reply, TopicReady
from driftq.engine.engine import Engine
from driftq.engine.folder_storage import StorageOptions
from driftq.engine.lifetime import EngineStopped
from driftq.storage.data_folder import FolderInUse
from driftq.wire.records import pack_one
from tests.support.faulty_storage import FaultyDisk
from tests.support.wait import until

BATCH = pack_one(b"value")
SMALL = StorageOptions(journal_segment_bytes=256 << 10, log_segment_bytes=64 << 10)


def produce(topic: str = "t") -> c.Produce:
    return c.Produce(topic, BATCH, 1, 5)


def in_memory(act: Callable[[Engine], Awaitable[None]]) -> None:
    async def run() -> None:
        engine = Engine.in_memory()
        try:
            assert isinstance(await engine.submit(c.CreateTopic("t")), TopicReady)
            await act(engine)
        finally:
            await engine.close()

    asyncio.run(run())


async def until_waiting(engine: Engine, count: int) -> None:
    async def enough() -> bool:
        return engine.watch.waiting(1) == count

    await until(enough, 10)


def test_a_bug_in_one_callers_callback_does_not_stop_the_others() -> None:
    async def act(engine: Engine) -> None:
        def broken(_: object) -> None:
            raise ValueError("a bug of the caller")

        engine.submit_to(produce(), broken)
        assert isinstance(await engine.submit(produce()), Produced)

    in_memory(act)


def test_a_claimer_waits_and_is_woken_by_the_message_it_waits_for() -> None:
    async def act(engine: Engine) -> None:
        waiting = asyncio.ensure_future(engine.claim(c.Claim("t", "g", "o", 5), wait_ms=10_000))
        await asyncio.sleep(0)
        await engine.submit(produce())
        claimed = await asyncio.wait_for(waiting, 5)
        assert isinstance(claimed, Claimed)
        assert claimed.deliveries[0].first == 0

    in_memory(act)


def test_a_message_that_arrives_while_a_claim_is_being_answered_is_not_missed() -> None:
    async def act(engine: Engine) -> None:
        await engine.claim(c.Claim("t", "g", "o", 1))
        for number in range(50):
            waiting = asyncio.ensure_future(engine.claim(c.Claim("t", "g", "o", 1), wait_ms=60_000))
            for _ in range(number % 5):
                await asyncio.sleep(0)
            engine.submit(produce())
            claimed = await asyncio.wait_for(waiting, 2)  # a missed call would be noticed after five seconds
            assert isinstance(claimed, Claimed)
            assert claimed.deliveries[0].first == number

    in_memory(act)


def test_one_message_wakes_one_of_many_claimers_and_the_others_keep_waiting() -> None:
    async def act(engine: Engine) -> None:
        claims = [asyncio.ensure_future(engine.claim(c.Claim("t", "g", f"o{n}", 1), wait_ms=60_000)) for n in range(50)]
        await until_waiting(engine, 50)
        for number in range(3):
            await engine.submit(produce())
            done, _ = await asyncio.wait(claims, timeout=5, return_when=asyncio.FIRST_COMPLETED)
            assert len(done) == 1, f"message {number}"
            claims = [claim for claim in claims if claim not in done]
        for claim in claims:
            claim.cancel()
        await asyncio.gather(*claims, return_exceptions=True)

    in_memory(act)


def test_a_claimer_that_leaves_the_line_passes_its_call_on() -> None:
    async def act(engine: Engine) -> None:
        first, second = (
            asyncio.ensure_future(engine.claim(c.Claim("t", "g", owner, 1), wait_ms=60_000)) for owner in "ab"
        )
        await until_waiting(engine, 2)
        first.cancel()
        await engine.submit(produce())
        claimed = await asyncio.wait_for(second, 5)
        assert isinstance(claimed, Claimed)
        assert len(claimed.deliveries) == 1

    in_memory(act)


def test_a_lease_that_runs_out_wakes_a_waiting_claimer_without_any_other_call() -> None:
    async def act(engine: Engine) -> None:
        await engine.submit(produce())
        await engine.claim(c.Claim("t", "g", "gone", 1, lease_ms=100))
        claimed = await asyncio.wait_for(engine.claim(c.Claim("t", "g", "next", 1), wait_ms=20_000), 10)
        assert isinstance(claimed, Claimed)
        assert claimed.deliveries[0].attempts == 2

    in_memory(act)


def test_a_reader_of_a_log_is_woken_when_it_grows() -> None:
    async def act(engine: Engine) -> None:
        waiting = asyncio.ensure_future(engine.watch.log(1, 10))
        await asyncio.sleep(0)
        await engine.submit(produce())
        assert await asyncio.wait_for(waiting, 5)
        assert await engine.watch.log(1, 0.01) is False

    in_memory(act)


def test_everything_asked_for_is_durable_after_a_close(tmp_path: Path) -> None:
    folder = str(tmp_path / "data")

    async def first() -> None:
        engine = await Engine.open(folder, options=SMALL)
        await engine.submit(c.CreateTopic("t"))
        calls = [engine.submit(produce()) for _ in range(500)]
        await engine.close()
        assert all(isinstance(call.result(), Produced) for call in calls)
        with pytest.raises(EngineStopped):
            engine.submit(produce())

    async def second() -> None:
        engine = await Engine.open(folder, options=SMALL)
        assert engine.durable_end(1) == 500
        with pytest.raises(FolderInUse):
            await Engine.open(folder)
        await engine.close()

    asyncio.run(first())
    asyncio.run(second())


def test_checkpoints_happen_beside_the_loop_and_keep_the_journal_short(tmp_path: Path) -> None:
    folder = tmp_path / "data"

    async def run() -> None:
        engine = await Engine.open(str(folder), options=SMALL)
        await engine.submit(c.CreateTopic("t"))
        large = c.Produce("t", pack_one(b"x" * 4_000), 1, 4_000)
        for _ in range(60):
            await asyncio.gather(*(engine.submit(large) for _ in range(10)))

        async def has_snapshot() -> bool:
            return any((folder / "snapshots").glob("*.snapshot"))

        await until(has_snapshot, 30)
        await engine.close()

    asyncio.run(run())

    async def again() -> None:
        engine = await Engine.open(str(folder), options=SMALL)
        assert engine.report is not None
        assert engine.report.snapshot_lsn > 0
        assert engine.durable_end(1) == 600
        await engine.close()

    asyncio.run(again())


def test_a_failed_sync_sends_no_reply_and_stops_the_engine(tmp_path: Path) -> None:
    async def run() -> None:
        disk = FaultyDisk()
        engine = await Engine.open(str(tmp_path / "data"), disk=disk, options=SMALL)
        await engine.submit(c.CreateTopic("t"))
        disk.fail_label = "journal.sync"
        calls = [engine.submit(produce()) for _ in range(3)]
        for call in calls:
            with pytest.raises(EngineStopped):
                await call
        with pytest.raises(EngineStopped):
            await engine.stopped
        with pytest.raises(EngineStopped):
            engine.submit(produce())
        await engine.close()

    asyncio.run(run())


class HeldUpDisk(FaultyDisk):
    """While `is_quick` is not set, a sync of the journal waits."""

    def __init__(self) -> None:
        super().__init__()
        self.is_quick = threading.Event()
        self.is_quick.set()

    def enter(self, label: str, path: str) -> None:
        if label == "journal.sync":
            assert self.is_quick.wait(20)
        super().enter(label, path)


def test_a_stop_leaves_the_leases_that_run_out_to_the_next_start(tmp_path: Path) -> None:
    async def run() -> None:
        disk = HeldUpDisk()
        engine = await Engine.open(str(tmp_path / "data"), disk=disk, options=SMALL)
        await engine.submit(c.CreateTopic("t"))
        await engine.submit(produce())
        claimed = await engine.submit(c.Claim("t", "g", "w", 1, lease_ms=100))
        assert isinstance(claimed, Claimed)
        disk.is_quick.clear()
        last = engine.submit(produce())
        closing = asyncio.ensure_future(engine.close())

        async def has_run_out() -> bool:
            return engine.now_ms() > claimed.until_ms + 50

        await until(has_run_out, 20)
        disk.is_quick.set()
        await closing
        assert isinstance(await last, Produced)
        assert engine.latest_state.topics["t"].groups["g"].progress[0].in_flight == 1, "a sweep ran during the stop"
        engine = await Engine.open(str(tmp_path / "data"), options=SMALL)

        async def is_expired() -> bool:
            return engine.latest_state.topics["t"].groups["g"].progress[0].in_flight == 0

        await until(is_expired, 20)
        await engine.close()

    asyncio.run(run())


def test_a_refusal_waits_for_what_it_rests_on(tmp_path: Path) -> None:
    """`topic already exists` may only be said when the topic is on disk."""

    async def run() -> None:
        engine = await Engine.open(str(tmp_path / "data"), options=SMALL)
        created = engine.submit(c.CreateTopic("t", 2))
        refused = engine.submit(c.CreateTopic("t", 3))
        assert not refused.done(), "nothing is durable yet"
        assert isinstance(await refused, Rejected)
        assert created.done()
        await engine.close()

    asyncio.run(run())


def test_messages_of_one_turn_are_joined_and_come_before_whatever_is_asked_after_them() -> None:
    async def act(engine: Engine) -> None:
        replies: list[Reply] = []
        before = engine.sequencer.decided_lsn
        for number in range(5):
            engine.produce_to("t", b"%d" % number, b"", replies.append)
        assert engine.sequencer.decided_lsn == before
        after = await engine.submit(produce())
        assert replies == [Produced("t", 0, number, 1) for number in range(5)]
        assert after == Produced("t", 0, 5, 1)
        assert engine.sequencer.decided_lsn == before + 2, "one frame for five messages, and one for the sixth"

    in_memory(act)


def test_a_stop_answers_messages_that_wait_to_be_joined(tmp_path: Path) -> None:
    async def run() -> None:
        engine = await Engine.open(str(tmp_path), options=SMALL)
        replies: list[Reply] = []
        await engine.submit(c.CreateTopic("t"))
        await asyncio.gather(*(engine.submit(produce()) for _ in range(9)))  # so that the next commit waits for nine
        for _ in range(3):
            engine.produce_to("t", b"value", b"", replies.append)
        engine.produce_to("nowhere", b"value", b"", replies.append)
        await engine.close()
        assert [type(reply) for reply in replies] == [Produced, Produced, Produced, Rejected]
        with pytest.raises(EngineStopped):
            engine.produce_to("t", b"value", b"", replies.append)
        again = await Engine.open(str(tmp_path), options=SMALL)
        assert again.durable_end(again.latest_state.topics["t"].log_ids[0]) == 12
        await again.close()

    asyncio.run(run())


def test_a_stop_ends_when_every_waiting_command_is_refused() -> None:
    async def act(engine: Engine) -> None:
        replies: list[Reply] = []
        engine.produce_to("nowhere", b"value", b"", replies.append)
        engine.produce_to("nowhere", b"value", b"", replies.append)
        await asyncio.wait_for(engine.close(), 5)
        assert [type(reply) for reply in replies] == [Rejected, Rejected]

    in_memory(act)


def test_a_producer_that_has_its_reply_can_read_its_message() -> None:
    async def act(engine: Engine) -> None:
        (log_id,) = engine.latest_state.topics["t"].log_ids
        seen: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()

        def on_reply(reply: Reply) -> None:
            seen.set_result((len(engine.read(log_id, 0, 9, 1_000)), engine.durable_end(log_id)))

        engine.submit_to(produce(), on_reply)
        assert await seen == (1, 1)

    in_memory(act)


def test_what_is_asked_from_inside_a_reply_is_decided_after_what_the_reply_says() -> None:
    async def act(engine: Engine) -> None:
        claimed: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        await engine.submit(c.CreateGroup("t", "g", "earliest"))
        claim = c.Claim("t", "g", "o", 5, 1_000)
        engine.submit_to(produce(), lambda _: engine.submit_to(claim, claimed.set_result))
        reply = await claimed
        assert isinstance(reply, Claimed)
        assert [delivery.first for delivery in reply.deliveries] == [0]

    in_memory(act)


def test_observers_get_the_facts_before_callers_get_their_replies() -> None:
    async def act(engine: Engine) -> None:
        order: list[str] = []
        engine.sequencer.observers.append(lambda lsn, facts: order.append("observed"))
        engine.submit_to(produce(), lambda _: order.append("replied"))
        await engine.submit(produce())
        order.append("replied")
        assert order == ["observed", "observed", "replied", "replied"]

    in_memory(act)
