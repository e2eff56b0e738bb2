"""Calls that settle very many messages become several commands, which together do what one would do."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from driftq.core.model import commands as c
from driftq.core.model.facts import TopicConfig
from driftq.core.model.replies import Claimed, Refusal, Rejected, Settlement
from driftq.engine.engine import Engine
from driftq.engine.settle_slices import EACH_MAX, is_one_slice, settle_in_slices, slices
from driftq.wire.errors import Code
from driftq.wire.records import Record, pack

held_runs = st.lists(
    st.builds(
        lambda partition, first, count, token: c.Held(partition, first, first + count, token),
        st.integers(0, 2),
        st.integers(0, 50),
        st.integers(1, 40),
        st.sampled_from(["", "a", "b"]),
    )
)


def messages(held: list[c.Held] | tuple[c.Held, ...]) -> list[tuple[int, int, str]]:
    return [(run.partition, offset, run.token) for run in held for offset in range(run.first, run.end)]


@given(held_runs, st.integers(1, 5), st.integers(1, 20))
def test_slices_name_the_same_messages_in_the_same_order(held, runs_max, messages_max):
    parts = list(slices(held, runs_max, messages_max))
    assert [message for part in parts for message in messages(part)] == messages(held)
    assert all(0 < len(part) <= runs_max and len(messages(part)) <= messages_max for part in parts)


async def settle(engine: Engine, command: c.Nack | c.RejectMessages | c.Ack) -> tuple[int, list[Refusal]]:
    """How many slices there were, and what they refused."""
    refused: list[Refusal] = []
    count = 0
    async for reply in settle_in_slices(engine, command):
        assert isinstance(reply, Settlement), reply
        refused += reply.refused
        count += 1
    return count, refused


async def claimed(engine: Engine, count: int, size_bytes: int = 10) -> c.Held:
    """One run of claimed messages."""
    await engine.submit(c.CreateTopic("t", config=TopicConfig(in_flight_max=count)))
    for first in range(0, count, 1_000):
        size = min(1_000, count - first)
        batch = pack([Record(b"v" * size_bytes)] * size)
        reply = await engine.submit(c.Produce("t", batch, size, size * size_bytes, partition=0))
        assert not isinstance(reply, Rejected), reply
    claim = await engine.submit(c.Claim("t", "g", "w", count))
    assert isinstance(claim, Claimed)
    return c.Held(0, 0, count, claim.token)


def test_a_nack_of_very_many_messages_reaches_all_of_them():
    async def run() -> None:
        engine = Engine.in_memory()
        held = await claimed(engine, 2_100)
        command = c.Nack("t", "g", "w", (held,), "no", 60_000)
        assert not is_one_slice(command)
        assert await settle(engine, command) == (-(-2_100 // EACH_MAX), [])
        progress = engine.latest_state.topics["t"].groups["g"].progress[0]
        assert (progress.in_flight, progress.resting) == (0, 2_100)
        assert await settle(engine, command) == (-(-2_100 // EACH_MAX), []), "a repeat changes nothing"
        assert {entry.failures for _, entry in progress.entries.changed()} == {1}
        await engine.close()

    asyncio.run(run())


def test_large_dead_letters_are_moved_by_several_commands():
    async def run() -> None:
        engine = Engine.in_memory()
        held = await claimed(engine, 50, size_bytes=100_000)
        count, refused = await settle(engine, c.RejectMessages("t", "g", "w", (held,), "no"))
        assert refused == []
        assert count > 3, "5 MB of dead letters are more than one slice"
        dead = engine.latest_state.topics["dlq.t"].log_ids[0]
        assert engine.latest_state.logs[dead].end == 50
        await engine.close()

    asyncio.run(run())


def test_refusals_of_all_slices_are_reported():
    async def run() -> None:
        engine = Engine.in_memory()
        held = await claimed(engine, 600)
        await engine.submit(c.Ack("t", "g", "w", (c.Held(0, 0, 300, held.token), c.Held(0, 599, 600, held.token))))
        _, refused = await settle(engine, c.Nack("t", "g", "w", (held,), "no"))
        assert [item.offset for item in refused] == [*range(300), 599]
        await engine.close()

    asyncio.run(run())


def test_a_message_that_is_named_twice_is_refused_wherever_the_slices_end():
    async def run() -> None:
        engine = Engine.in_memory()
        held = await claimed(engine, 600)
        command = c.Nack("t", "g", "w", (held, c.Held(0, 5, 6, held.token)), "no")
        replies = [reply async for reply in settle_in_slices(engine, command)]
        assert [type(reply) for reply in replies] == [Rejected]
        assert replies[0].code is Code.INVALID_ARGUMENT  # type: ignore[union-attr]
        assert engine.latest_state.topics["t"].groups["g"].progress[0].in_flight == 600
        await engine.close()

    asyncio.run(run())
