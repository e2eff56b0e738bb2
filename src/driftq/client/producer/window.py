"""The send window of an idempotent producer in one log: which batch to send when, and under which epoch and seq.

Pure: no I/O, and time is an argument. `sender` is the driver: it calls `add`, writes what `due` returns, reports every
answer (`stored`, `refused`, `unknown`) and takes the finished batches from `settled`.

**Promise.** Each batch is in the log once and in order, or its error says that it is not there, or `OutcomeUnknown`
says that it may be. The broker accepts (producer, epoch, seq) once and only in sequence; the window keeps to that.

**States of a batch** (a `WindowEntry` in the queue):

      add()               due()                 stored()
    ────────▶ waiting ─────────────▶ in flight ───────────▶ settled (reply)
                 ▲                       │
                 │  recovery: all are    │ refused(), unknown()
                 └─ sent again, in order ┤
                                         └────────────────▶ settled (error)

At most `in_flight_max` (5) are in flight, all of one epoch. The first batch of an epoch travels alone: the broker knows
the epoch only when it has stored that batch, and would take a later one for a gap.

**Recovery.** After an answer that is not `stored`, nothing new is sent until every batch in flight is answered and the
backoff has passed. Then all of them are sent again, in order, under the same epoch and seq. The broker recognises those
that it has and answers `duplicate`.

**What happens on each answer**

    answer                          the batch                              the batches after it
    ──────────────────────────────  ─────────────────────────────────────  ──────────────────────────────────────
    stored, duplicate               settled                                continue
    refused for now (429, 503, …)   waits, sent again                      wait, sent again
    unknown (timeout, reset, 5xx)   maybe stored: waits, sent again        wait, sent again
    gap, sent after another         the one before failed: sent again      wait, sent again
    gap, sent as head               the broker forgot this producer: fails as unknown what may be stored;
                                    the rest starts a new epoch
    refused for good (4xx)          fails alone                            not stored either: start a new epoch
    expired (no answer in time)     fails, as unknown if maybe stored      those maybe stored fail, too; the rest
                                                                           starts a new epoch
    stale epoch, first batch        the clock is behind an older instance: all start at the next epoch
    stale epoch, later              a newer producer of this name has taken over: all fail (`fatal`)

A **new epoch** numbers the remaining batches from seq 0 and fences off copies of them that are still under way: the
broker refuses the lower epoch. If the caller chose the epoch (`epoch_is_fixed`), there is no next one, and every
failure that would need one is fatal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from driftq.client.errors import DriftQError, OutcomeUnknown, SequenceGap, ServerFailed, StaleEpoch

B = TypeVar("B")

IN_FLIGHT_MAX = 5


class WindowEntry(Generic[B]):
    """A batch in the window: its number, and what is known of its attempts."""

    __slots__ = ("was_head", "batch", "epoch", "error", "expires_s", "in_flight", "maybe_stored", "sent_epoch", "seq")

    def __init__(self, batch: B, epoch: int, seq: int, expires_s: float) -> None:
        self.batch = batch
        self.epoch = epoch
        self.seq = seq
        self.expires_s = expires_s  # fails at this time unless it is in flight
        self.in_flight = False  # sent, and not answered
        self.sent_epoch = -1  # the epoch of the last attempt; `epoch` may have grown since
        self.was_head = False  # nothing was in flight before it when it was sent: a gap then means lost history
        self.maybe_stored = False  # some attempt had no certain answer
        self.error: DriftQError | None = None  # of the last attempt


class SettledBatch(NamedTuple):
    """A finished batch: the broker's reply, or why it failed."""

    batch: Any
    reply: Any
    error: DriftQError | None


class Window(Generic[B]):
    """One producer in one log. The driver writes what is `due`, reports every answer, and takes what is `settled`."""

    def __init__(
        self,
        epoch: int,
        *,
        in_flight_max: int = IN_FLIGHT_MAX,
        epoch_is_fixed: bool = False,
        backoff_s: Callable[[int], float] = lambda failures: 0.0,
    ) -> None:
        self.epoch = epoch  # of the next batch that is added
        self.settled: list[SettledBatch] = []  # finished since the driver last looked
        self.fatal: DriftQError | None = None  # set once nothing can be sent any more
        self._epoch_is_fixed = epoch_is_fixed  # the caller chose the epoch: there is no next one
        self._in_flight_max = in_flight_max
        self._backoff_s = backoff_s  # of the nth failure in a row
        self._queue: deque[WindowEntry[B]] = deque()  # not settled, in order of (epoch, seq)
        self._next_seq = 0
        self._in_flight = 0  # entries of the queue that are in flight
        self._stored_epoch: int | None = None  # of the last batch that was stored
        self._recovering = False  # nothing new is sent until all are answered and `_resume_s` has passed
        self._resume_s = 0.0
        self._failures = 0  # in a row

    # --- for the driver: what to send ---

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def in_flight(self) -> int:
        return self._in_flight

    def has_room(self) -> bool:
        """Whether another batch would be sent soon. If not, the accumulator may let it grow."""
        return len(self._queue) < self._in_flight_max and not (self._recovering and self._queue)

    def add(self, batch: B, expires_s: float) -> None:
        entry = WindowEntry(batch, self.epoch, self._next_seq, expires_s)
        if self.fatal is not None:
            self._settle_failed(entry, self.fatal)
            return
        self._next_seq += 1
        self._queue.append(entry)

    def due(self, now_s: float) -> list[WindowEntry[B]]:
        """What to write now, in order. All of it counts as in flight from now on."""
        if self._in_flight == 0:
            self._fail_expired(now_s)
        if self._recovering:
            if self._in_flight or now_s < self._resume_s:
                return []
            self._recovering = False
        due: list[WindowEntry[B]] = []
        epoch = self._queue[0].epoch if self._queue else 0
        limit = self._in_flight_max if self._stored_epoch == epoch else 1
        for entry in self._queue:
            if self._in_flight >= limit or entry.epoch != epoch:
                break
            if not entry.in_flight:
                entry.in_flight = True
                entry.sent_epoch = epoch
                entry.was_head = self._in_flight == 0 and entry is self._queue[0]
                self._in_flight += 1
                due.append(entry)
        return due

    def next_due_s(self) -> float | None:
        """When `due` may return something even if no answer arrives; None if only an answer helps."""
        if not self._queue or self._in_flight:
            return None
        return min(self._resume_s, self._queue[0].expires_s) if self._recovering else 0.0

    def expires_s(self) -> float | None:
        """When the next batch expires. A batch in flight does not: its answer, or its timeout, comes first."""
        return min(entry.expires_s for entry in self._queue) if self._queue and not self._in_flight else None

    # --- for the driver: answers ---

    def stored(self, entry: WindowEntry[B], reply: object) -> None:
        """It is in the log, by this attempt or an earlier one."""
        if not self._take_answer(entry):
            return
        self._failures = 0
        self._stored_epoch = entry.sent_epoch
        self._queue.remove(entry)
        self.settled.append(SettledBatch(entry.batch, reply, None))

    def unknown(self, entry: WindowEntry[B], error: DriftQError, now_s: float) -> None:
        """There was no answer: it may be in the log."""
        if self._take_answer(entry):
            self._mark_maybe_stored(entry)
            entry.error = error
            self._recover(now_s, self._next_backoff_s(error))

    def refused(self, entry: WindowEntry[B], error: DriftQError, now_s: float) -> None:
        """The broker refused it. Unless the error is a `ServerFailed`, this attempt did not store it."""
        if not self._take_answer(entry):
            return
        entry.error = error
        match error:
            case ServerFailed():
                self._mark_maybe_stored(entry)
                self._recover(now_s, self._next_backoff_s(error))
            case SequenceGap() if not entry.was_head:
                self._recover(now_s, 0.0)
            case SequenceGap():
                self._on_lost_history(error, now_s)
            case StaleEpoch():
                self._on_stale_epoch(error, now_s)
            case DriftQError(retryable=True):
                self._recover(now_s, self._next_backoff_s(error))
            case _:
                self._refuse_for_good(entry, error, now_s)

    def fail_all(self, error: DriftQError) -> None:
        """Nothing more will be sent."""
        self.fatal = self.fatal or error
        for entry in self._queue:
            self._settle_failed(entry, error)
        self._queue.clear()
        self._in_flight = 0

    def close(self, error: DriftQError) -> None:
        """Nothing more will be sent or answered: what may be stored fails as unknown, the rest with `error`."""
        for entry in self._queue:
            if entry.in_flight:
                self._mark_maybe_stored(entry)
            self._settle_failed(entry, _expiry_error(entry) if entry.maybe_stored else error)
        self._queue.clear()
        self._in_flight = 0
        self.fatal = self.fatal or error

    # --- recovery and epochs ---

    def _take_answer(self, entry: WindowEntry[B]) -> bool:
        """Count an answer. False if the batch was settled before it came."""
        if not entry.in_flight or self.fatal is not None:
            return False
        entry.in_flight = False
        self._in_flight -= 1
        return True

    def _next_backoff_s(self, error: DriftQError) -> float:
        self._failures += 1
        return max(self._backoff_s(self._failures), (error.retry_after_ms or 0) / 1_000)

    def _recover(self, now_s: float, backoff_s: float) -> None:
        self._resume_s = max(self._resume_s if self._recovering else 0.0, now_s + backoff_s)
        self._recovering = True

    def _mark_maybe_stored(self, entry: WindowEntry[B]) -> None:
        """A batch that moved to a new epoch while in flight came after a missing one: that attempt was not stored."""
        if entry.sent_epoch == entry.epoch:
            entry.maybe_stored = True

    def _refuse_for_good(self, entry: WindowEntry[B], error: DriftQError, now_s: float) -> None:
        """It fails. Those before it stay; those after it were not stored and move to a new epoch."""
        if self._epoch_is_fixed:
            self.fail_all(error)
            return
        index = self._queue.index(entry)
        self._queue.remove(entry)
        self._settle_failed(entry, _expiry_error(entry) if entry.maybe_stored else error)
        for later in list(self._queue)[index:]:
            later.maybe_stored = False
        self._start_epoch(self.epoch + 1, index)
        self._recover(now_s, 0.0)

    def _on_stale_epoch(self, error: StaleEpoch, now_s: float) -> None:
        if self._stored_epoch is not None or self._epoch_is_fixed:
            self.fail_all(error)
            return
        self._start_epoch(error.epoch + 1)
        self._recover(now_s, 0.0)

    def _on_lost_history(self, error: SequenceGap, now_s: float) -> None:
        """The broker forgot this producer, so a repeat would not be recognised: what may be stored fails as unknown."""
        if self._epoch_is_fixed:
            self.fail_all(error)
            return
        self._fail_and_restart([], now_s)

    def _fail_expired(self, now_s: float) -> None:
        expired = [entry for entry in self._queue if entry.expires_s <= now_s]
        if not expired:
            return
        if self._epoch_is_fixed:
            self.fail_all(_expiry_error(expired[0]))
            return
        self._fail_and_restart(expired, now_s)

    def _fail_and_restart(self, expired: list[WindowEntry[B]], now_s: float) -> None:
        """These fail, and so does every batch that may be stored; the rest starts a new epoch."""
        for entry in list(self._queue):
            if entry in expired or entry.maybe_stored:
                self._queue.remove(entry)
                self._settle_failed(entry, _expiry_error(entry))
        self._start_epoch(self.epoch + 1)
        self._recover(now_s, 0.0)

    def _start_epoch(self, epoch: int, index: int = 0) -> None:
        """Renumber the entries from an index on: seq 0, 1, … of a new epoch."""
        self.epoch = epoch
        moved = list(self._queue)[index:]
        for seq, entry in enumerate(moved):
            entry.epoch, entry.seq = epoch, seq
        self._next_seq = len(moved)

    def _settle_failed(self, entry: WindowEntry[B], error: DriftQError) -> None:
        entry.in_flight = False
        self.settled.append(SettledBatch(entry.batch, None, error))


def _expiry_error(entry: WindowEntry[Any]) -> DriftQError:
    """The error of a batch that is given up."""
    if entry.maybe_stored or entry.error is None:
        return OutcomeUnknown(f"no certain answer in time; it may be written, or not (last: {entry.error})")
    return entry.error
