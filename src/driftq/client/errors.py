"""What can go wrong, as exceptions that say what to do.

    DriftQError
    ├── Refused                  the broker said no, and nothing was changed
    │   ├── InvalidCall          the call is wrong and will be wrong again
    │   │   └── TooLarge         it will never fit
    │   ├── NotAllowed           who you are is not enough
    │   ├── NotFound             no such topic, group, job, stream
    │   ├── Conflict             it is there already, with other properties
    │   ├── LeaseLost            the message is somebody else's now
    │   ├── Busy                 somebody works on it
    │   ├── Overloaded           too much at once; later
    │   ├── Unavailable          starting, stopping, or the disk is full; later
    │   ├── OutOfStep            an idempotent producer is not where the broker thinks it is
    │   │   ├── StaleEpoch       a newer producer of the same name writes
    │   │   ├── SequenceGap      a batch before this one is missing
    │   │   └── SequenceMismatch the number was used with other bytes
    │   ├── TailMoved            somebody appended first
    │   ├── StreamClosed         nothing can be appended any more
    │   ├── Gone                 it was there once
    │   └── ServerFailed         a bug or a broken disk on the other side
    ├── NotConnected             nobody answers; nothing was sent
    ├── OutcomeUnknown           it was sent and no answer came: done, or not
    ├── NotWritten               a flush that could not write everything
    ├── BufferFull               a producer holds as much as it may
    └── Closed                   the client, producer or worker was closed before

Every one has `retryable` (the same call may succeed later), `retry_after_ms` and `remedy`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from driftq.wire.errors import Code, Remedy


class DriftQError(Exception):
    """Base of everything this client raises."""

    remedy: Remedy = Remedy.FIX_THE_CALL
    retryable: bool = False
    retry_after_ms: int | None = None


class Refused(DriftQError):
    """The broker said no. `code` is its word, `details` is what else it said."""

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
    """`expected_seq` and `epoch` are what the broker has."""

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
        found = self.details.get("earliest_offset", 0)
        return found if isinstance(found, int) else str(found)


class ServerFailed(Refused):
    """5xx without a promise: unlike every other refusal, the change may have happened."""

    default = Code.DATA_CORRUPT


class NotConnected(DriftQError):
    remedy = Remedy.RETRY_LATER
    retryable = True


class OutcomeUnknown(DriftQError):
    """Retryable only if the call can be repeated without harm, which `send` knows and does by itself."""

    remedy = Remedy.READ_AGAIN


class NotWritten(DriftQError):
    """`count` messages were not written; `failed` has what went wrong, once for each batch they were in."""

    def __init__(self, failed: Sequence[DriftQError], count: int) -> None:
        self.failed = list(failed)
        self.count = count
        first = f"; the first: {self.failed[0]}" if self.failed else ""
        super().__init__(f"{count} messages were not written{first}")
        self.retryable = bool(self.failed) and all(error.retryable for error in self.failed)


class BufferFull(DriftQError):
    remedy = Remedy.RETRY_LATER
    retryable = True


class Closed(DriftQError):
    remedy = Remedy.FIX_THE_CALL


_BY_CODE: dict[Code, type[Refused]] = {
    Code.INVALID_ARGUMENT: InvalidCall,
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
