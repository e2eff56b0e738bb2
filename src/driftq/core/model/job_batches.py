"""Commands of job batches, and the replies to them."""

from __future__ import annotations

from driftq.core.model.commands import Command
from driftq.core.model.job_batch_facts import JobBatchTemplate, JobTemplate
from driftq.core.model.replies import Reply


class CreateJobBatch(Command, frozen=True):
    """Create a batch with its first members. With `parent` it becomes a member of an open batch. Idempotent: `digest`
    identifies the request."""

    template: JobBatchTemplate
    sealed: bool = True
    parent_id: str = ""
    digest: bytes = b""


class AddToJobBatch(Command, frozen=True):
    """Add members to an open batch, and perhaps seal it. `first` is the index of the first of them: how many the batch
    has. Idempotent by it."""

    batch_id: str
    first: int
    members: tuple[JobTemplate | JobBatchTemplate, ...] = ()
    seal: bool = False


class CancelJobBatch(Command, frozen=True):
    """Cancel all members of a batch that have not ended."""

    batch_id: str


class JobBatchChanged(Reply, frozen=True):
    """A batch with this many members. `changed` is False if the same was asked for before."""

    batch_id: str
    count: int
    sealed: bool
    changed: bool = True
