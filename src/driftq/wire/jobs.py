"""Bodies of jobs: enqueue, look up, cancel."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct

from driftq.wire.produce import ProduceRequest

JobStateName = Literal[
    "ready", "running", "scheduled", "retrying", "succeeded", "dead", "cancelled", "finished", "skipped", "unclaimed"
]


class JobRequest(ProduceRequest, frozen=True, omit_defaults=True):
    """A message with a task, an id, or both."""


class EnqueueReply(Struct, frozen=True):
    """The job's id and where it is stored. `duplicate`: a job with this id existed; nothing was stored."""

    id: str
    topic: str
    partition: int
    offset: int
    duplicate: bool


class JobAttempt(Struct, frozen=True):
    attempt: int
    owner: str
    began_at: str
    ended_at: str | None
    end: Literal["running", "succeeded", "failed", "lost", "released", "dead", "cancelled", "skipped"]
    error: str


class JobGroupState(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A job as one group sees it. `due_at` is there while it waits, `owner` and `lease_until` while it runs, `progress`
    if its worker reported one, `result` once its worker committed an effect under the job's id."""

    group: str
    state: JobStateName
    due_at: str | None = None
    owner: str | None = None
    lease_until: str | None = None
    attempts: list[JobAttempt]
    result: str | None = None
    progress: Any = UNSET
    progress_at: str | None = None


class JobReply(Struct, frozen=True):
    """A job. `state` is the least finished state of the groups that claim it."""

    id: str
    topic: str
    partition: int
    offset: int
    task: str
    priority: int
    not_before: str | None
    state: JobStateName
    groups: list[JobGroupState]


class JobResult(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How a job ended, or that it has not ended yet (`done` is false; then `progress` is its worker's last report).

    `result` is what its worker returned, as JSON. A job that died has an `error` and perhaps the `traceback` of its
    worker. `expired`: the job ended so long ago that its result, if it had one, is forgotten.
    """

    id: str
    topic: str
    state: JobStateName
    done: bool
    result: Any = UNSET
    error: str = ""
    traceback: str = ""
    ended_at: str | None = None
    expired: bool = False
    progress: Any = UNSET
    progress_at: str | None = None


class CancelReply(Struct, frozen=True):
    """`cancelled` is false if the job had ended before."""

    id: str
    cancelled: bool


class RetryReply(Struct, frozen=True):
    """`retried`: the job waited for a time and is due now, or was dead and was sent back (`redriven` counts its dead
    letters). Otherwise nothing changed, and `state`, which is that after the call, shows why."""

    id: str
    retried: bool
    redriven: int
    state: JobStateName
