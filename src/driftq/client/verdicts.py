"""What a handler can say about its message by raising: later, never, not me. Returning means done."""

from __future__ import annotations

from driftq.client.errors import Busy

REASON_CHARACTERS_MAX = 500


class Verdict(Exception):
    """Base of what a handler raises on purpose."""


class Retry(Verdict):
    """Failed for now. Comes again after `after_ms`, or when the retry policy says so."""

    def __init__(self, after_ms: int | None = None, reason: str = "") -> None:
        super().__init__(reason or "retry")
        self.after_ms = after_ms
        self.reason = reason or "retry"


class Reject(Verdict):
    """Never again: the message becomes a dead letter at once."""

    def __init__(self, reason: str = "rejected") -> None:
        super().__init__(reason)
        self.reason = reason


class Release(Verdict):
    """Not my turn: somebody else may have it. Counts no attempt."""

    def __init__(self, after_ms: int | None = None) -> None:
        super().__init__("released")
        self.after_ms = after_ms


def reason_of(error: BaseException) -> str:
    """An error in one line, for `last_error`."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return text if len(text) <= REASON_CHARACTERS_MAX else text[: REASON_CHARACTERS_MAX - 1] + "…"


class Ending:
    """How a message ends: a verb of the wire and what goes with it. Equal ones share a call."""

    __slots__ = ("verb", "reason", "delay_ms")

    def __init__(self, verb: str, reason: str = "", delay_ms: int | None = None) -> None:
        self.verb = verb
        self.reason = reason
        self.delay_ms = delay_ms

    @property
    def key(self) -> tuple[str, str, int | None]:
        return self.verb, self.reason, self.delay_ms

    def words(self) -> dict[str, object]:
        """The fields of the call beyond the messages."""
        match self.verb:
            case "nack/batch":
                return {"reason": self.reason, "delay_ms": self.delay_ms}
            case "release":
                return {"delay_ms": self.delay_ms}
            case "reject":
                return {"reason": self.reason}
            case _:
                return {}


ACK = Ending("ack/batch")
RELEASE = Ending("release")


def ending_of(error: BaseException | None) -> Ending:
    """Return = ack, raise = retry, and what the verdicts say."""
    match error:
        case None:
            return ACK
        case Retry():
            return Ending("nack/batch", error.reason, error.after_ms)
        case Reject():
            return Ending("reject", error.reason)
        case Release():
            return Ending("release", delay_ms=error.after_ms)
        case Busy():
            return Ending("release", delay_ms=error.retry_after_ms)  # somebody works on it: nothing has failed
        case _:
            return Ending("nack/batch", reason_of(error))
