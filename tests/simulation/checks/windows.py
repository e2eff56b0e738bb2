"""The messages of one connection: never more than its window. While it settles, the lease of every waiting message is
renewed, the lease of the oldest runs, and after a whole lease without settlements all of them are lost."""

from __future__ import annotations

from driftq.core.model import commands as c
from driftq.core.model import facts as f
from driftq.core.model.facts import ClockSet
from driftq.core.state.progress import Progress
from driftq.core.state.state import State
from driftq.core.transitions.expiry import TIMEOUT, is_timeout
from tests.simulation.checks.violation import demand

FIRST_SIZE = 32


class Message:
    """One message that a client has and did not settle."""

    __slots__ = ("delivered_ms", "group_id", "log_id", "offset", "partition", "token", "until_ms")

    def __init__(self, progress: Progress, partition: int, offset: int, token: str, at_ms: int, until_ms: int) -> None:
        self.group_id = progress.group_id
        self.log_id = progress.log_id
        self.partition = partition
        self.offset = offset
        self.token = token
        self.delivered_ms = at_ms
        self.until_ms = until_ms  # as the last extension has it

    def __str__(self) -> str:
        return f"offset {self.offset} of log {self.log_id} under {self.token}"


class Connection:
    """A naive model of a window: a list in order of delivery."""

    def __init__(self, lease_ms: int, prefetch: int | None, in_flight_max: int) -> None:
        self.lease_ms = lease_ms
        self.prefetch = prefetch
        self.in_flight_max = in_flight_max
        self.messages: list[Message] = []
        self.settled: list[int] = []  # when, as the process saw it
        self.settled_ms = 0
        self.began_ms = 0
        self.emptied_ms: int | None = None
        self.oldest_since_ms = 0
        self.judged_ms = 0
        self.slept_ms = 0  # until when the process let a timer be late, the last time
        self.clock_moves = 0  # how often the clock was set, and that is not durable yet
        self.last_step_ms = 0  # how far the clock was set the last time
        self.was_delivered = False  # anything, up to now
        self.refused = False

    # --- events ---

    def may_take(self, room: int, now_ms: int) -> None:
        recent = sum(1 for at_ms in self.settled if at_ms > now_ms - self.lease_ms)
        first_lease = now_ms < self.began_ms + self.lease_ms
        least = FIRST_SIZE if first_lease or (not self.messages and self._is_rested(now_ms)) else 1
        window_max = self.prefetch or min(self.in_flight_max, max(least, recent))
        held = len(self.messages)
        demand(held + room <= window_max, "window", f"{held} held and room for {room}; the limit is {window_max}")

    def _is_rested(self, at_ms: int) -> bool:
        return self.emptied_ms is None or at_ms >= self.emptied_ms + self.lease_ms

    def delivered(self, progress: Progress, held: c.Held, until_ms: int, at_ms: int) -> None:
        self.was_delivered = True
        for offset in range(held.first, held.end):
            _, lease, entry = progress.state_of(offset)
            if lease is None or lease.token != held.token or (entry is not None and not entry.held):
                continue  # it ended before it was delivered
            stored_ms = lease.until_ms - self.lease_ms  # the clock may have been set since the claim
            moved_ms = lease.until_ms - until_ms
            step_ms = moved_ms if moved_ms == self.last_step_ms > 0 else 0  # set forward before the reply came
            if not self.messages:
                if self._is_rested(at_ms + step_ms):
                    self.began_ms = at_ms + step_ms
                self.settled_ms = max(self.settled_ms, at_ms + step_ms)
                self.oldest_since_ms = at_ms + step_ms
            self.messages.append(Message(progress, held.partition, offset, held.token, stored_ms, until_ms + step_ms))

    def kept(self, held: list[c.Held], until_ms: int, now_ms: int) -> None:
        for run in held:
            for message in self.messages:
                if message.partition == run.partition and run.first <= message.offset < run.end:
                    if message.token == run.token and message.until_ms > now_ms:  # an expired lease stays expired
                        message.until_ms = max(message.until_ms, until_ms)

    def observed(self, facts: list[f.Fact], now_ms: int) -> None:
        for fact in facts:
            if isinstance(fact, ClockSet) and fact.at_ms != fact.from_ms:
                self._clock_set(fact.at_ms - fact.from_ms, now_ms)
            for message in [message for message in self.messages if _ends(fact, message)]:
                oldest = self.messages[0]
                lost = _is_lost(fact, message)
                if lost and message is not oldest and _is_silent_loss(fact):
                    self._may_be_lost(message, getattr(fact, "at_ms", now_ms))
                self.messages.remove(message)
                if not self.messages:
                    self.emptied_ms = now_ms
                if not lost:
                    self.settled_ms = now_ms
                    self.settled.append(now_ms)
                if message is oldest:
                    silent = now_ms >= self.settled_ms + self.lease_ms
                    self.oldest_since_ms = self.settled_ms if silent else now_ms

    def _clock_set(self, step_ms: int, now_ms: int) -> None:
        self.clock_moves = max(0, self.clock_moves - 1)
        self.last_step_ms = step_ms
        if not self.was_delivered:
            return
        self.settled_ms = self.oldest_since_ms = self.slept_ms = self.began_ms = self.emptied_ms = now_ms
        self.settled.clear()
        for message in self.messages:
            message.until_ms = min(message.until_ms + step_ms, now_ms + self.lease_ms)

    def _may_be_lost(self, message: Message, at_ms: int) -> None:
        """A waiting message is lost only after a lease of silence, or if time passed without a step of the process."""
        known_ms = max((time_ms for time_ms in self.settled if time_ms < message.until_ms), default=0)
        silent = message.until_ms >= known_ms + self.lease_ms
        asleep = at_ms < self.slept_ms + self.lease_ms or at_ms >= self.judged_ms + self.lease_ms // 4
        demand(
            silent or asleep or self.refused or self.clock_moves,
            "window",
            f"{message} was lost at {at_ms}; its connection settled at {known_ms}, lease {self.lease_ms}",
        )

    # --- invariants after each step of the process ---

    def judge(self, state: State, now_ms: int) -> None:
        if now_ms >= self.judged_ms + self.lease_ms // 4:
            self.slept_ms = now_ms
        self.judged_ms = now_ms
        if self.refused or self.clock_moves:
            return
        for number, message in enumerate(self.messages):
            group = state.groups.get(message.group_id)
            if group is None:
                continue
            _, lease, entry = group.progress[message.partition].state_of(message.offset)
            ended = lease is None or lease.token != message.token or (entry is not None and not entry.held)
            if ended or lease is None or lease.until_ms <= now_ms:
                continue
            if is_timeout(state.logs[message.log_id], message.offset, lease):
                continue  # the attempt may not take longer
            since_ms = self.settled_ms if number else self.oldest_since_ms
            target_ms = since_ms + self.lease_ms
            in_time = lease.until_ms >= target_ms or lease.until_ms - self.lease_ms // 4 > now_ms
            demand(in_time, "window", f"{message} ends at {lease.until_ms}, not at {target_ms}; it is {now_ms}")
            latest_ms = max(target_ms, message.delivered_ms + self.lease_ms)
            demand(lease.until_ms <= latest_ms, "window", f"{message} is kept until {lease.until_ms}, past {latest_ms}")


def _ends(fact: f.Fact, message: Message) -> bool:
    """Whether a fact ends the delivery of the message."""
    match fact:
        case f.GroupDeleted():
            return fact.group_id == message.group_id
        case f.TopicDeleted():
            return message.log_id in fact.log_ids
        case f.Trimmed():
            return fact.log_id == message.log_id and message.offset < fact.start_offset
        case f.GroupSought():
            return (fact.group_id, fact.log_id) == (message.group_id, message.log_id)
        case f.Failed():
            return (fact.group_id, fact.log_id, fact.offset) == (message.group_id, message.log_id, message.offset)
        case f.Settled() | f.Released():
            if (fact.group_id, fact.log_id) != (message.group_id, message.log_id):
                return False
            return any(first <= message.offset < end for first, end in fact.ranges)
        case _:
            return False


def _is_silent_loss(fact: f.Fact) -> bool:
    """Whether a lease ran out. An attempt that took too long ends although its connection settles."""
    if isinstance(fact, f.Settled):
        return fact.error != TIMEOUT
    return isinstance(fact, f.Failed) and fact.lease_lost


def _is_lost(fact: f.Fact, message: Message) -> bool:
    match fact:
        case f.Failed():
            return fact.lease_lost or fact.error == TIMEOUT
        case f.Settled():
            return fact.how == f.DEAD and fact.at_ms >= message.until_ms
        case f.Released():
            return False
        case _:
            return True
