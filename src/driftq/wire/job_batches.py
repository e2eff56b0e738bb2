"""Bodies of job batches: create, add jobs, show, list, results."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct

from driftq.wire.fields import NAME_LENGTH_MAX, Body, Natural
from driftq.wire.produce import ProduceRequest

TTL_MS_MAX = 30 * 86_400_000
DEFAULT_GROUP = "workers"

Kind = Literal["group", "chain"]
JobBatchStateName = Literal["open", "running", "cancelling", "succeeded", "failed", "cancelled"]
JOB_BATCH_STATES: tuple[JobBatchStateName, ...] = (
    "open", "running", "cancelling", "succeeded", "failed", "cancelled",
)  # fmt: skip
Ttl = Annotated[int, Meta(ge=0, le=TTL_MS_MAX)]


class JobBatchItem(Body, frozen=True, omit_defaults=True):
    """Jobs that belong together. The jobs of a "group" run at the same time; those of a "chain" one after the other,
    and each gets the result of the one before it. `topic` is the topic of jobs and messages that name none. `group` is
    the consumer group whose end of a job counts.

    When the last job has ended, `on_complete` is produced, and `on_success` if all of them succeeded, else
    `on_failure`.
    """

    id: Annotated[str, Meta(max_length=NAME_LENGTH_MAX)] = ""
    kind: Kind = "group"
    topic: Annotated[str, Meta(max_length=NAME_LENGTH_MAX)] = ""
    group: Annotated[str, Meta(max_length=NAME_LENGTH_MAX)] = ""
    jobs: tuple[JobBatchMemberItem, ...] = ()
    on_complete: ProduceRequest | None = None
    on_success: ProduceRequest | None = None
    on_failure: ProduceRequest | None = None


class JobBatchMemberItem(ProduceRequest, frozen=True, omit_defaults=True):
    """A job, or with `batch` and nothing else a nested job batch. A job without an id is named `<id of the
    batch>.<index>`."""

    batch: JobBatchItem | None = None


class CreateJobBatchRequest(JobBatchItem, frozen=True, omit_defaults=True):
    """A job batch. Without an id it gets one. With `sealed` false more jobs can be added, until a call seals it. With
    `parent` it becomes a member of that open batch. `ttl_ms` is how long it is kept after its end; 0: as the server
    is set."""

    parent: Annotated[str, Meta(max_length=NAME_LENGTH_MAX)] = ""
    sealed: bool = True
    ttl_ms: Ttl = 0


class AddJobsRequest(Body, frozen=True, omit_defaults=True):
    """More members of an open batch. `first` is the index of the first of them, which is how many the batch has: so a
    call can be repeated. `seal`: nothing is added after these."""

    first: Natural
    topic: Annotated[str, Meta(max_length=NAME_LENGTH_MAX)] = ""
    group: Annotated[str, Meta(max_length=NAME_LENGTH_MAX)] = ""
    jobs: tuple[JobBatchMemberItem, ...] = ()
    seal: bool = False


class JobBatchChange(Struct, frozen=True):
    """`changed` is false if the same was asked for before."""

    id: str
    count: int
    sealed: bool
    changed: bool


class JobBatchCounts(Struct, frozen=True):
    """Members by state. `waiting` are the steps of a chain whose turn has not come; `dropped` are jobs that were never
    run, because retention, a deleted topic or a moved group took them away."""

    running: int
    waiting: int
    succeeded: int
    failed: int
    cancelled: int
    dropped: int


class JobBatchMessage(Struct, frozen=True, omit_defaults=True):
    """A message that was produced at the end of a batch, and where; or why it could not be."""

    role: Literal["on_complete", "on_success", "on_failure"]
    topic: str = ""
    partition: int = -1
    offset: int = -1
    error: str = ""


class JobBatchInfo(Struct, frozen=True, omit_defaults=True):
    """A job batch. `count` is how many members it has. It is forgotten at `expires_at`, a nested one with the outermost
    one."""

    id: str
    kind: Kind
    state: JobBatchStateName
    group: str
    count: int
    counts: JobBatchCounts
    created_at: str
    topics: list[str]
    parent: str = ""
    cancelled_at: str | None = None
    ended_at: str | None = None
    expires_at: str | None = None
    messages: list[JobBatchMessage] = []


class JobBatchesReply(Struct, frozen=True, omit_defaults=True):
    """A page of job batches, the newest first. `after` is missing on the last page."""

    job_batches: list[JobBatchInfo]
    after: str | None = None


class JobBatchMember(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A member of a job batch: a job, or a nested batch with its id in `batch`. Before its end, `state` is that of the
    job, or "waiting" for a step of a chain; then "succeeded", "failed", "cancelled" or "dropped".

    In a list of results, `result` is what its worker returned; `error` and perhaps a `traceback` say why it failed.
    """

    index: int
    state: str
    id: str = ""
    batch: str = ""
    topic: str = ""
    partition: int = -1
    offset: int = -1
    result: Any = UNSET
    error: str = ""
    traceback: str = ""


class JobBatchMembersReply(Struct, frozen=True, omit_defaults=True):
    """A page of the members of a job batch, by index. `after` is missing on the last page. `results_lost` is how many
    results were not kept, because those of the batch had 16 MiB already."""

    id: str
    kind: Kind
    state: JobBatchStateName
    count: int
    jobs: list[JobBatchMember]
    after: str | None = None
    results_lost: int = 0


class CancelJobBatchReply(Struct, frozen=True):
    """`cancelled` is false if the batch had ended or was cancelled before."""

    id: str
    cancelled: bool
