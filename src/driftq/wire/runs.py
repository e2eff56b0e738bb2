"""Bodies of runs: messages and streams that belong together by the `run_id` of their envelopes."""

from __future__ import annotations

from typing import Literal, get_args

from msgspec import Struct

from driftq.wire.jobs import JobAttempt, JobStateName

RunState = Literal["running", "waiting", "failed", "cancelled", "done"]
RUN_STATES: tuple[RunState, ...] = get_args(RunState)


class RunSummary(Struct, frozen=True):
    """A run in a list. `state` is "running" (a step is), "waiting" (a step is ready, scheduled or in backoff), "failed"
    (a step is a dead letter), "cancelled" (all were), else "done"."""

    run_id: str
    state: RunState
    steps: int
    states: dict[str, int]
    streams: int
    began_at: str
    changed_at: str


class RunsReply(Struct, frozen=True, omit_defaults=True):
    """A page of runs, the one with the newest message first. `complete` is false while the index is being built after a
    start. `after` is missing on the last page."""

    runs: list[RunSummary]
    complete: bool
    after: str | None = None


class RunStep(Struct, frozen=True, omit_defaults=True):
    """A message of a run. `depth` is that in the tree by `parent_step_id`; steps come in the order of the tree."""

    topic: str
    partition: int
    offset: int
    state: JobStateName
    depth: int
    created_at: str
    step_id: str = ""
    parent_step_id: str = ""
    task: str = ""
    attempts: int = 0
    error: str = ""
    owner: str = ""
    due_at: str | None = None
    ended_at: str | None = None
    history: list[JobAttempt] = []


class RunInfo(Struct, frozen=True):
    """A run with the steps and streams that the caller may see. `omitted` counts steps that are not remembered, because
    a run has too many."""

    run_id: str
    state: RunState
    began_at: str
    changed_at: str
    steps: list[RunStep]
    streams: list[str]
    omitted: int
    complete: bool


class CancelRunReply(Struct, frozen=True):
    """How many messages had not ended, and how many of them were cancelled."""

    run_id: str
    matched: int
    cancelled: int
