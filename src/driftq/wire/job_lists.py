"""Bodies of lists of jobs, of their counts, and of cancelling many."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from driftq.wire.fields import ID_LENGTH_MAX, Body, Name
from driftq.wire.jobs import JobStateName
from driftq.wire.message import StoredMessage

CANCEL_MAX = 1_000  # jobs of one call
STATES: tuple[JobStateName, ...] = (
    "ready", "running", "scheduled", "retrying", "succeeded", "dead", "cancelled", "finished", "skipped", "unclaimed",
)  # fmt: skip


class ListedJob(Struct, frozen=True, omit_defaults=True):
    """A job of the list. `state` is the least finished state of the groups that claim it; `error` is of its last failed
    attempt, as far as that is remembered."""

    id: str
    topic: str
    partition: int
    offset: int
    state: JobStateName
    created_at: str
    task: str = ""
    tenant: str = ""
    run_id: str = ""
    priority: int = 0
    attempts: int = 0
    error: str = ""
    owner: str = ""
    due_at: str | None = None


class JobsReply(Struct, frozen=True, omit_defaults=True):
    """A page of jobs, the newest of each partition first. `scanned` is how many were looked at: a page may have few
    jobs, or none, although there are more; `after` is missing on the last page."""

    jobs: list[ListedJob]
    scanned: int
    after: str | None = None


class JobCounts(Struct, frozen=True):
    """How many jobs are in each state, and for each task. `complete` is false if there are more than could be looked
    at: the newest ones are counted."""

    states: dict[str, int]
    tasks: dict[str, dict[str, int]]
    counted: int
    complete: bool


class JobSelection(Body, frozen=True, omit_defaults=True):
    """Jobs of a topic: those with these ids, or all that fit. Times are RFC 3339. `after` continues where an earlier
    call stopped."""

    topic: Name
    ids: Annotated[list[Annotated[str, Meta(max_length=ID_LENGTH_MAX)]], Meta(max_length=CANCEL_MAX)] | None = None
    state: str = ""
    task: str = ""
    tenant_id: str = ""
    since: str = ""
    until: str = ""
    dry_run: bool = False
    limit: Annotated[int, Meta(ge=1, le=CANCEL_MAX)] = CANCEL_MAX
    after: str = ""


class CancelJobsRequest(JobSelection, frozen=True, omit_defaults=True):
    """Jobs to cancel: of those that are selected, the ones that have not ended."""


class CancelJobsReply(Struct, frozen=True, omit_defaults=True):
    """`matched` jobs fit and had not ended; `cancelled` of them were cancelled now. `more`: there are further ones, or
    not all could be looked at; `after` continues there."""

    matched: int
    cancelled: int
    more: bool
    ids: list[str]
    after: str | None = None


class RetryJobsRequest(JobSelection, frozen=True, omit_defaults=True):
    """Jobs to retry now: of those that are selected, the ones that wait (`retrying`, `scheduled`) or are `dead`."""


class RetryJobsReply(Struct, frozen=True, omit_defaults=True):
    """`matched` jobs fit and wait or are dead. `retried` of them became due, and `redriven` dead letters were sent
    back. A job that is due already, and waits for a worker, only matches. `more`: there are further jobs, or not all
    could be looked at; `after` continues there."""

    matched: int
    retried: int
    redriven: int
    more: bool
    ids: list[str]
    after: str | None = None


class MessageSearchReply(Struct, frozen=True, omit_defaults=True):
    """Messages that fit, the newest first. `scanned` is how many were looked at; a page may have none although there
    are more. `after` starts the next page; it is missing on the last page."""

    messages: list[StoredMessage]
    scanned: int
    after: str | None = None
