"""Facts of what becomes of jobs: results, progress, and an early retry (tags 70 to 73).

Facts evolve as described in `core.model.facts`. Snapshots hold the same facts.
"""

from __future__ import annotations

from driftq.core.model.facts import Fact
from driftq.core.model.ranges import Range


class ResultStored(Fact, tag=70, frozen=True):
    """The result of a message that a group ended, in the frame of its end: a value as JSON after an ack, or the
    worker's traceback after a failure that made it a dead letter."""

    group_id: int
    log_id: int
    offset: int
    at_ms: int
    expires_ms: int
    result: bytes
    traceback: str = ""


class ResultsForgotten(Fact, tag=71, frozen=True):
    """The oldest results expired and were forgotten. No result that was stored at or before `until_ms` is certain to be
    there."""

    count: int
    until_ms: int = 0


class ProgressReported(Fact, tag=72, frozen=True):
    """A worker reported how far its attempt is, as JSON. It is kept until the message is settled."""

    group_id: int
    log_id: int
    offset: int
    at_ms: int
    progress: bytes


class MadeDue(Fact, tag=73, frozen=True):
    """Messages that waited for a time are due now for a group; without a group (0), for groups that start later."""

    group_id: int
    log_id: int
    ranges: tuple[Range, ...]
    at_ms: int
