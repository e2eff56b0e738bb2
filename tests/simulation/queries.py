"""Queries of the state, through the read path of the product. Each shows one part of the state completely.

A query is sent to the broker at any moment, and to the fold of all durable facts when its reply is sent: the two must
agree. The simulation treats it as a command, because it tracks operations and their replies.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from driftq.core.model.commands import Command
from driftq.core.model.replies import Reply
from driftq.core.state.state import State
from tests.simulation.operation import Operation


class Question(Command, frozen=True):
    part: str


class Shown(Reply, frozen=True):
    """`value` compares equal if the same state was shown."""

    value: Any


def _topics(state: State) -> object:
    logs = state.logs
    return [
        (topic.name, topic.config, sorted(topic.groups), [(logs[n].start, logs[n].end) for n in topic.log_ids])
        for topic in state.topics.values()
    ]


def _groups(state: State) -> object:
    return [
        (group.topic, group.name, group.paused, progress.floor, progress.cursor, progress.in_flight, progress.resting,
         list(progress.settled))
        for group in state.groups.values()
        for progress in group.progress
    ]  # fmt: skip


def _messages(state: State) -> object:
    """The states of the first messages that a group has not settled."""
    return [
        [progress.state_of(offset)[0] for offset in range(progress.floor, progress.floor + 8)]
        for group in state.groups.values()
        for progress in group.progress
    ]


PARTS: dict[str, Callable[[State], object]] = {
    "topics": _topics,
    "groups": _groups,
    "messages": _messages,
    "keys": lambda state: list(state.keys.snapshot()),
    "effects": lambda state: list(state.effects.snapshot()),
    "jobs": lambda state: list(state.job_attempts.snapshot()),
    "results": lambda state: [*state.results.snapshot(), *state.reports.snapshot()],
    "job batches": lambda state: list(state.job_batches.snapshot()),
    "streams": lambda state: [stream.snapshot() for stream in state.streams.in_order()],
    "stages": lambda state: list(state.stages.snapshot()),
    "subscriptions": lambda state: list(state.subscriptions.snapshot()),
}


def shown(question: Question, state: State) -> Shown:
    return Shown(PARTS[question.part](state))


class QueryClient:
    """Draws queries from its own generator, so that they change nothing else in a run."""

    def __init__(self, seed: int) -> None:
        self._random = Random(f"questions {seed}")

    def __str__(self) -> str:
        return "query client"

    def question(self) -> Question | None:
        return Question(self._random.choice(tuple(PARTS))) if self._random.random() < 0.15 else None

    def on_reply(self, op: Operation, reply: Reply) -> None:
        pass

    def on_unknown(self, op: Operation) -> None:
        pass
