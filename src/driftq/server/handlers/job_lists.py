"""Lists of jobs: by state, task, tenant and time; and how many there are."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING

from driftq.core.state.groups import DEAD_PREFIX
from driftq.core.transitions.lookups import no_such_topic
from driftq.server.access.identity import Verdict, decide, require_topic
from driftq.server.handlers.codec import encoded, json_response, page_limit, refusal
from driftq.server.http import Request, Response
from driftq.server.job_scan import JobFilter, scan
from driftq.server.job_selection import JobSelector
from driftq.server.slices import slices
from driftq.wire.grants import READ
from driftq.wire.job_lists import JobCounts, JobsReply

if TYPE_CHECKING:
    from driftq.server.handlers.context import Context

COUNT_MAX = 100_000
COUNTS_KEPT, COUNTS_S, COUNTS_RATIO = 32, 2.0, 20  # counts are shared by callers, for longer if they cost more


class JobListHandlers:
    """Handlers of `/v1/jobs` and `/v1/jobs/counts`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._engine = context.engine
        self._selector = JobSelector(context.engine)
        self._counts: dict[tuple[object, ...], tuple[float, bytes]] = {}  # until when, and the reply

    async def list(self, request: Request) -> Response:
        limit, chosen = page_limit(request), JobFilter.of(request.query)
        topic = request.query.get("topic", "")
        if topic:
            require_topic(request, READ, topic)
            if not await self._is_known(topic):
                return refusal(no_such_topic(topic))
        jobs, scanned, after = await self._selector.scan(
            _topics(request, topic), chosen, request.query.get("after", ""), limit
        )
        return json_response(JobsReply([*jobs], scanned, str(after) if after is not None else None))

    async def _is_known(self, topic: str) -> bool:
        return await self._engine.queries.result(lambda view: topic in view.state.topics)

    async def counts(self, request: Request) -> Response:
        """By state and task. Callers with the same rights share a result for some seconds."""
        chosen, topic = JobFilter.of(request.query), request.query.get("topic", "")
        if topic:
            require_topic(request, READ, topic)
            if not await self._is_known(topic):
                return refusal(no_such_topic(topic))
        key = (chosen, topic, request.identity.grants if request.identity is not None and not topic else None)
        known = self._counts.get(key)
        if known is None or known[0] < time.monotonic():
            began_s = time.monotonic()
            reply = encoded(await self._count(_topics(request, topic), chosen)) + b"\n"
            while len(self._counts) >= COUNTS_KEPT:
                del self._counts[next(iter(self._counts))]
            now_s = time.monotonic()
            self._counts.pop(key, None)
            self._counts[key] = known = now_s + max(COUNTS_S, COUNTS_RATIO * (now_s - began_s)), reply
        return Response(200, known[1])

    async def _count(self, topics: Callable[[str], bool], chosen: JobFilter) -> JobCounts:
        tasks: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
        counted, complete = 0, True
        async for rows in slices(self._engine.queries, lambda view: scan(view, topics, chosen, None, False)):
            for row in rows:
                counted += 1
                if row.job is not None:
                    tasks[row.job.task][row.job.state] += 1
            if counted >= COUNT_MAX:
                complete = False
                break
        states: defaultdict[str, int] = defaultdict(int)
        for by_state in tasks.values():
            for state, count in by_state.items():
                states[state] += count
        return JobCounts(dict(states), {task: dict(counts) for task, counts in tasks.items()}, counted, complete)


def _topics(request: Request, topic: str) -> Callable[[str], bool]:
    """The topics whose jobs the caller asks for and may read."""
    if topic:
        return lambda name: name == topic
    identity = request.identity
    return lambda name: not name.startswith(DEAD_PREFIX) and decide(identity, READ, name) is Verdict.ALLOWED
