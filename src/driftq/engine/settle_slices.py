"""Settles very many messages in slices: one call becomes several commands.

A command is decided in one turn of the event loop. A call may name a hundred thousand messages, each of which needs a
decision of its own, so it is cut:

    held  [0, 10_000)  ──▶  [0, 250)  ──await──▶  [250, 500)  ──await──▶  ...       others are served in between

Each slice is all or nothing and durable before the next one is decided. If the call ends in between (a crash, a full
disk), the slices before it stay settled, and the caller repeats the call: no message is settled twice. What a slice
leaves out because its frame is full of dead letters is a part of the next one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from driftq.core.model import commands as c
from driftq.core.model.replies import Refusal, Rejected, Settlement
from driftq.core.transitions.lookups import overlap
from driftq.wire.errors import Code

if TYPE_CHECKING:
    from driftq.engine.engine import Engine

SettleCommand = c.Ack | c.Nack | c.ReleaseMessages | c.RejectMessages | c.Extend

EACH_MAX = 250  # messages of a nack, release or reject, where each gets a history of its own
RUNS_MAX = 1_000  # runs of messages of an ack or an extension
RUN_MESSAGES_MAX = 10_000  # and how many messages they may have
RESULTS_BYTES_MAX = 1 << 20  # of their results or progress; one message more may exceed it


def is_one_slice(command: SettleCommand) -> bool:
    """Whether the command is small enough to be decided at once."""
    runs_max, messages_max = _limits(command)
    return (
        len(command.held) <= runs_max
        and sum(held.end - held.first for held in command.held) <= messages_max
        and sum(len(held.result) + len(held.progress) for held in command.held) <= RESULTS_BYTES_MAX
    )


async def settle_in_slices(engine: Engine, command: SettleCommand) -> AsyncIterator[Settlement | Rejected]:
    """The reply to each slice of a command, in order. A refusal of a whole slice is the last one."""
    if overlap(command.held):
        yield Rejected(Code.INVALID_ARGUMENT, "a message is named twice in one call")
        return
    waiting = deque(slices(command.held, *_limits(command)))
    while waiting:
        part = waiting.popleft()
        reply = await engine.submit(replace(command, held=part))
        if not isinstance(reply, Settlement):
            assert isinstance(reply, Rejected)
            yield reply
            return
        left = [refusal for refusal in reply.refused if refusal.code is Code.OVERLOADED]
        if left:
            waiting.appendleft(tuple(_named(part, left)))
            reply = replace(reply, refused=tuple(item for item in reply.refused if item.code is not Code.OVERLOADED))
        yield reply


def slices(held: Sequence[c.Held], runs_max: int, messages_max: int) -> Iterator[tuple[c.Held, ...]]:
    """Cut runs of messages into parts of at most so many runs, messages and bytes of results."""
    part: list[c.Held] = []
    room, bytes_room = messages_max, RESULTS_BYTES_MAX
    for run in held:
        first = run.first
        while first < run.end:
            end = min(run.end, first + room)
            is_whole = (first, end) == (run.first, run.end)
            part.append(run if is_whole else c.Held(run.partition, first, end, run.token))
            room -= end - first
            bytes_room -= len(run.result) + len(run.progress)
            first = end
            if not room or bytes_room <= 0 or len(part) == runs_max:
                yield tuple(part)
                part, room, bytes_room = [], messages_max, RESULTS_BYTES_MAX
    if part:
        yield tuple(part)


def _limits(command: SettleCommand) -> tuple[int, int]:
    return (RUNS_MAX, RUN_MESSAGES_MAX) if isinstance(command, c.Ack | c.Extend) else (EACH_MAX, EACH_MAX)


def _named(part: Sequence[c.Held], left: Iterable[Refusal]) -> Iterator[c.Held]:
    """The messages of a slice that are still to be settled, as they were named. The first message of a slice is never
    too much, so there are fewer each time."""
    tokens = {(run.partition, offset): run.token for run in part for offset in range(run.first, run.end)}
    for item in left:
        yield c.Held(item.partition, item.offset, item.offset + 1, tokens[item.partition, item.offset])
