"""The client's exceptions.

    DriftQError
    ├── Refused                  the broker refused the call, and nothing was changed
    │   ├── InvalidCall          the call is wrong; repeating it does not help
    │   │   └── TooLarge         larger than a limit
    │   ├── NotAllowed           wrong credentials, or a host that is not served
    │   ├── NotFound             no such topic, group, job, stream
    │   ├── Conflict             it exists already, with other properties
    │   ├── LeaseLost            another worker holds the message now
    │   ├── Busy                 another worker holds the effect
    │   ├── Overloaded           too much at once; try later
    │   ├── Unavailable          starting, stopping, or the disk is full; try later
    │   ├── OutOfStep            a producer's epoch or seq is not what the broker expects
    │   │   ├── StaleEpoch       a newer producer of the same name has taken over
    │   │   ├── SequenceGap      a batch before this one is missing
    │   │   └── SequenceMismatch the seq was used with other bytes
    │   ├── TailMoved            another writer appended first
    │   ├── StreamClosed         the stream is closed: no more appends
    │   ├── Gone                 it was deleted, or trimmed
    │   └── ServerFailed         a bug or a broken disk of the broker
    ├── NotConnected             no connection; nothing was sent
    ├── OutcomeUnknown           it was sent, and no reply came: it may have happened
    ├── NotWritten               a flush or close that could not write everything
    ├── JobFailed                the job became a dead letter; `traceback` is its worker's
    ├── JobCancelled             the job was cancelled
    ├── ResultTimeout            the job has not ended in time
    ├── ResultExpired            the job ended so long ago that its result is gone
    ├── BufferFull               a producer's buffer is full
    └── Closed                   the client or producer was closed

Every one has `retryable` (the same call may succeed later), `retry_after_ms` and `remedy`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from driftq.wire.errors import Code, Remedy


class DriftQError(Exception):
    """Base of all errors of the client."""

    remedy: Remedy = Remedy.FIX_THE_CALL
    retryable: bool = False
    retry_after_ms: int | None = None


class Refused(DriftQError):
    """The broker refused the call. `code` is the reason, `details` has the other fields of the reply."""

    default: ClassVar[Code] = Code.INVALID_ARGUMENT

    def __init__(
        self,
        message: str,
        *,
        code: Code | None = None,
        status: int = 0,
        details: Mapping[str, Any] | None = None,
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default
        self.status = status
        self.details: Mapping[str, Any] = details or {}
        self.retry_after_ms = retry_after_ms
        self.remedy = self.code.remedy
        self.retryable = self.remedy is Remedy.RETRY_LATER

    def __str__(self) -> str:
        return f"{self.message} [{self.code}, {self.status}: {self.remedy}]" if self.status else self.message


class InvalidCall(Refused):
    default = Code.INVALID_ARGUMENT


class TooLarge(InvalidCall):
    default = Code.TOO_LARGE


class NotAllowed(Refused):
    """401 or 403: wrong credentials, or a host that is not served."""


class NotFound(Refused):
    default = Code.NOT_FOUND


class Conflict(Refused):
    default = Code.CONFLICT


class LeaseLost(Refused):
    default = Code.NOT_OWNER


class Busy(Refused):
    default = Code.BUSY


class Overloaded(Refused):
    default = Code.OVERLOADED


class Unavailable(Refused):
    default = Code.UNAVAILABLE


class OutOfStep(Refused):
    """`expected_seq` and `epoch` are what the broker expects."""

    @property
    def expected_seq(self) -> int:
        return int(self.details.get("expected_seq", 0))

    @property
    def epoch(self) -> int:
        return int(self.details.get("epoch", 0))


class StaleEpoch(OutOfStep):
    default = Code.STALE_EPOCH


class SequenceGap(OutOfStep):
    default = Code.SEQUENCE_GAP


class SequenceMismatch(OutOfStep):
    default = Code.SEQUENCE_MISMATCH


class TailMoved(Refused):
    """`offset` is where the stream ends now."""

    default = Code.TAIL_MOVED

    @property
    def offset(self) -> str:
        return str(self.details.get("next_offset", ""))


class StreamClosed(Refused):
    default = Code.CLOSED


class Gone(Refused):
    """`earliest` is where the log or stream begins now."""

    default = Code.GONE

    @property
    def earliest(self) -> int | str:
        earliest = self.details.get("earliest_offset", 0)
        return earliest if isinstance(earliest, int) else str(earliest)


class ServerFailed(Refused):
    """5xx. Unlike with every other refusal, the change may have happened."""

    default = Code.DATA_CORRUPT


class NotConnected(DriftQError):
    remedy = Remedy.RETRY_LATER
    retryable = True


class OutcomeUnknown(DriftQError):
    """The call may have happened. The client has retried it already if it is idempotent."""

    remedy = Remedy.READ_AGAIN


class NotWritten(DriftQError):
    """`count` messages were not written; `failed` has what went wrong, once for each batch they were in."""

    def __init__(self, failed: Sequence[DriftQError], count: int) -> None:
        self.failed = list(failed)
        self.count = count
        first = f"; the first: {self.failed[0]}" if self.failed else ""
        super().__init__(f"{count} messages were not written{first}")
        self.retryable = bool(self.failed) and all(error.retryable for error in self.failed)


class JobFailed(DriftQError):
    """A job became a dead letter. `error` is its last error, and `traceback` the text that its worker sent, if any."""

    remedy = Remedy.GIVE_UP

    def __init__(self, id: str, error: str, traceback: str = "") -> None:
        self.id = id
        self.error = error
        self.traceback = traceback
        reason = error or "it became a dead letter"
        super().__init__(f"job {id} failed: {reason}" + (f"\n\nIn the worker:\n{traceback}" if traceback else ""))


class JobCancelled(DriftQError):
    remedy = Remedy.GIVE_UP


class ResultTimeout(DriftQError, TimeoutError):
    """The job may still end: ask again."""

    remedy = Remedy.RETRY_LATER
    retryable = True


class ResultExpired(DriftQError):
    """Results are kept for `jobs.result_ttl_ms`."""

    remedy = Remedy.GIVE_UP


class BufferFull(DriftQError):
    remedy = Remedy.RETRY_LATER
    retryable = True


class Closed(DriftQError):
    remedy = Remedy.FIX_THE_CALL


_BY_CODE: dict[Code, type[Refused]] = {
    Code.INVALID_ARGUMENT: InvalidCall,
    Code.UNAUTHENTICATED: NotAllowed,
    Code.PERMISSION_DENIED: NotAllowed,
    Code.NOT_FOUND: NotFound,
    Code.ALREADY_EXISTS: Conflict,
    Code.CONFLICT: Conflict,
    Code.CLOSED: StreamClosed,
    Code.GONE: Gone,
    Code.NOT_OWNER: LeaseLost,
    Code.NOT_DELIVERED: InvalidCall,
    Code.STALE_EPOCH: StaleEpoch,
    Code.SEQUENCE_GAP: SequenceGap,
    Code.SEQUENCE_MISMATCH: SequenceMismatch,
    Code.SEQUENCE_REGRESSION: Conflict,
    Code.CONTENT_MISMATCH: Conflict,
    Code.TAIL_MOVED: TailMoved,
    Code.KEY_CONFLICT: Conflict,
    Code.BUSY: Busy,
    Code.OVERLOADED: Overloaded,
    Code.DISK_FULL: Unavailable,
    Code.TOO_LARGE: TooLarge,
    Code.DEADLINE_EXCEEDED: InvalidCall,
    Code.UNAVAILABLE: Unavailable,
    Code.DATA_CORRUPT: ServerFailed,
}


def refused(
    code: Code, message: str, status: int, details: Mapping[str, Any] | None = None, retry_after_ms: int | None = None
) -> Refused:
    """The exception of a refusal."""
    kind = NotAllowed if status in (401, 403) and code is not Code.STALE_EPOCH else _BY_CODE[code]
    return kind(message, code=code, status=status, details=details, retry_after_ms=retry_after_ms)
