"""Dead letters are found as a naive scan finds them, whatever was redriven, trimmed or deleted, and however little of
them the index may keep in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftq.core.model import commands as c
from driftq.core.model import interventions as v
from driftq.core.model.facts import TopicConfig
from driftq.core.model.replies import Claimed, Rejected
from driftq.core.state.groups import Topic
from driftq.engine.engine import Engine
from driftq.server import dead_letter_index, dead_letter_kinds, dead_letter_scan
from driftq.server.dead_letter_index import Letter, LetterIndex, Place, read_letters
from driftq.server.dead_letter_kinds import KindCounts
from driftq.server.dead_letter_scan import (
    BEFORE_ALL,
    Filter,
    LetterSearch,
    WaitingWalk,
)
from driftq.testing.clock import HandClock
from driftq.wire.dead_letters import REDRIVE_GROUP, ErrorKind
from driftq.wire.errors import fingerprint
from tests.support.broker_fixture import packed

ERRORS = ("timeout after 5 s", "timeout after 7 s", "timeout after 9 s", "bad value", "", "refused 'x'")


class Letters:
    """A topic with two partitions whose messages die, an index, and the naive scan."""

    def __init__(self, engine: Engine, clock: HandClock, index: LetterIndex) -> None:
        self.engine = engine
        self.clock = clock
        self.index = index

    @property
    def topic(self) -> Topic:
        return self.engine.latest_state.topics["dlq.t"]

    async def create(self) -> None:
        await self.engine.submit(c.CreateTopic("t", 2, TopicConfig()))

    async def die(self, count: int, partition: int, group: str, error: str) -> None:
        batch, records, size = packed(*[f"v{number}" for number in range(count)])
        await self.engine.submit(c.Produce("t", batch, records, size, partition=partition))
        claimed = await self.engine.submit(c.Claim("t", group, "w", 100))
        assert isinstance(claimed, Claimed)
        held = tuple(c.Held(run.partition, run.first, run.end, claimed.token) for run in claimed.deliveries)
        if held:
            await self.engine.submit(c.RejectMessages("t", group, "w", held, error))

    async def redrive(self, offsets: list[int], partition: int) -> None:
        batch, count, size = packed("again")
        produce = c.Produce("t", batch, count, size, partition=partition)
        parts = tuple(v.RedrivePart(partition, (offset,), produce) for offset in offsets)
        await self.engine.submit(v.Redrive("dlq.t", REDRIVE_GROUP, parts))

    async def trim(self, partition: int, offset: int) -> None:
        log = self.engine.latest_state.logs[self.topic.log_ids[partition]]
        reply = await self.engine.submit(c.TrimTopic("dlq.t", partition, max(log.start, min(offset, log.end))))
        assert not isinstance(reply, Rejected), reply

    def stored(self) -> int:
        logs = [self.engine.latest_state.logs[log_id] for log_id in self.topic.log_ids]
        return sum(log.end - log.start for log in logs)

    # --- the naive scan ---

    def waiting(self) -> Iterator[Letter]:
        group = self.topic.groups.get(REDRIVE_GROUP)
        for partition, log_id in enumerate(self.topic.log_ids):
            log = self.engine.latest_state.logs[log_id]
            for letter in read_letters(self.engine, log_id, partition, log.start, log.end, 1 << 30):
                if group is None or not group.progress[partition].is_settled(letter.offset):
                    yield letter

    def naive_kinds(self) -> list[ErrorKind]:
        counted: dict[tuple[str, str, str], list[Letter]] = {}
        for letter in self.waiting():
            origin = letter.origin
            counted.setdefault((origin.group, origin.reason, fingerprint(origin.last_error)), []).append(letter)
        kinds = [
            ErrorKind(
                *key,
                letters[0].origin.last_error,
                len(letters),
                max(letter.origin.dead_at for letter in letters),
                min(letter.origin.dead_at for letter in letters),
                sorted({letter.tenant for letter in letters} - {""}),
            )
            for key, letters in counted.items()
        ]
        return sorted(kinds, key=lambda kind: -kind.count)

    def naive_search(self, letter_filter: Filter, after: Place) -> list[Letter]:
        return [
            letter
            for letter in self.waiting()
            if (letter.partition, letter.offset) > after and letter_filter.admits(letter)
        ]

    # --- the index ---

    def walk(self, after: Place = BEFORE_ALL) -> WaitingWalk:
        return WaitingWalk(self.engine, self.engine.latest_state, self.topic, after)

    def kinds(self) -> list[ErrorKind]:
        counts = KindCounts(self.engine, self.index, self.walk())
        for _ in range(10_000):
            if counts.is_over:
                return counts.kinds()
            counts.step()
        raise AssertionError("the count does not end")

    def search(self, letter_filter: Filter, after: Place, page: int) -> list[Letter]:
        search = LetterSearch(self.engine, self.index, self.walk(after), letter_filter)
        letters: list[Letter] = []
        for _ in range(10_000):
            if search.is_over:
                return letters
            letters += search.step(page)
        raise AssertionError("the search does not end")

    def check(self, random: Random) -> None:
        assert self.kinds() == self.naive_kinds()
        places = frozenset((random.randrange(3), random.randrange(12)) for _ in range(6))
        now_ms = self.clock.now_ms()
        filters = [
            Filter(),
            Filter(group=random.choice("gh")),
            Filter(error=random.choice(("timeout", "7", "bad", "x", "none"))),
            Filter(kind=fingerprint(random.choice(ERRORS))),
            Filter(reason=random.choice(("rejected", "other")), since_ms=now_ms - random.randrange(3_000)),
            Filter(until_ms=now_ms - random.randrange(3_000)),
            Filter(places=places),
            Filter(group="g", error="e", places=places),
        ]
        for letter_filter in filters:
            after = random.choice((BEFORE_ALL, (0, random.randrange(12)), (1, random.randrange(12)), (7, 0)))
            letters = self.search(letter_filter, after, 1 + random.randrange(5))
            assert letters == self.naive_search(letter_filter, after), (letter_filter, after)


async def act(letters: Letters, action: str, random: Random) -> None:
    partition = random.randrange(2)
    if action == "die":
        await letters.die(1 + random.randrange(5), partition, random.choice("gh"), random.choice(ERRORS))
    elif action == "redrive":
        await letters.redrive(random.sample(range(12), 3), partition)
    elif action == "trim":
        await letters.trim(partition, random.randrange(10))
    elif action == "delete":
        await letters.engine.submit(c.DeleteTopic("t"))
        await letters.create()
    elif action == "pass":
        letters.clock.move(random.choice((1, 500, 120_000)))
    else:
        letters.check(random)


ACTIONS = ("die", "die", "die", "redrive", "trim", "delete", "pass", "check")


@given(
    st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=40),
    st.integers(0, 1 << 30),
    st.sampled_from((3, 1_000)),
    st.sampled_from((0, 600, 1 << 20)),
)
def test_the_index_finds_what_a_naive_scan_finds(
    actions: list[str], seed: int, letters_max: int, texts_bytes_max: int
) -> None:
    async def run() -> None:
        clock = HandClock()
        engine = Engine.in_memory(clock=clock)
        letters = Letters(engine, clock, LetterIndex(engine, letters_max, texts_bytes_max))
        random = Random(seed)
        await letters.create()
        for action in [*actions, "check"]:
            await act(letters, action, random)
            assert letters.index.letters <= min(letters_max, letters.stored())
        await engine.close()

    asyncio.run(run())


@pytest.fixture(autouse=True, scope="module")
def small_steps() -> Iterator[None]:
    """Slices of a few letters, so that every example crosses their bounds."""
    sizes: dict[tuple[Any, str], int] = {
        (dead_letter_index, "SLICE_LETTERS"): 2,
        (dead_letter_index, "KIND_TEXTS_MAX"): 2,
        (dead_letter_kinds, "BLOCK_LETTERS"): 4,
        (dead_letter_scan, "READS_MAX"): 2,
        (dead_letter_index, "PIECE_LETTERS"): 3,
        (dead_letter_scan, "LOOKS_MAX"): 100,
    }
    with pytest.MonkeyPatch.context() as patch:
        for (module, name), size in sizes.items():
            patch.setattr(module, name, size)
        yield
