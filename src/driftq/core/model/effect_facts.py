"""Facts of work that happens once: effect keys (tags 40 to 42, 46, 47), outcomes (43, 44), staged batches (50 to 52).

Facts evolve as described in `core.model.facts`.
"""

from __future__ import annotations

from msgspec import Struct

from driftq.core.model.facts import Fact

# --- effect keys -----------------------------------------------------------------------------------------------------


class KeyBegun(Fact, tag=40, frozen=True):
    """A worker began an effect. Callers with a lower fence are late from now on."""

    key: str
    fence: int
    owner: str
    at_ms: int
    until_ms: int
    group_id: int = 0
    log_id: int = 0
    offset: int = -1
    token: str = ""  # of the lease of the caller's message


class KeyCommitted(Fact, tag=41, frozen=True):
    """An effect was committed. Its result is kept until it expires."""

    key: str
    fence: int
    at_ms: int
    expires_ms: int
    result: bytes


class KeyFailed(Fact, tag=42, frozen=True):
    """An effect failed. It may be begun again."""

    key: str
    fence: int
    at_ms: int
    expires_ms: int
    error: str


class EffectsChecked(Fact, tag=46, frozen=True):
    """The `count` keys that were checked least recently were checked again: those that had expired were forgotten."""

    at_ms: int
    count: int


class KeysSwept(Fact, tag=47, frozen=True):
    """Idempotency keys of produces that expired before `until_ms` were forgotten. Unfinished jobs keep their ids."""

    at_ms: int
    until_ms: int


# --- outcomes --------------------------------------------------------------------------------------------------------


class OutcomeRecorded(Fact, tag=43, frozen=True):
    """An outcome was carried out. The same outcome sent again before `expires_ms` gets this result. Snapshots hold the
    same fact."""

    outcome: bytes  # a hash of what identifies the outcome
    digest: bytes  # of the request
    expires_ms: int
    at_ms: int
    result: bytes


class OutcomesForgotten(Fact, tag=44, frozen=True):
    """The oldest outcomes expired and were forgotten."""

    count: int


# --- staged batches --------------------------------------------------------------------------------------------------


class Staged(Fact, tag=50, frozen=True):
    """A batch was staged: durable in the staging log, invisible until it is published into its target."""

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
    """A staged batch, and the offsets in its target log that it was published at."""

    log_id: int
    first_offset: int
    count: int
    payload_bytes: int
    staged_offset: int


class Published(Fact, tag=51, frozen=True):
    """The staged batches of a writer became visible, together and once. Its other stages were forgotten."""

    writer: str
    batch_number: int
    at_ms: int
    parts: tuple[PublishedBatch, ...]
    staging_start: int  # the staging log is not needed below this offset
    content: str = ""  # identifies the content; empty if the writer did not say


class StagesForgotten(Fact, tag=52, frozen=True):
    """Stages expired, or their writer dropped them."""

    handles: tuple[str, ...]
    staging_start: int
