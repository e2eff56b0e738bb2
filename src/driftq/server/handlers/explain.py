"""`GET /v1/explain`: why a message is not delivered now, and until when.

A *gate* is one reason that keeps a message from being delivered: a lease, a backoff, a paused group. The gates are the
conditions of `core.rules.claim`, in the words of an operator. A gate opens at a time, when something happens, or never.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import structs

from driftq.core.state.backlog import limiting_backlog
from driftq.core.state.lanes import SHARED_TENANT
from driftq.core.state.progress import MessageState, Progress
from driftq.core.transitions.claim_selection import DEFAULT_LANE, ClaimFilter
from driftq.core.transitions.lookups import bad_partition, no_such_group, no_such_topic
from driftq.server.access.identity import require_topic
from driftq.server.handlers.codec import json_response, number, refusal
from driftq.server.handlers.topics import NEARLY_FULL, backlog_info
from driftq.server.http import Answer, BadRequest, Request, Response
from driftq.storage.corruption import CorruptLog
from driftq.wire.fields import to_rfc3339
from driftq.wire.grants import READ
from driftq.wire.message import DeadLetter, read_head
from driftq.wire.records import read_header, unpack
from driftq.wire.server_info import NEVER, Explanation, Gate, GroupExplanation, MessageFacts

if TYPE_CHECKING:
    from driftq.core.model.facts import LaneKey
    from driftq.core.state.groups import Group, Topic
    from driftq.core.state.leases import Entry, Lease
    from driftq.core.state.logs import Log
    from driftq.engine.engine import Engine
    from driftq.engine.queries import StateView
    from driftq.server.handlers.context import Context
    from driftq.wire.topics import BacklogInfo

LETTERS_MAX = 1_000  # the last dead letters, which are searched for the message
LETTERS_BYTES_MAX = 4 << 20
_SETTLED_AS = {"succeeded": "acked", "cancelled": "cancelled"}  # by the end of a job's last attempt


class ExplainHandlers:
    """The handler of `/v1/explain`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._engine = context.engine

    def explain(self, request: Request) -> Answer:
        """`?topic=&partition=&offset=`, for one `&group=` or all; `&task=` and `&label=` are the filter of a claim."""
        query = request.query
        if not query.get("topic"):
            raise BadRequest("topic, partition and offset are required")
        require_topic(request, READ, query["topic"])
        partition, offset = (number(name, query.get(name, "")) for name in ("partition", "offset"))
        return self._context.query(lambda view: self._explain(view, query, partition, offset))

    def _explain(self, view: StateView, query: Mapping[str, str], partition: int, offset: int) -> Response:
        topic = view.state.topics.get(query["topic"])
        if topic is None:
            return refusal(no_such_topic(query["topic"]))
        if partition >= len(topic.log_ids):
            return refusal(bad_partition(partition, topic))
        groups = list(topic.groups.values())
        if "group" in query:
            if query["group"] not in topic.groups:
                return refusal(no_such_group(topic.name, query["group"]))
            groups = [topic.groups[query["group"]]]
        claim_filter = ClaimFilter(query.get("task"), query.get("label"))
        return json_response(Explainer(view, self._engine, topic, partition, offset, claim_filter).explain(groups))


class Explainer:
    """Explains one message in one state."""

    def __init__(
        self, view: StateView, engine: Engine, topic: Topic, partition: int, offset: int, claim_filter: ClaimFilter
    ) -> None:
        self._view = view
        self._engine = engine  # for records, which are durable
        self._topic = topic
        self._offset = offset
        self._filter = claim_filter
        self._now_ms = view.now_ms
        self._limits = view.limits
        self._log: Log = view.state.logs[topic.log_ids[partition]]

    def explain(self, groups: list[Group]) -> Explanation:
        gates = self._message_gates()
        explanations = [self._group(group, gates) for group in groups]
        return Explanation(
            self._topic.name, self._log.partition, self._offset, self._summary(gates, explanations),
            self._message(), gates, explanations, self._backlog(),
        )  # fmt: skip

    def _backlog(self) -> BacklogInfo | None:
        backlog = limiting_backlog(self._view.state, self._limits, self._log)
        return backlog_info(backlog) if backlog is not None and backlog.used >= NEARLY_FULL else None

    def _summary(self, gates: list[Gate], groups: list[GroupExplanation]) -> str:
        if gates:
            return gates[0].why
        if not groups:
            return "No group reads this topic yet: the first group to claim gets everything from the start."
        if len(groups) == 1:
            return groups[0].summary
        ready = sum(group.claimable for group in groups)
        return f"{ready} of {len(groups)} groups can claim this message now."

    # --- the message itself ---

    def _exists(self) -> bool:
        return self._log.start <= self._offset < self._log.end

    def _message_gates(self) -> list[Gate]:
        log, offset = self._log, self._offset
        if offset < log.start:
            why = f"Offset {offset} is gone: retention or a trim moved the start of the partition to {log.start}."
            return [Gate("retention", why, NEVER)]
        if offset >= log.end:
            why = f"Nothing was produced at offset {offset} yet: the next message gets offset {log.end}."
            return [Gate("not_produced", why, "enough messages are produced")]
        deadline_ms = log.deadline_of(offset)
        if 0 < deadline_ms <= self._now_ms and not self._topic.dead_of:
            at = to_rfc3339(deadline_ms)
            why = f"The deadline of this message passed at {at}: a claim moves it to the dead letters instead."
            return [Gate("deadline", why, NEVER)]
        not_before_ms = log.delays.times.get(offset, 0)
        if not_before_ms > self._now_ms and not self._topic.groups:  # otherwise each group has this gate
            return [_delay_gate(to_rfc3339(not_before_ms))]
        return []

    def _message(self) -> MessageFacts:
        if not self._exists():
            return MessageFacts()
        log, offset = self._log, self._offset
        at_ms = self._view.reader.time_of(log.log_id, offset)
        lane = self._lane()
        deadline_ms, retention_ms = log.deadline_of(offset), self._topic.config.retention_ms
        return MessageFacts(
            to_rfc3339(at_ms) if at_ms else "", lane.priority, lane.task, lane.label,
            lane.tenant.removeprefix(SHARED_TENANT),
            to_rfc3339(deadline_ms) if deadline_ms else "",
            to_rfc3339(at_ms + retention_ms) if at_ms and retention_ms else "",
        )  # fmt: skip

    def _lane(self) -> LaneKey:
        return self._log.lanes.key_of(self._offset) or DEFAULT_LANE

    # --- a group ---

    def _group(self, group: Group, shared: list[Gate]) -> GroupExplanation:
        """`shared` are the gates of the message, which hold it back for all groups."""
        progress = group.progress[self._log.partition]
        place, _, _ = progress.state_of(self._offset)
        settled = place is MessageState.SETTLED
        explanation = self._settled(group, shared) if settled else self._unsettled(group, shared, progress)
        return structs.replace(explanation, gaps=len(progress.settled))

    def _unsettled(self, group: Group, shared: list[Gate], progress: Progress) -> GroupExplanation:
        place, lease, entry = progress.state_of(self._offset)
        gates = [*self._group_gates(group, progress, place), *self._place_gates(place, lease, entry)]
        claimable = not (shared or gates)
        state, summary = "ready", "It can be claimed now."
        if not claimable:
            first = (*gates, *shared)[0]
            state, summary = first.gate, first.why
        if shared and not self._exists():
            state = shared[0].gate
        elif place is MessageState.HELD:
            state = "held"
        elif place is MessageState.RESTING and entry is not None and entry.retry_at_ms > self._now_ms:
            state = "delayed" if entry.attempts == 0 and not entry.releases else "resting"
        ahead = self._ahead(progress) if place is MessageState.FRESH and not shared else 0
        attempts = entry.attempts if entry is not None else int(place is MessageState.HELD)
        if entry is None:
            return GroupExplanation(group.name, state, claimable, summary, gates, ahead, attempts)
        return GroupExplanation(
            group.name, state, claimable, summary, gates, ahead, attempts, entry.failures, entry.lease_losses,
            entry.releases, entry.error,
        )  # fmt: skip

    def _group_gates(self, group: Group, progress: Progress, place: MessageState) -> list[Gate]:
        gates: list[Gate] = []
        if group.paused:
            gates.append(Gate("paused", f"Group {group.name} is paused: it gets no messages.", "the group is resumed"))
        if not self._filter.admits(self._lane()):
            lane = self._lane()
            why = (
                f"The claim asks for another task or label; this message has task {lane.task!r}, label {lane.label!r}."
            )
            gates.append(Gate("filter", why, "a consumer claims without this filter"))
        if place is MessageState.HELD:
            return gates
        in_flight_max = self._topic.config.in_flight_max or self._limits.in_flight_max
        lease_ms = progress.lease_timers.next_ms()
        if progress.in_flight >= in_flight_max and lease_ms is not None and lease_ms > self._now_ms:
            why = f"Messages of this partition in flight: {progress.in_flight} of at most {in_flight_max}."
            gates.append(Gate("in_flight", why, "one is settled or its lease ends", to_rfc3339(lease_ms)))
        return gates

    def _place_gates(self, place: MessageState, lease: Lease | None, entry: Entry | None) -> list[Gate]:
        if place is MessageState.HELD and lease is not None:
            until = to_rfc3339(lease.until_ms)
            if lease.until_ms > self._now_ms:
                why = f"{lease.owner!r} holds it until {until}."
                return [Gate("leased", why, "it is settled or given back, or the lease ends", until)]
            why = f"The lease of {lease.owner!r} ended at {until}. The broker is about to count it as a failure."
            return [Gate("lease_ended", why, "the broker notices, at the next claim or sweep", until)]
        if place is MessageState.RESTING and entry is not None and entry.retry_at_ms > self._now_ms:
            at = to_rfc3339(entry.retry_at_ms)
            if entry.attempts == 0 and not entry.releases:
                return [_delay_gate(at)]
            why = f"Attempt {entry.attempts} ended ({entry.error or 'given back'}); it waits until {at}."
            return [Gate("resting", why, "its time comes", at)]
        return []

    def _ahead(self, progress: Progress) -> int:
        """How many messages of the same lane are delivered before it."""
        lane = self._log.lanes.key_of(self._offset)
        if lane is None:
            return max(0, self._offset - max(progress.cursor, progress.floor))
        offsets = self._log.lanes.by_key[lane].offsets
        first = bisect_left(offsets, max(progress.lane_cursors.get(lane, 0), progress.floor))
        return max(0, bisect_left(offsets, self._offset) - first)

    # --- settled ---

    def _settled(self, group: Group, shared: list[Gate]) -> GroupExplanation:
        letter = self._letter(group) if not shared or self._exists() else None
        if letter is not None:
            why = f"It became a dead letter at {letter.dead_at} ({letter.reason}) after {letter.attempts} attempts."
            return GroupExplanation(
                group.name, "settled", False, why, attempts=letter.attempts, lease_losses=letter.lease_losses,
                last_error=letter.last_error, settled_as="dead letter",
            )  # fmt: skip
        for attempt in reversed(self._view.state.job_attempts.of(self._log.log_id, self._offset)):
            if attempt.group_id == group.group_id and attempt.end in _SETTLED_AS:
                settled_as = _SETTLED_AS[attempt.end]
                why = f"It was {settled_as} at {to_rfc3339(attempt.ended_ms)}."
                return GroupExplanation(
                    group.name, "settled", False, why, attempts=attempt.number, settled_as=settled_as
                )
        why = f"It is done for group {group.name}: acked, cancelled, skipped, or from before the group began."
        return GroupExplanation(group.name, "settled", False, why, settled_as="acked, cancelled or skipped")

    def _letter(self, group: Group) -> DeadLetter | None:
        """Its dead letter, if that is among the last ones."""
        dead = self._view.state.topics.get(f"dlq.{self._topic.name}")
        if dead is None:
            return None
        log_id = dead.log_ids[self._log.partition]
        end = self._engine.durable_end(log_id)
        first = max(self._view.state.logs[log_id].start, end - LETTERS_MAX)
        batches: list[bytes] = []
        left_bytes = LETTERS_BYTES_MAX
        try:
            while first < end and left_bytes > 0 and (more := self._engine.read(log_id, first, end, left_bytes)):
                batches += more
                left_bytes -= sum(map(len, more))
                first = read_header(more[-1]).end_offset
        except CorruptLog:
            return None
        for batch in batches:
            for record in unpack(batch, read_header(batch)):
                letter = read_head(record.head).dlq
                if letter is not None and (letter.offset, letter.group) == (self._offset, group.name):
                    return letter
        return None


def _delay_gate(at: str) -> Gate:
    return Gate("delayed", f"It was produced with a delay: not before {at}.", "its time comes", at)
