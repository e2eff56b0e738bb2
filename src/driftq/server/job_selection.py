"""Selects jobs of a topic for a call that changes many: by their ids, or by a filter and their states.

A call looks at a bounded number of jobs, in slices. `after` is where the next call continues; it is None when
everything was looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from driftq.core.transitions.lookups import no_such_topic
from driftq.server.job_scan import JobFilter, place_of, scan
from driftq.server.job_status import find_job, job_summary
from driftq.server.slices import slices

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from driftq.core.model.replies import Rejected
    from driftq.engine.engine import Engine
    from driftq.engine.queries import StateView
    from driftq.server.job_scan import JobPlace
    from driftq.wire.job_lists import JobSelection, ListedJob
    from driftq.wire.jobs import JobStateName

SCAN_MAX = 20_000  # jobs that one scan looks at
SCANS_MAX = 5  # of one selection


class ChosenJob(NamedTuple):
    """A job that was selected, and its state at that time."""

    id: str
    partition: int
    offset: int
    state: JobStateName


class Selection(NamedTuple):
    """The jobs of a selection, and where the next one continues."""

    jobs: list[ChosenJob]
    after: str | None

    @property
    def ids(self) -> list[str]:
        return [job.id for job in self.jobs]


class JobSelector:
    """Finds the jobs of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def select(self, body: JobSelection, states: frozenset[str]) -> Selection | Rejected:
        """The selected jobs that are in one of these states."""
        fields = {name: getattr(body, name) for name in ("state", "task", "tenant_id", "since", "until")}
        chosen = JobFilter.of(fields)
        place_of(body.after)  # it must be valid also if ids are named
        if not await self._engine.queries.result(lambda view: body.topic in view.state.topics):
            return no_such_topic(body.topic)
        if body.ids is not None:
            jobs = await self._engine.queries.result(lambda view: _by_ids(view, body))
            return Selection([job for job in jobs if job.state in states], None)
        states = chosen.states & states if chosen.states else states
        return await self._by_filter(body, chosen._replace(states=states)) if states else Selection([], None)

    async def _by_filter(self, body: JobSelection, chosen: JobFilter) -> Selection:
        jobs: list[ChosenJob] = []
        after: str | None = body.after
        for _ in range(SCANS_MAX):
            room = body.limit - len(jobs)
            part, _, place = await self.scan(lambda topic: topic == body.topic, chosen, after or "", room)
            jobs += (ChosenJob(job.id, job.partition, job.offset, job.state) for job in part)
            after = str(place) if place is not None else None
            if after is None or len(jobs) == body.limit:
                break
        return Selection(jobs, after)

    async def scan(
        self, topics: Callable[[str], bool], chosen: JobFilter, after: str, limit: int
    ) -> tuple[Sequence[ListedJob], int, JobPlace | None]:
        """Up to `limit` jobs that fit, how many were looked at, and where to continue."""
        jobs: list[ListedJob] = []
        scanned, begin = 0, place_of(after)
        async for rows in slices(self._engine.queries, lambda view: scan(view, topics, chosen, begin, True)):
            for row in rows:
                scanned += 1
                if row.job is not None:
                    jobs.append(row.job)
                if len(jobs) == limit or scanned >= SCAN_MAX:
                    return jobs, scanned, row.place
        return jobs, scanned, None


def _by_ids(view: StateView, body: JobSelection) -> list[ChosenJob]:
    """The jobs with these ids, without those that are not known."""
    jobs: list[ChosenJob] = []
    for id in body.ids or ():
        key = find_job(view.state, view.now_ms, body.tenant_id, body.topic, id)
        log = view.state.logs.get(key.log_id) if key is not None else None
        if key is not None and log is not None and log.topic == body.topic and key.offset < log.end:
            jobs.append(ChosenJob(id, log.partition, key.offset, job_summary(view, log, key.offset).state))
    return jobs
