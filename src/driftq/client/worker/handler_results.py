"""How an attempt ends: a handler returns, raises, or raises one of the results below.

    return               ack        the message is settled
    raise Retry(…)       nack       retried after `after_ms`, or when the retry policy says
    raise Reject(…)      reject     dead-lettered at once
    raise Release(…)     release    delivered to another worker; the attempt is not counted
    raise Busy           release    another worker holds the effect; not counted either
    raise anything else  nack       retried; the error becomes `last_error`

`settlement_for` is this table. Pure: `driftq.client.claims` builds the call that carries a settlement.
"""

from __future__ import annotations

from typing import NamedTuple

from driftq.client.errors import Busy

REASON_CHARACTERS_MAX = 500


class HandlerResult(Exception):
    """Base of what a handler raises on purpose."""


class Retry(HandlerResult):
    """The attempt failed. The message is delivered again after `after_ms`, or when the retry policy says."""

    def __init__(self, after_ms: int | None = None, reason: str = "") -> None:
        super().__init__(reason or "retry")
        self.after_ms = after_ms
        self.reason = reason or "retry"


class Reject(HandlerResult):
    """The message can never succeed: it becomes a dead letter at once."""

    def __init__(self, reason: str = "rejected") -> None:
        super().__init__(reason)
        self.reason = reason


class Release(HandlerResult):
    """Give the message back without counting an attempt."""

    def __init__(self, after_ms: int | None = None) -> None:
        super().__init__("released")
        self.after_ms = after_ms


class SettleAction(NamedTuple):
    """How a message is settled: the verb of the call and its fields. Equal settlements share one call."""

    verb: str
    reason: str = ""
    delay_ms: int | None = None

    def fields(self) -> dict[str, object]:
        """The fields of the call in addition to the messages."""
        match self.verb:
            case "nack/batch":
                return {"reason": self.reason, "delay_ms": self.delay_ms}
            case "release":
                return {"delay_ms": self.delay_ms}
            case "reject":
                return {"reason": self.reason}
            case _:
                return {}


ACK = SettleAction("ack/batch")
RELEASE = SettleAction("release")


def settlement_for(error: BaseException | None) -> SettleAction:
    """The settlement of an attempt that returned (None) or raised."""
    match error:
        case None:
            return ACK
        case Retry():
            return SettleAction("nack/batch", error.reason, error.after_ms)
        case Reject():
            return SettleAction("reject", error.reason)
        case Release():
            return SettleAction("release", delay_ms=error.after_ms)
        case Busy():
            return SettleAction("release", delay_ms=error.retry_after_ms)  # another worker has the effect: no failure
        case _:
            return SettleAction("nack/batch", error_summary(error))


def error_summary(error: BaseException) -> str:
    """An error in one line, for `last_error`."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return text if len(text) <= REASON_CHARACTERS_MAX else text[: REASON_CHARACTERS_MAX - 1] + "…"
