"""Facts of work that happens once: effect keys (tags 40 to 42 and 47), outcomes (43, 44) and staged batches (50 to 52).

Facts evolve as described in `core.model.facts`.
"""

from __future__ import annotations

from msgspec import Struct

from driftq.core.model.facts import Fact

# --- effect keys -----------------------------------------------------------------------------------------------------


class KeyBegun(Fact, tag=40, frozen=True):
    """Somebody works on a key; whoever comes with a lower fence is late."""

    key: str
    fence: int
    owner: str
    at_ms: int
    until_ms: int
    group_id: int = 0
    log_id: int = 0
    offset: int = -1
    token: str = ""  # of the lease under which the caller holds its message


class KeyCommitted(Fact, tag=41, frozen=True):
    """The effect of a key happened; its result is kept until it expires."""

    key: str
    fence: int
    at_ms: int
    expires_ms: int
    result: bytes


class KeyFailed(Fact, tag=42, frozen=True):
    """The effect of a key failed; it may be begun again."""

    key: str
    fence: int
    at_ms: int
    expires_ms: int
    error: str


class KeysSwept(Fact, tag=47, frozen=True):
    """Keys of produces whose time was over before `until_ms` are forgotten; unfinished jobs keep their ids."""

    at_ms: int
    until_ms: int


# --- outcomes --------------------------------------------------------------------------------------------------------


class OutcomeRecorded(Fact, tag=43, frozen=True):
    """An outcome was carried out. The same one sent again before `expires_ms` gets this result. In a snapshot it is its
    own image."""

    outcome: bytes  # what the outcome is recognised by, as a hash
    digest: bytes  # of what it asked for
    expires_ms: int
    at_ms: int
    result: bytes


class OutcomesForgotten(Fact, tag=44, frozen=True):
    """The oldest remembered outcomes have expired."""

    count: int


# --- staged batches --------------------------------------------------------------------------------------------------


class Staged(Fact, tag=50, frozen=True):
    """A batch waits in the staging log, durable and invisible, to be published into its target."""

    handle: str
    writer: str
    target_log_id: int
    first_offset: int
    count: int
    payload_bytes: int
    at_ms: int
    expires_ms: int
    batch: bytes


class PublishedBatch(Struct, frozen=True, array_like=True, gc=False):
    """One staged batch and the place in its target log that it was given."""

    log_id: int
    first_offset: int
    count: int
    payload_bytes: int
    staged_offset: int


class Published(Fact, tag=51, frozen=True):
    """The staged batches of a writer's batch became visible, together and once; its other stages are forgotten."""

    writer: str
    batch_number: int
    at_ms: int
    parts: tuple[PublishedBatch, ...]
    staging_start: int  # below it the staging log is not needed any more


class StagesForgotten(Fact, tag=52, frozen=True):
    """Stages that expired, or that their writer gave up."""

    handles: tuple[str, ...]
    staging_start: int
