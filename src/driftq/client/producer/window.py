"""The sequence of a pipelined idempotent producer in one log: pure, time comes as an argument.

Batches are numbered, up to five travel at a time, and whatever happens to them the log gets each once and in order:

- *stored* (or a duplicate): done.
- *refused for now*, *unknown* (timeout, reset, 5xx), a *gap* behind one of these: nothing new is sent until everything
  under way is answered; then all of it goes again, in order, under the same numbers.
- *refused for good*: it was not stored, so none behind it was. It fails alone; those behind begin a new epoch, which
  shuts out any copy of them that is still on its way.
- *out of time*: what may have been stored fails as unknown, and the rest begins a new epoch, too.
- *stale epoch*: at the very start the clock was behind, and the next epoch is claimed; later a newer producer has taken
  over, and everything fails.

Batches of one epoch travel at a time, and the first of an epoch travels alone: the broker knows it only from then on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from driftq.client.errors import DriftQError, OutcomeUnknown, SequenceGap, ServerFailed, StaleEpoch

B = TypeVar("B")

IN_FLIGHT_MAX = 5


class InFlightBatch(Generic[B]):
    """A batch on its way: its number, and what is known of its attempts."""

    __slots__ = ("alone", "batch", "epoch", "error", "expires_s", "in_flight", "maybe_stored", "sent_epoch", "seq")

    def __init__(self, batch: B, epoch: int, seq: int, expires_s: float) -> None:
        self.batch = batch
        self.epoch = epoch
        self.seq = seq
        self.expires_s = expires_s
        self.in_flight = False
        self.sent_epoch = -1
        self.alone = False  # it was sent when nothing was before it: a gap then means lost history
        self.maybe_stored = False
        self.error: DriftQError | None = None


class SettledBatch(NamedTuple):
    """The end of a batch: what the broker answered, or why it failed."""

    batch: Any
    reply: Any
    error: DriftQError | None


class Window(Generic[B]):
    """One producer in one log. The driver asks `due`, writes, reports every answer, and takes what is `done`."""

    def __init__(
        self,
        epoch: int,
        *,
        in_flight_max: int = IN_FLIGHT_MAX,
        is_fixed: bool = False,
        pause_s: Callable[[int], float] = lambda failures: 0.0,
    ) -> None:
        self.epoch = epoch
        self.done: list[SettledBatch] = []
        self.fatal: DriftQError | None = None
        self._is_fixed = is_fixed  # somebody else gives the epochs: there is no next one to claim
        self._in_flight_max = in_flight_max
        self._pause_s = pause_s
        self._queue: deque[InFlightBatch[B]] = deque()
        self._next_seq = 0
        self._in_flight = 0
        self._known_epoch: int | None = None  # of the last batch that was stored
        self._recovering = False
        self._resume_s = 0.0
        self._failures = 0

    # --- what the driver asks ---

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def in_flight(self) -> int:
        return self._in_flight

    def has_room(self) -> bool:
        """Whether another batch would be sent soon; if not, it may as well grow."""
        return len(self._queue) < self._in_flight_max and not (self._recovering and self._queue)

    def add(self, batch: B, expires_s: float) -> None:
        sending = InFlightBatch(batch, self.epoch, self._next_seq, expires_s)
        if self.fatal is not None:
            self._end(sending, self.fatal)
            return
        self._next_seq += 1
        self._queue.append(sending)

    def due(self, now_s: float) -> list[InFlightBatch[B]]:
        """What to write now, in order. Everything in it counts as under way from here on."""
        if self._in_flight == 0:
            self._forget_expired(now_s)
        if self._recovering:
            if self._in_flight or now_s < self._resume_s:
                return []
            self._recovering = False
        found: list[InFlightBatch[B]] = []
        epoch = self._queue[0].epoch if self._queue else 0
        most = self._in_flight_max if self._known_epoch == epoch else 1
        for sending in self._queue:
            if self._in_flight >= most or sending.epoch != epoch:
                break
            if not sending.in_flight:
                sending.in_flight = True
                sending.sent_epoch = epoch
                sending.alone = self._in_flight == 0 and sending is self._queue[0]
                self._in_flight += 1
                found.append(sending)
        return found

    def next_s(self) -> float | None:
        """When `due` may have something without anything else happening."""
        if not self._queue or self._in_flight:
            return None
        return min(self._resume_s, self._queue[0].expires_s) if self._recovering else 0.0

    def expires_s(self) -> float | None:
        """When the next batch expires. A batch that is under way does not: its answer, or its timeout, comes first."""
        return min(sending.expires_s for sending in self._queue) if self._queue and not self._in_flight else None

    # --- what the driver reports ---

    def stored(self, sending: InFlightBatch[B], reply: object) -> None:
        """It is in the log; perhaps it was before."""
        if not self._landed(sending):
            return
        self._failures = 0
        self._known_epoch = sending.sent_epoch
        self._queue.remove(sending)
        self.done.append(SettledBatch(sending.batch, reply, None))

    def unknown(self, sending: InFlightBatch[B], error: DriftQError, now_s: float) -> None:
        """Nobody knows whether it is in the log."""
        if self._landed(sending):
            self._doubt(sending)
            sending.error = error
            self._recover(now_s, self._wait_s(error))

    def refused(self, sending: InFlightBatch[B], error: DriftQError, now_s: float) -> None:
        """It is not in the log, at least not by this attempt."""
        if not self._landed(sending):
            return
        sending.error = error
        match error:
            case ServerFailed():
                self._doubt(sending)
                self._recover(now_s, self._wait_s(error))
            case SequenceGap() if not sending.alone:
                self._recover(now_s, 0.0)
            case SequenceGap():
                self._history_lost(error, now_s)
            case StaleEpoch():
                self._stale(error, now_s)
            case DriftQError(retryable=True):
                self._recover(now_s, self._wait_s(error))
            case _:
                self._drop(sending, error, now_s)

    def fail_all(self, error: DriftQError) -> None:
        """Nothing more will be sent."""
        self.fatal = self.fatal or error
        for sending in self._queue:
            self._end(sending, error)
        self._queue.clear()
        self._in_flight = 0

    def close(self, error: DriftQError) -> None:
        """Nothing more will be sent or answered: a batch that may be stored ends as unknown, any other with `error`."""
        for sending in self._queue:
            if sending.in_flight:
                self._doubt(sending)
            self._end(sending, _lost(sending) if sending.maybe_stored else error)
        self._queue.clear()
        self._in_flight = 0
        self.fatal = self.fatal or error

    # --- how it goes on ---

    def _landed(self, sending: InFlightBatch[B]) -> bool:
        """Whether anybody still waits for this answer."""
        if not sending.in_flight or self.fatal is not None:
            return False
        sending.in_flight = False
        self._in_flight -= 1
        return True

    def _wait_s(self, error: DriftQError) -> float:
        self._failures += 1
        return max(self._pause_s(self._failures), (error.retry_after_ms or 0) / 1_000)

    def _recover(self, now_s: float, pause_s: float) -> None:
        self._resume_s = max(self._resume_s if self._recovering else 0.0, now_s + pause_s)
        self._recovering = True

    def _doubt(self, sending: InFlightBatch[B]) -> None:
        """A batch that was moved to a new epoch meanwhile stood behind one that is missing: it was not stored."""
        if sending.sent_epoch == sending.epoch:
            sending.maybe_stored = True

    def _drop(self, refused: InFlightBatch[B], error: DriftQError, now_s: float) -> None:
        """It fails; those before it go on as they are, those behind it were not stored and move to a new epoch."""
        if self._is_fixed:
            self.fail_all(error)
            return
        place = self._queue.index(refused)
        self._queue.remove(refused)
        self._end(refused, _lost(refused) if refused.maybe_stored else error)
        for sending in list(self._queue)[place:]:
            sending.maybe_stored = False
        self._begin_epoch(self.epoch + 1, place)
        self._recover(now_s, 0.0)

    def _stale(self, error: StaleEpoch, now_s: float) -> None:
        if self._known_epoch is not None or self._is_fixed:
            self.fail_all(error)
            return
        self._begin_epoch(error.epoch + 1)
        self._recover(now_s, 0.0)

    def _history_lost(self, error: SequenceGap, now_s: float) -> None:
        """The broker no longer knows this producer: what may be stored cannot be told apart from what is not."""
        if self._is_fixed:
            self.fail_all(error)
            return
        self._give_up([], now_s)

    def _forget_expired(self, now_s: float) -> None:
        expired = [sending for sending in self._queue if sending.expires_s <= now_s]
        if not expired:
            return
        if self._is_fixed:
            self.fail_all(_lost(expired[0]))
            return
        self._give_up(expired, now_s)

    def _give_up(self, some: list[InFlightBatch[B]], now_s: float) -> None:
        """These fail, and so does everything that may be stored already; the rest begins a new epoch."""
        for sending in list(self._queue):
            if sending in some or sending.maybe_stored:
                self._queue.remove(sending)
                self._end(sending, _lost(sending))
        self._begin_epoch(self.epoch + 1)
        self._recover(now_s, 0.0)

    def _begin_epoch(self, epoch: int, place: int = 0) -> None:
        """Number everything from a place on anew."""
        self.epoch = epoch
        moved = list(self._queue)[place:]
        for seq, sending in enumerate(moved):
            sending.epoch, sending.seq = epoch, seq
        self._next_seq = len(moved)

    def _end(self, sending: InFlightBatch[B], error: DriftQError) -> None:
        sending.in_flight = False
        self.done.append(SettledBatch(sending.batch, None, error))


def _lost(sending: InFlightBatch[Any]) -> DriftQError:
    """What is said of a batch that is given up."""
    if sending.maybe_stored or sending.error is None:
        return OutcomeUnknown(f"no certain answer in time; it may be written, or not (last: {sending.error})")
    return sending.error
