"""Thousands of dead letters: no call holds the loop for long, and none costs more than what it shows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from driftq.core.model import commands as c
from driftq.core.model.limits import BrokerLimits
from driftq.core.model.replies import Claimed
from driftq.server import dead_letter_index, dead_letter_scan
from driftq.server.dead_letter_index import LetterIndex
from tests.support.broker_fixture import packed
from tests.support.handler_fixture import HandlerFixture, handler_fixture
from tests.support.loop_turns import LoopTurns, measured

TURN_S = 0.02
LETTERS = 10_000


async def make_dead_letters(at: HandlerFixture, count: int, group: str = "g") -> None:
    """Messages that die, each hundred with another number in its error."""
    for first in range(0, count, 1_000):
        batch, records, size = packed(*[f"value {number}" for number in range(first, min(first + 1_000, count))])
        await at.engine.submit(c.Produce("t", batch, records, size, partition=0))
        while True:
            claimed = await at.engine.submit(c.Claim("t", group, "w", 100))
            assert isinstance(claimed, Claimed)
            if not claimed.deliveries:
                break
            held = tuple(c.Held(run.partition, run.first, run.end, claimed.token) for run in claimed.deliveries)
            error = f"timeout after {held[0].first} ms"
            await at.engine.submit(c.RejectMessages("t", group, "w", held, error))


@asynccontextmanager
async def with_letters(count: int, limits: BrokerLimits | None = None) -> AsyncIterator[HandlerFixture]:
    async with handler_fixture(limits=limits) as at:
        await at.call("POST", "/v1/topics", {"name": "t"})
        await make_dead_letters(at, count)
        yield at


async def cost(
    at: HandlerFixture, method: str, target: str, body: object = None
) -> tuple[dict[str, object], LoopTurns]:
    reply, turns = await measured(at.call(method, target, body))
    assert reply.status == 200, reply
    return reply.body, turns


def test_no_call_holds_the_loop_for_long():
    async def run() -> None:
        async with with_letters(LETTERS) as at:
            calls: list[tuple[str, str, object]] = [
                ("GET", "/v1/dlq/t/errors", None),
                ("GET", "/v1/dlq/t?limit=1000", None),
                ("GET", "/v1/dlq/t?error=nothing", None),
                ("GET", "/v1/dlq/t?until=2001-01-01T00:00:00Z", None),
                ("POST", "/v1/dlq/t/redrive", {"dry_run": True, "limit": LETTERS}),
                ("POST", "/v1/dlq/t/redrive", {"limit": LETTERS}),
                ("GET", "/v1/dlq/t", None),
            ]
            for call in calls:
                _, turns = await cost(at, *call)
                assert turns.longest < TURN_S, call

    asyncio.run(run())


def test_a_search_that_finds_nothing_and_a_count_of_errors_read_no_letters_once_they_are_indexed():
    async def run() -> None:
        async with with_letters(LETTERS) as at:
            _, first = await cost(at, "GET", "/v1/dlq/t/errors")
            for target in ("/v1/dlq/t/errors", "/v1/dlq/t?error=nothing", "/v1/dlq/t?group=h"):
                _, turns = await cost(at, "GET", target)
                assert turns.total < first.total / 4, target

    asyncio.run(run())


def test_facts_keep_the_index_complete():
    async def run() -> None:
        async with with_letters(1_000) as at:
            index = LetterIndex(at.engine)
            (log_id,) = at.engine.latest_state.topics["dlq.t"].log_ids
            while (piece := index.piece(log_id, 0, 1_000)).end < 1_000 or index.letters < 1_000:
                index.piece(log_id, piece.end, 1_000)
            await make_dead_letters(at, 500)
            piece = index.piece(log_id, 0, 1_500)
            assert (piece.first, piece.end, piece.read) == (0, 1_500, 0)

    asyncio.run(run())


def test_the_cost_of_a_redriven_letter_does_not_grow_with_their_number():
    async def per_letter(count: int) -> float:
        async with with_letters(count) as at:
            reply, turns = await cost(at, "POST", "/v1/dlq/t/redrive", {"limit": count})
            assert reply["redriven"] == count
            return turns.total / count

    async def run() -> None:
        few = min([await per_letter(2_000) for _ in range(3)])
        many = min([await per_letter(8_000) for _ in range(3)])
        assert many < 2 * few

    asyncio.run(run())


def test_letters_that_are_refused_together_are_sent_one_by_one():
    """A backlog of three messages has room for three of the ten."""

    async def run() -> None:
        async with with_letters(10) as at:
            await at.call("PATCH", "/v1/topics/t", {"backlog_messages_max": 3})
            reply, _ = await cost(at, "POST", "/v1/dlq/t/redrive", {})
            assert (reply["matched"], reply["redriven"]) == (10, 3)
            failed = reply["failed"]
            assert isinstance(failed, list)
            assert [failure["offset"] for failure in failed] == list(range(3, 10))
            assert "partition_buffer_full" in failed[0]["message"]

    asyncio.run(run())


def test_a_letter_that_two_calls_redrive_is_sent_back_once():
    async def run() -> None:
        async with with_letters(2_000) as at:
            replies = await asyncio.gather(
                *(at.call("POST", "/v1/dlq/t/redrive", {"limit": 2_000}) for _ in range(3)),
            )
            assert sum(reply.body["redriven"] for reply in replies) == 2_000
            assert not any(reply.body["failed"] for reply in replies)
            (log_id,) = at.engine.latest_state.topics["t"].log_ids
            assert at.engine.durable_end(log_id) == 4_000

    asyncio.run(run())


def test_a_rate_limits_a_redrive():
    async def run() -> None:
        async with with_letters(30) as at:
            loop = asyncio.get_running_loop()
            start_s = loop.time()
            reply, _ = await cost(at, "POST", "/v1/dlq/t/redrive", {"rate_per_s": 100})
            assert reply["redriven"] == 30
            assert loop.time() - start_s > 0.25

    asyncio.run(run())


def test_a_page_of_large_letters_ends_early():
    async def run() -> None:
        async with handler_fixture() as at:
            await at.call("POST", "/v1/topics", {"name": "t"})
            for _ in range(20):
                batch, records, size = packed("x" * 1_000_000)
                await at.engine.submit(c.Produce("t", batch, records, size, partition=0))
            claimed = await at.engine.submit(c.Claim("t", "g", "w", 100))
            assert isinstance(claimed, Claimed)
            held = tuple(c.Held(run.partition, run.first, run.end, claimed.token) for run in claimed.deliveries)
            for run_of in held:
                for offset in range(run_of.first, run_of.end):
                    one = (c.Held(0, offset, offset + 1, claimed.token),)
                    await at.engine.submit(c.RejectMessages("t", "g", "w", one, "large"))
            offsets: list[int] = []
            after = ""
            while True:
                reply = (await at.call("GET", f"/v1/dlq/t{after}")).body
                offsets += [message["offset"] for message in reply["messages"]]
                assert len(reply["messages"]) <= 10
                if "after" not in reply:
                    break
                after = f"?after={reply['after']}"
            assert offsets == list(range(20))

    asyncio.run(run())


def test_a_count_that_may_not_wait_returns_what_it_counted_and_the_next_gets_further():
    async def run() -> None:
        async with with_letters(20_000) as at:
            replies = []
            while not replies or not replies[-1]["complete"]:
                replies.append((await cost(at, "GET", "/v1/dlq/t/errors?wait_ms=1"))[0])
                assert len(replies) < 1_000
            counted = [reply["counted"] for reply in replies]
            assert len(counted) > 2
            assert counted == sorted(counted)
            assert replies[0]["total"] == counted[-1] == 20_000
            (kind,) = replies[-1]["errors"]  # type: ignore[misc]
            assert (kind["error"], kind["count"]) == ("timeout after … ms", 20_000)

    asyncio.run(run())


def test_a_count_looks_only_at_blocks_in_which_something_changed():
    async def run() -> None:
        async with with_letters(40_000) as at:
            await cost(at, "GET", "/v1/dlq/t/errors")
            _, unchanged = await cost(at, "GET", "/v1/dlq/t/errors")
            assert unchanged.total < 0.01  # 4 ms for the 7,000 letters after the last whole block
            await at.call("POST", "/v1/dlq/t/redrive", {"offsets": [[0, offset] for offset in range(0, 2_000, 2)]})
            reply, changed = await cost(at, "GET", "/v1/dlq/t/errors")
            assert reply["counted"] == 39_000
            reply, unchanged = await cost(at, "GET", "/v1/dlq/t/errors")
            assert reply["counted"] == 39_000
            assert unchanged.total < changed.total / 2

    asyncio.run(run())


def test_letters_of_a_kind_are_found_without_reading_them():
    """Each has a text of its own, and more than the index keeps."""

    async def run() -> None:
        async with with_letters(2_000) as at:
            await make_dead_letters(at, 500, "other")
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(dead_letter_index, "KIND_TEXTS_MAX", 3)
                kind = "/v1/dlq/t/delete", {"dry_run": True, "kind": "timeout after … ms", "limit": 10_000}
                matched = (await cost(at, "POST", *kind))[0]["matched"]
                assert matched == (await cost(at, "GET", "/v1/dlq/t/errors"))[0]["total"]
                patch.setattr(dead_letter_scan, "read_letters", None)
                assert (await cost(at, "POST", *kind))[0]["matched"] == matched
                none = {"dry_run": True, "kind": "timeout"}
                assert (await cost(at, "POST", "/v1/dlq/t/delete", none))[0]["matched"] == 0

    asyncio.run(run())
