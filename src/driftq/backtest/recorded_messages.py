"""What was recorded of a topic and a group: messages, and how each attempt on them ended.

The record answers the one question that the broker's rules leave open in a backtest: how an attempt ends, and how long
it takes. Where it does not say, an attempt fails, and is counted as unseen: no success is made up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from driftq.backtest.figures import Figures, Tally

# `dead`: it failed, and was the last one allowed. `rejected`: the worker gave the message up, whatever the policy is.
Ending = Literal["acked", "failed", "expired", "dead", "rejected"]
# `attempts`: the second attempt ends as the second one did. `time`: an attempt ends as the last one that had begun by
# then, counted from the first one; so an outage ends when it ended, however many attempts were made.
FailureModel = Literal["attempts", "time"]


class RecordedAttempt(NamedTuple):
    """An attempt that ended."""

    started_ms: int
    ended_ms: int
    ending: Ending

    @property
    def duration_ms(self) -> int:
        return max(0, self.ended_ms - self.started_ms)


class RecordedMessage(NamedTuple):
    """A message of the log, with the attempts of one group: at least one."""

    partition: int
    offset: int
    produced_ms: int
    attempts: tuple[RecordedAttempt, ...]
    key: bytes = b""
    value: bytes = b""  # only for rules that look into values
    tenant_id: str = ""
    label: str = ""
    labels: dict[str, str] | None = None
    run_id: str = ""
    task: str = ""
    priority: int | None = None  # None: not a job


class AttemptOutcome(NamedTuple):
    """How an attempt ends in a backtest. `seen` is False if the record does not tell."""

    duration_ms: int
    ending: Ending
    seen: bool


def attempt_of(message: RecordedMessage, number: int, elapsed_ms: int, model: FailureModel) -> AttemptOutcome:
    """The attempt with this number (from 1), this long after the first one began."""
    attempts = message.attempts
    if model == "time":
        since_ms = [attempt.started_ms - attempts[0].started_ms for attempt in attempts]
        recorded = attempts[sum(started_ms <= elapsed_ms for started_ms in since_ms) - 1]
        seen = elapsed_ms <= since_ms[-1]
    else:
        recorded, seen = attempts[min(number, len(attempts)) - 1], number <= len(attempts)
    ending: Ending = "failed" if recorded.ending == "dead" else recorded.ending
    return AttemptOutcome(recorded.duration_ms, ending, seen or ending in ("acked", "rejected"))


def recorded_figures(messages: Sequence[RecordedMessage], name: str = "recorded") -> Figures:
    """The figures of the record itself, to compare a backtest of the same policy with."""
    tally = Tally()
    for message in messages:
        for number, attempt in enumerate(message.attempts):
            if number == 0:
                tally.delivered(message.tenant_id, attempt.started_ms - message.produced_ms)
            tally.worked(attempt.duration_ms)
            if attempt.ending == "acked":
                tally.acked(attempt.ended_ms - message.produced_ms)
            elif attempt.ending in ("dead", "rejected"):
                tally.dead += 1
    return tally.figures(name, len(messages))


def messages_of(rows: Iterable[Mapping[str, Any]]) -> list[RecordedMessage]:
    """The rows of `driftq.spark.pipelines.recorded_attempts.collected` as messages."""
    return [
        RecordedMessage(
            row["partition"],
            row["offset"],
            row["produced_ms"],
            tuple(RecordedAttempt(a["started_ms"], a["ended_ms"], a["ending"]) for a in row["attempts"]),
            bytes(row["key"] or b""),
            bytes(row["value"] or b""),
            row["tenant_id"] or "",
            row["label"] or "",
            row["labels"],
            row["run_id"] or "",
            row["task"] or "",
            row["priority"],
        )
        for row in rows
    ]


def workers_seen(messages: Iterable[RecordedMessage]) -> int:
    """The most attempts that ran at the same time: at least so many workers there were."""
    changes = [
        change
        for message in messages
        for attempt in message.attempts
        for change in ((attempt.started_ms, 1), (max(attempt.ended_ms, attempt.started_ms + 1), -1))
    ]
    running, peak = 0, 1
    for _, by in sorted(changes):
        running += by
        peak = max(peak, running)
    return peak
