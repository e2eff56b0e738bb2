"""Facts of job batches (tags 130 to 139), and the templates of what a batch produces later.

Facts evolve as described in `core.model.facts`. A batch has a dense number that is never reused; its members have
dense indexes. A member is a job (log and offset), a nested batch (`CHILD` and its number), a step of a chain that
waits for its turn (`WAITING_STEP`), or a job whose topic was gone when its turn came (`GONE`).
"""

from __future__ import annotations

from msgspec import Struct

from driftq.core.model.facts import Fact, RecordSchedule
from driftq.core.model.ranges import Range

# What a batch does with its members.
GROUP = 0  # all run at the same time
CHAIN = 1  # each is produced when the one before it succeeded

# Instead of the log of a member.
CHILD = -1
WAITING_STEP = -2
GONE = -3

# The state of a member, and how a batch ended.
RUNNING = 0
SUCCEEDED = 1  # acked, or skipped because its effect is committed
FAILED = 2  # a dead letter; of a batch: not all of its members succeeded
CANCELLED = 3
DROPPED = 4  # never run: retention, a deleted topic, or a group that was moved past it
WAITING = 5  # a step of a chain whose turn has not come
STATE_NAMES = {SUCCEEDED: "succeeded", FAILED: "failed", CANCELLED: "cancelled", DROPPED: "dropped"}


class JobTemplate(Struct, frozen=True, array_like=True, gc=False, tag="job"):
    """A job as it will be produced. `topic` is the requested topic, to which its id belongs."""

    topic: str
    target_topic: str
    value: bytes
    key: bytes = b""
    head: bytes = b""
    partition: int | None = None
    schedule: RecordSchedule = RecordSchedule(0)
    delay_ms: int = 0  # from the time at which it is produced
    tenant: str = ""
    job_id: str = ""
    digest: int = 0


class JobBatchTemplate(Struct, frozen=True, array_like=True, gc=False, tag="batch"):
    """A batch as it will be created. `group` is the consumer group whose end of a job counts, `topic` the topic of
    members that name none."""

    batch_id: str
    kind: int
    group: str
    members: tuple[JobTemplate | JobBatchTemplate, ...] = ()
    on_complete: JobTemplate | None = None
    on_success: JobTemplate | None = None
    on_failure: JobTemplate | None = None
    ttl_ms: int = 0
    topic: str = ""


class BatchMember(Struct, frozen=True, array_like=True, gc=False):
    """A member of a batch. `step` is there until the member is produced."""

    log_id: int
    offset: int
    job_id: str = ""
    step: JobTemplate | JobBatchTemplate | None = None


class JobBatchCreated(Fact, tag=130, frozen=True):
    """A batch was created. `created` has no members: they are added by facts of their own. `parent` is the number of
    the batch in which it is the member at `index`; 0: in none."""

    number: int
    created: JobBatchTemplate
    at_ms: int
    parent: int = 0
    index: int = 0
    depth: int = 1
    digest: bytes = b""


class JobBatchAdded(Fact, tag=131, frozen=True):
    """Members were added to a batch."""

    number: int
    members: tuple[BatchMember, ...]
    at_ms: int


class JobBatchSealed(Fact, tag=132, frozen=True):
    """Nothing is added to a batch any more."""

    number: int
    at_ms: int


class JobBatchCancelled(Fact, tag=133, frozen=True):
    """A batch was cancelled: its members are cancelled in this frame and the next ones."""

    number: int
    at_ms: int


class JobBatchMembersEnded(Fact, tag=134, frozen=True):
    """Members of a batch ended, in the frame that ended them. Their results are those that `group_id` stored."""

    number: int
    state: int
    indexes: tuple[Range, ...]
    at_ms: int
    group_id: int = 0
    error: str = ""


class JobBatchStepStarted(Fact, tag=135, frozen=True):
    """The next step of a chain was produced, in the frame in which the one before it succeeded."""

    number: int
    index: int
    log_id: int
    offset: int
    at_ms: int


class JobBatchCallback(Struct, frozen=True, array_like=True, gc=False):
    """A message that was produced at the end of a batch. `log_id` is `GONE` if its topic did not exist any more."""

    role: str
    log_id: int
    offset: int


class JobBatchEnded(Fact, tag=136, frozen=True):
    """A batch ended, in the frame that ended the last of its members, with the messages that were produced for that. It
    is forgotten at `expires_ms`; a nested one with the outermost one."""

    number: int
    state: int
    at_ms: int
    expires_ms: int = 0
    callbacks: tuple[JobBatchCallback, ...] = ()


class JobBatchesForgotten(Fact, tag=137, frozen=True):
    """Batches expired and were forgotten, with all that are nested in them. In a snapshot: the next number."""

    numbers: tuple[int, ...]
    next_number: int = 0


class JobBatchState(Fact, tag=138, frozen=True):
    """A batch in a snapshot, without its members."""

    created: JobBatchCreated
    sealed: bool = False
    cancelled_ms: int = 0
    ended: JobBatchEnded | None = None
    topics: tuple[str, ...] = ()
    results_lost: int = 0


class JobBatchResult(Struct, frozen=True, array_like=True, gc=False):
    """What is kept of a member that ended: its result as JSON, or its error and the traceback of its worker."""

    index: int
    result: bytes = b""
    error: str = ""
    traceback: str = ""


class JobBatchMembersState(Fact, tag=139, frozen=True):
    """Some members of a batch in a snapshot, in order, with the state of each as a byte."""

    number: int
    members: tuple[BatchMember, ...]
    states: bytes
    results: tuple[JobBatchResult, ...] = ()
