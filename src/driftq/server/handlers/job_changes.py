"""Calls that change many jobs, or one that waits: cancel by filter, retry now.

A job that waits in backoff or for its delay becomes due. A dead one is sent back from the dead letters, which the
attempts of the job lead to: a letter was written in the moment in which the job died.

Work is done in slices: jobs are selected, then changed a hundred at a time, with other requests between.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from driftq.core.model import commands as c
from driftq.core.model import interventions as v
from driftq.core.model.replies import Done, Rejected, Touched
from driftq.server.access.identity import Verdict, decide, require_group, require_topic
from driftq.server.dead_letter_index import LetterIndex, Place, read_letters
from driftq.server.dead_letter_scan import Filter, LetterSearch, WaitingWalk, dead_name, dead_topic
from driftq.server.handlers.codec import json_response, read_json, refusal
from driftq.server.handlers.jobs import unknown
from driftq.server.job_selection import ChosenJob, JobSelector
from driftq.server.job_status import ENDED, find_job, job_summary
from driftq.server.redrive_run import RedriveRun
from driftq.wire.dead_letters import REDRIVE_GROUP, RedriveRequest
from driftq.wire.grants import PRODUCE
from driftq.wire.job_lists import STATES, CancelJobsReply, CancelJobsRequest, RetryJobsReply, RetryJobsRequest
from driftq.wire.jobs import RetryReply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from driftq.core.state.groups import Topic
    from driftq.engine.queries import StateView
    from driftq.server.handlers.context import Context
    from driftq.server.http import Request, Response

AT_ONCE = 100  # jobs that are changed before other requests get a turn
READ_BYTES = 1 << 20
WAITING_STATES = frozenset(("retrying", "scheduled"))
OPEN_STATES = frozenset(STATES) - ENDED


class _Death(NamedTuple):
    """When a job died: its letter is one of those that were written then."""

    partition: int
    offset: int
    at_ms: int


class JobChangeHandlers:
    """Handlers of `/v1/jobs/cancel`, `/v1/jobs/retry` and `/v1/jobs/{topic}/{id}/retry`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._engine = context.engine
        self._selector = JobSelector(context.engine)
        self._index = context.once(LetterIndex, lambda: LetterIndex(context.root_engine))

    async def cancel_many(self, request: Request) -> Response:
        """Cancel jobs by id, or those that fit a filter and have not ended."""
        body = read_json(request.body, CancelJobsRequest)
        require_topic(request, PRODUCE, body.topic)
        selection = await self._selector.select(body, OPEN_STATES)
        if isinstance(selection, Rejected):
            return refusal(selection)
        cancelled = 0
        for begin in range(0, 0 if body.dry_run else len(selection.jobs), AT_ONCE):
            part = selection.jobs[begin : begin + AT_ONCE]
            commands = [
                self._context.audited(request, c.Cancel(body.topic, job.partition, job.offset), body.topic, job=job.id)
                for job in part
            ]
            replies = await asyncio.gather(*map(self._engine.submit, commands))
            cancelled += sum(isinstance(reply, Done) and reply.changed for reply in replies)
        more = selection.after is not None
        return json_response(CancelJobsReply(len(selection.jobs), cancelled, more, selection.ids, selection.after))

    async def retry_many(self, request: Request) -> Response:
        """Retry jobs by id, or those that fit a filter, if they wait or are dead."""
        body = read_json(request.body, RetryJobsRequest)
        require_topic(request, PRODUCE, body.topic)
        selection = await self._selector.select(body, WAITING_STATES | {"dead"})
        if isinstance(selection, Rejected):
            return refusal(selection)
        dead = [job for job in selection.jobs if job.state == "dead"]
        if dead:
            require_group(request, dead_name(body.topic), REDRIVE_GROUP)
        retried = redriven = 0
        if not body.dry_run:
            retried = await self._make_due(request, body.topic, [job for job in selection.jobs if job.state != "dead"])
            redriven = await self._redrive(request, body.topic, dead)
        more = selection.after is not None
        return json_response(
            RetryJobsReply(len(selection.jobs), retried, redriven, more, selection.ids, selection.after)
        )

    async def retry(self, request: Request, topic_name: str, job_id: str) -> Response:
        """Retry one job. Any message is one, under the name `topic:partition:offset`."""
        tenant = request.query.get("tenant_id", "")

        def look(view: StateView) -> tuple[str, ChosenJob] | None:
            key = find_job(view.state, view.now_ms, tenant, topic_name, job_id)
            log = view.state.logs.get(key.log_id) if key is not None else None
            if key is None or log is None or key.offset >= log.end:
                return None
            state = job_summary(view, log, key.offset).state
            return log.topic, ChosenJob(job_id, log.partition, key.offset, state)

        known = await self._engine.queries.result(look)
        if known is None or decide(request.identity, PRODUCE, known[0]) is not Verdict.ALLOWED:
            return unknown(topic_name, job_id)
        topic, job = known
        if job.state == "dead":
            require_group(request, dead_name(topic), REDRIVE_GROUP)
            redriven = await self._redrive(request, topic, [job])
            return json_response(RetryReply(job_id, redriven > 0, redriven, "ready" if redriven else "dead"))
        retried = await self._make_due(request, topic, [job])
        state = "ready" if retried and job.state == "scheduled" else job.state
        return json_response(RetryReply(job_id, retried > 0, 0, state))

    async def _make_due(self, request: Request, topic: str, jobs: Sequence[ChosenJob]) -> int:
        """Returns how many waited and are due now."""
        offsets: dict[int, list[int]] = {}
        for job in jobs:
            offsets.setdefault(job.partition, []).append(job.offset)
        retried = 0
        for partition, named in offsets.items():
            for begin in range(0, len(named), AT_ONCE):
                part = tuple(named[begin : begin + AT_ONCE])
                command = v.RetryMessages(topic, partition, part)
                command = self._context.audited(request, command, topic, jobs=len(part))
                reply = await self._engine.submit(command)
                retried += reply.count if isinstance(reply, Touched) else 0
        return retried

    # --- dead jobs ---

    async def _redrive(self, request: Request, topic_name: str, jobs: Sequence[ChosenJob]) -> int:
        """Send the dead letters of these jobs back. Returns how many were sent."""
        if not jobs:
            return 0
        deaths: list[_Death] = []
        for begin in range(0, len(jobs), AT_ONCE):
            part = jobs[begin : begin + AT_ONCE]
            deaths += await self._engine.queries.result(lambda view, jobs=part: _deaths(view, topic_name, jobs))  # type: ignore[misc]
        places = await self._places(topic_name, deaths)
        if not places:
            return 0

        def begin_search(view: StateView) -> tuple[Topic, LetterSearch] | None:
            topic = dead_topic(view.state, topic_name)
            if isinstance(topic, Rejected):
                return None  # deleted in the meantime
            walk = WaitingWalk(self._engine, view.state, topic)
            return topic, LetterSearch(self._engine, self._index, walk, Filter(places=places))

        begun = await self._engine.queries.result(begin_search)
        if begun is None:
            return 0
        topic, search = begun

        def audited(frame: v.Redrive) -> v.Redrive:
            letters = sum(len(part.offsets) for part in frame.parts)
            return self._context.audited(request, frame, dead_name(topic_name), letters=letters)

        reply = await RedriveRun(self._engine, topic, RedriveRequest(limit=len(places)), audited).run(search)
        return reply.redriven

    async def _places(self, topic_name: str, deaths: Sequence[_Death]) -> frozenset[Place]:
        """Where the letters of these deaths are. Letters of the same moment are read once."""
        wanted = {(death.partition, death.offset) for death in deaths}
        places: set[Place] = set()
        for partition, at_ms in sorted({(death.partition, death.at_ms) for death in deaths}):
            places |= await self._engine.queries.result(
                lambda view, p=partition, t=at_ms: self._written_at(view, topic_name, p, t, wanted)  # type: ignore[misc]
            )
            await asyncio.sleep(0)
        return frozenset(places)

    def _written_at(
        self, view: StateView, topic_name: str, partition: int, at_ms: int, wanted: set[Place]
    ) -> set[Place]:
        """The letters that were written at a time and are about one of the wanted messages."""
        topic = dead_topic(view.state, topic_name)
        if isinstance(topic, Rejected):
            return set()
        log_id = topic.log_ids[partition]
        first, end = (self._engine.queries.offset_at(log_id, time_ms) for time_ms in (at_ms, at_ms + 1))
        places: set[Place] = set()
        while letters := list(read_letters(self._engine, log_id, partition, first, end, READ_BYTES)):
            places |= {
                (partition, letter.offset)
                for letter in letters
                if letter.head.dlq is not None and (partition, letter.head.dlq.offset) in wanted
            }
            first = letters[-1].offset + 1
        return places


def _deaths(view: StateView, topic_name: str, jobs: Sequence[ChosenJob]) -> list[_Death]:
    """When these jobs died, for each group in which they did."""
    topic = view.state.topics.get(topic_name)
    if topic is None:
        return []
    return [
        _Death(job.partition, job.offset, attempt.ended_ms)
        for job in jobs
        for attempt in view.state.job_attempts.of(topic.log_ids[job.partition], job.offset)
        if attempt.end == "dead"
    ]
