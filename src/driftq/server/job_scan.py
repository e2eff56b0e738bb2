"""Looks through the jobs of topics: which fit a filter, and in which state they are.

    logs, newest first ──▶ windows of offsets, from the end down ──▶ tracked offsets ──▶ state, task ──▶ head ──▶ row
                                                                     (from the state)              (from the log)

The states of jobs are not indexed. A scan reads the broker's state, which costs some microseconds a job; heads are read
only for jobs whose state and task fit. It runs in slices, and a call ends after a bounded number of jobs: the next one
continues at its cursor, `log:offset`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from driftq.core.context import Unreadable
from driftq.server.http import BadRequest
from driftq.server.job_status import JobSummary, job_summary
from driftq.server.slices import when_here
from driftq.wire.fields import from_rfc3339, to_rfc3339
from driftq.wire.job_lists import STATES, ListedJob
from driftq.wire.message import read_head

if TYPE_CHECKING:
    from collections.abc import Mapping

    from driftq.core.state.logs import Log
    from driftq.engine.queries import StateView
    from driftq.storage.cold_segments import ColdRange

WINDOW = 1_024  # offsets of a log that are looked at together
_PLACE = re.compile(r"([0-9]{1,16}):([0-9]{1,16})", re.ASCII)


class JobFilter(NamedTuple):
    """Which jobs fit. Empty fields fit all."""

    states: frozenset[str]
    task: str
    tenant: str
    since_ms: int | None
    until_ms: int | None

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> JobFilter:
        """From query parameters or the fields of a body. Raises `BadRequest`."""
        states = frozenset(filter(None, fields.get("state", "").split(",")))
        unknown = sorted(states.difference(STATES))
        if unknown:
            raise BadRequest(f"invalid state {unknown[0]!r}: use some of {', '.join(STATES)}")
        return cls(
            states, fields.get("task", ""), fields.get("tenant_id", ""), _time(fields, "since"), _time(fields, "until")
        )


class JobPlace(NamedTuple):
    """Where a scan continues: below this offset of this log, then in logs with lower numbers."""

    log_id: int
    offset: int

    def __str__(self) -> str:
        return f"{self.log_id}:{self.offset}"


class JobRow(NamedTuple):
    """A job that fits, or with `job` None only how far the scan is."""

    place: JobPlace
    job: ListedJob | None


def place_of(text: str) -> JobPlace | None:
    """The cursor of a page; None for the first one."""
    if not text:
        return None
    match = _PLACE.fullmatch(text)
    if match is None:
        raise BadRequest("invalid after: use that of the page before")
    return JobPlace(int(match[1]), int(match[2]))


def scan(
    view: StateView, topics: Callable[[str], bool], chosen: JobFilter, begin: JobPlace | None, with_heads: bool
) -> Iterator[JobRow | ColdRange | None]:
    """One row for each job that is looked at. `topics` says which topics are. Without heads rows have no id, tenant or
    time, unless the filter needs them."""
    log_ids: list[int] = []
    for topic in list(view.state.topics.values()):
        if topics(topic.name):
            log_ids += (log_id for log_id in topic.log_ids if begin is None or log_id <= begin.log_id)
        yield None
    for log_id in sorted(log_ids, reverse=True):
        log = view.state.logs.get(log_id)
        if log is None or not log.tracked:
            yield None
            continue
        low, high = yield from when_here(partial(_bounds, view, log, chosen))
        if begin is not None and log_id == begin.log_id:
            high = min(high, begin.offset)
        while high > low:
            first = max(low, high - WINDOW)
            for offset in reversed(list(log.tracked.within(first, high))):
                if view.state.logs.get(log_id) is not log:
                    return  # deleted in the meantime; the next page continues
                look = partial(_fitting, view, log, offset, chosen, with_heads)
                yield JobRow(JobPlace(log_id, offset), (yield from when_here(look)))
            high = first


def _bounds(view: StateView, log: Log, chosen: JobFilter) -> tuple[int, int]:
    low, high = log.start, min(log.end, view.reader.end(log.log_id))
    try:
        if chosen.since_ms is not None:
            low = max(low, view.reader.offset_at(log.log_id, chosen.since_ms))
        if chosen.until_ms is not None:
            high = min(high, view.reader.offset_at(log.log_id, chosen.until_ms))
    except Unreadable:
        pass  # damage in the index of times: look at all
    return low, high


def _fitting(view: StateView, log: Log, offset: int, chosen: JobFilter, with_heads: bool) -> ListedJob | None:
    if offset < log.start:
        return None
    lane = log.lanes.key_of(offset)
    task = lane.task if lane is not None else ""
    if chosen.task and chosen.task != task:
        return None
    summary = job_summary(view, log, offset)
    if chosen.states and summary.state not in chosen.states:
        return None
    if not (with_heads or chosen.tenant):
        return ListedJob("", log.topic, log.partition, offset, summary.state, "", task)
    return _listed(view, log, offset, chosen.tenant, task, summary)


def _listed(view: StateView, log: Log, offset: int, tenant: str, task: str, summary: JobSummary) -> ListedJob | None:
    try:
        head = read_head(view.reader.head(log.log_id, offset))
    except Unreadable:
        return None
    envelope, job = head.envelope, head.job
    of_tenant = envelope.tenant_id if envelope is not None else ""
    if tenant and tenant != of_tenant:
        return None
    return ListedJob(
        id=(job.id if job is not None else "") or f"{log.topic}:{log.partition}:{offset}",
        topic=log.topic,
        partition=log.partition,
        offset=offset,
        state=summary.state,
        created_at=to_rfc3339(view.reader.time_of(log.log_id, offset)),
        task=task,
        tenant=of_tenant,
        run_id=envelope.run_id if envelope is not None else "",
        priority=job.priority if job is not None else 0,
        attempts=summary.attempts,
        error=summary.error,
        owner=summary.owner,
        due_at=to_rfc3339(summary.due_ms) if summary.due_ms else None,
    )


def _time(fields: Mapping[str, str], name: str) -> int | None:
    text = fields.get(name, "")
    if not text:
        return None
    try:
        return from_rfc3339(text)
    except ValueError:
        raise BadRequest(f"invalid {name}: an RFC 3339 time") from None
