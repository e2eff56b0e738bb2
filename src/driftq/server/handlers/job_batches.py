"""Job batches: create, add jobs, show, wait for the end, results, cancel.

A caller needs a right on every topic that a batch uses: `produce` to create it, to add to it and to cancel it, `read`
to see it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from msgspec.structs import replace

from driftq.core.model.job_batches import AddToJobBatch, CancelJobBatch, CreateJobBatch, JobBatchChanged
from driftq.core.rules.job_batches import no_such_batch
from driftq.server.access.identity import owned, require_target, require_topic
from driftq.server.handlers.codec import json_response, number, page_limit, read_json, refusal
from driftq.server.http import Answer, BadRequest, Request, Response
from driftq.server.job_batch_request import (
    BatchTemplates,
    digest_of,
    jobs_of,
    jobs_of_members,
    named,
    named_members,
)
from driftq.server.job_batch_status import info_of, is_allowed, members_of, newest_first, state_of
from driftq.server.produced_message import TRACE_HEADER, traced
from driftq.server.router.caller import RoutedItem
from driftq.server.slices import slices
from driftq.wire.grants import PRODUCE, READ
from driftq.wire.job_batches import (
    JOB_BATCH_STATES,
    AddJobsRequest,
    CancelJobBatchReply,
    CreateJobBatchRequest,
    JobBatchChange,
    JobBatchesReply,
    JobBatchInfo,
)

if TYPE_CHECKING:
    from driftq.core.model.commands import Command
    from driftq.core.state.job_batches import JobBatch
    from driftq.engine.queries import StateView
    from driftq.engine.waiters import JobWaiter
    from driftq.server.handlers.context import Context
    from driftq.wire.produce import ProduceRequest

WAIT_MS_MAX = 60_000


class JobBatchHandlers:
    """Handlers of `/v1/job-batches`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._engine = context.engine

    def create(self, request: Request) -> Answer:
        body = read_json(request.body, CreateJobBatchRequest)
        item = named(replace(body, id=body.id or secrets.token_hex(8)), "", "")
        assert isinstance(item, CreateJobBatchRequest)
        jobs = list(jobs_of(item))
        if not (jobs or item.topic):
            raise BadRequest("a job batch without jobs names a topic: who may use it decides who may use the batch")
        if item.topic:
            require_topic(request, PRODUCE, item.topic)
        digest = digest_of(item, jobs)

        def command(templates: BatchTemplates) -> Command:
            return CreateJobBatch(templates.batch(item, item.ttl_ms), item.sealed, item.parent, digest)

        if item.parent and self._usable(request, item.parent) is None:
            return self._context.hold(_unknown(item.parent))
        return self._accept(request, jobs, command)

    def add(self, request: Request, batch_id: str) -> Answer:
        body = read_json(request.body, AddJobsRequest)
        batch = self._usable(request, batch_id)
        if batch is None:
            return self._context.hold(_unknown(batch_id))
        created = batch.created.created
        topic = body.topic or self._context.space.own(created.topic)
        members = named_members(batch_id, body.jobs, body.first, topic, body.group or created.group)

        def command(templates: BatchTemplates) -> Command:
            return AddToJobBatch(batch_id, body.first, templates.members(batch_id, members), body.seal)

        return self._accept(request, list(jobs_of_members(members)), command)

    def _usable(self, request: Request, batch_id: str) -> JobBatch | None:
        """A batch that the caller may add to, nest in and cancel. It is decided again by the broker."""
        batch = self._engine.latest_state.job_batches.find(batch_id)
        return batch if batch is not None and is_allowed(request.identity, PRODUCE, batch) else None

    def _accept(
        self, request: Request, jobs: list[ProduceRequest], command: Callable[[BatchTemplates], Command]
    ) -> Answer:
        for topic in {job.topic for job in jobs}:
            require_topic(request, PRODUCE, topic)
        items = jobs
        if self._context.tenant:
            items = [owned(job, self._context.tenant) for job in items]
        if TRACE_HEADER in request.head.fields:
            items = [traced(job, request.head.fields) for job in items]

        def finish(routes: list[RoutedItem]) -> Answer:
            return self._submit(request, items, routes, command)

        router = self._context.router
        if router is None or not items:
            return finish([RoutedItem(item) for item in items])
        return router.then([(item.topic, item) for item in items], finish)

    def _submit(
        self,
        request: Request,
        jobs: list[ProduceRequest],
        routes: list[RoutedItem],
        command: Callable[[BatchTemplates], Command],
    ) -> Answer:
        for route in routes:
            require_target(request, route.item)
        templates = BatchTemplates(jobs, routes, self._engine.now_ms(), self._context.any_partition)
        if jobs:
            size = sum(len(job.value or job.value_base64 or "") for job in jobs)
            rejected = self._context.charge(jobs[0].envelope, len(jobs), size)
            if rejected is not None:
                return refusal(rejected)

        def respond(reply: JobBatchChanged) -> Response:
            body = JobBatchChange(reply.batch_id, reply.count, reply.sealed, reply.changed)
            return json_response(body, 201 if reply.changed else 200)

        return self._context.ask(command(templates), respond)

    def cancel(self, request: Request, batch_id: str) -> Answer:
        """No worker gets its jobs any more. Workers that run one are notified at their next heartbeat."""
        if self._usable(request, batch_id) is None:
            return self._context.hold(_unknown(batch_id))
        command = CancelJobBatch(batch_id)
        command = self._context.audited(request, command, batch_id)
        return self._context.ask(command, lambda reply: json_response(CancelJobBatchReply(batch_id, reply.changed)))

    # --- reads ---

    async def list(self, request: Request) -> Response:
        """The batches whose topics the caller may read, the newest first."""
        limit, wanted = page_limit(request), request.query.get("state", "")
        if wanted not in ("", *JOB_BATCH_STATES):
            raise BadRequest(f"state must be one of: {', '.join(JOB_BATCH_STATES)}")
        before = number("after", request.query["after"]) if "after" in request.query else 0

        def rows(view: StateView) -> Iterator[tuple[int, JobBatchInfo] | None]:
            for batch in newest_first(view, before):
                is_shown = batch is not None and wanted in ("", state_of(batch))
                if batch is not None and is_shown and is_allowed(request.identity, READ, batch):
                    yield batch.number, info_of(view, batch)
                else:
                    yield None

        shown: list[tuple[int, JobBatchInfo]] = []
        async for part in slices(self._engine.queries, rows):
            shown += part
            if len(shown) > limit:
                break
        after = str(shown[limit - 1][0]) if len(shown) > limit else None
        return json_response(JobBatchesReply([info for _, info in shown[:limit]], after))

    async def get(self, request: Request, batch_id: str) -> Response:
        """A batch with its counts. Waits up to `?wait_ms=` for its end."""
        wait_ms = number("wait_ms", request.query.get("wait_ms", "0"))
        if wait_ms > WAIT_MS_MAX:
            raise BadRequest(f"wait_ms must be 0 to {WAIT_MS_MAX}")
        until_ms = self._engine.now_ms() + wait_ms
        waiters: list[JobWaiter] = []

        def look(view: StateView) -> JobBatchInfo | None:
            batch = _visible(view, request, batch_id)
            if batch is None:
                return None
            if batch.ended is None and view.now_ms < until_ms:
                waiters.append(self._engine.watch.join_job_batch(batch.number))
            return info_of(view, batch)

        while True:
            info = await self._engine.queries.result(look)
            if not waiters:
                return json_response(info) if info is not None else _unknown(batch_id)
            if not await waiters.pop().wait(max(0, until_ms - self._engine.now_ms()) / 1_000):
                until_ms = 0  # also if the broker's clock stands still, as it does in tests

    def jobs(self, request: Request, batch_id: str) -> Answer:
        return self._members(request, batch_id, with_results=False)

    def results(self, request: Request, batch_id: str) -> Answer:
        return self._members(request, batch_id, with_results=True)

    def _members(self, request: Request, batch_id: str, *, with_results: bool) -> Answer:
        limit, wanted = page_limit(request), request.query.get("state", "")
        first = number("after", request.query["after"]) + 1 if "after" in request.query else 0

        def look(view: StateView) -> Response:
            batch = _visible(view, request, batch_id)
            if batch is None:
                return _unknown(batch_id)
            return json_response(members_of(view, batch, first, limit, wanted, with_results))

        return self._context.query(look)


def _visible(view: StateView, request: Request, batch_id: str) -> JobBatch | None:
    batch = view.state.job_batches.find(batch_id)
    return batch if batch is not None and is_allowed(request.identity, READ, batch) else None


def _unknown(batch_id: str) -> Response:
    return refusal(no_such_batch(batch_id))
