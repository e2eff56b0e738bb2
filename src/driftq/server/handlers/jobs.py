"""Jobs: messages with a task, an id and a schedule. A job is looked up and cancelled by its id.

A job without an id of its own is named `topic:partition:offset`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from driftq.core.model import commands as c
from driftq.server.access.identity import Verdict, decide, owned, require_target, require_topic
from driftq.server.handlers.codec import json_response, number, read_message, refusal, refused
from driftq.server.http import Answer, BadRequest, Request, Response
from driftq.server.job_status import JobStatus, find_job, job_status, result_of
from driftq.server.produced_message import TRACE_HEADER, prepare, produce_command, traced
from driftq.wire.errors import Code
from driftq.wire.fields import to_rfc3339
from driftq.wire.grants import PRODUCE, READ
from driftq.wire.jobs import CancelReply, EnqueueReply, JobReply, JobRequest, JobResult
from driftq.wire.message import Job, Routing, read_head
from driftq.wire.records import read_header, unpack

if TYPE_CHECKING:
    from driftq.core.model.replies import Produced
    from driftq.engine.queries import StateView
    from driftq.engine.waiters import JobWaiter
    from driftq.server.handlers.context import Context
    from driftq.server.router.caller import RoutedItem
    from driftq.server.tracer import ReceivedTrace
    from driftq.wire.produce import ProduceItem

RESULT_WAIT_MS_MAX = 60_000


class JobsHandlers:
    """Handlers of `/v1/jobs`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._engine = context.engine

    def enqueue(self, request: Request) -> Answer:
        body = read_message(request.body, JobRequest)
        if not body.topic:
            raise BadRequest("topic and value are required")
        if not (body.id or body.task):
            raise BadRequest("a job has a task, an id, or both")
        require_topic(request, PRODUCE, body.topic)
        if self._context.tenant:
            body = owned(body, self._context.tenant)
        if TRACE_HEADER in request.head.fields:
            body = traced(body, request.head.fields)
        tracer = self._context.tracer
        if tracer is None:
            return self._accept(request, body)
        return tracer.received(request, body.topic, (body,), lambda trace: self._accept(request, body, trace))

    def _accept(self, request: Request, body: JobRequest, trace: ReceivedTrace | None = None) -> Answer:
        router = self._context.router
        if router is None:
            return self._enqueue(request, body.topic, body)

        def finish(routes: list[RoutedItem]) -> Answer:
            return self._enqueue(request, body.topic, *routes[0])

        return router.then([(body.topic, body)], finish if trace is None else trace.after_route(finish))

    def _enqueue(self, request: Request, topic: str, item: ProduceItem, routing: Routing | None = None) -> Answer:
        require_target(request, item)
        message = prepare(item, topic, self._engine.now_ms(), routing=routing)
        command = produce_command(topic, item.envelope, message, self._context.any_partition(topic, item))
        rejected = self._context.charge(item.envelope, 1, command.payload_bytes)
        if rejected is not None:
            return refusal(rejected)

        def respond(reply: Produced) -> Response:
            job_id = item.id or f"{reply.topic}:{reply.partition}:{reply.first_offset}"
            body = EnqueueReply(job_id, reply.topic, reply.partition, reply.first_offset, reply.duplicate)
            return json_response(body, 200 if reply.duplicate else 201)

        return self._context.ask(command, respond)

    async def get(self, request: Request, topic_name: str, job_id: str) -> Response:
        """A job's state for each group that reads its topic. The record is read after the query, when it is durable."""
        tenant = request.query.get("tenant_id", "")
        status = await self._engine.queries.result(lambda view: job_status(view, tenant, topic_name, job_id))
        if status is None or decide(request.identity, READ, status.topic) is not Verdict.ALLOWED:
            return unknown(topic_name, job_id)  # an id may name the offset of another topic
        job = self._job(status)
        not_before_ms = job.not_before_ms if job is not None else 0
        is_delayed = not_before_ms > self._engine.now_ms() and not status.is_made_due
        return json_response(
            JobReply(
                id=job_id,
                topic=status.topic,
                partition=status.partition,
                offset=status.offset,
                task=job.task if job is not None else "",
                priority=job.priority if job is not None else 0,
                not_before=to_rfc3339(not_before_ms) if not_before_ms else None,
                state=status.state or ("scheduled" if is_delayed else "ready"),
                groups=status.groups,
            )
        )

    def _job(self, status: JobStatus) -> Job | None:
        """The job in the record's head. None if retention deleted the record, or if it is a plain message."""
        batches = self._engine.read(status.log_id, status.offset, status.offset + 1, 1) if status.is_kept else []
        if not batches:
            return None
        header = read_header(batches[0])
        (record,) = unpack(batches[0], header, first=status.offset - header.first_offset, count=1)
        return read_head(record.head).job

    async def result(self, request: Request, topic_name: str, job_id: str) -> Response:
        """How a job ended. Waits up to `?wait_ms=` for that, for one group (`?group=`) or for all that claim it."""
        query = request.query
        group, tenant = query.get("group", ""), query.get("tenant_id", "")
        wait_ms = number("wait_ms", query.get("wait_ms", "0"))
        if wait_ms > RESULT_WAIT_MS_MAX:
            raise BadRequest(f"wait_ms must be 0 to {RESULT_WAIT_MS_MAX}")
        until_ms = self._engine.now_ms() + wait_ms
        waiters: list[JobWaiter] = []

        def look(view: StateView) -> JobResult | None:
            status = job_status(view, tenant, topic_name, job_id)
            if status is None or decide(request.identity, READ, status.topic) is not Verdict.ALLOWED:
                return None
            result = result_of(view, status, job_id, group)
            if not result.done and view.now_ms < until_ms:
                waiters.append(self._engine.watch.join_job(status.log_id, status.offset))
            return result

        while True:
            result = await self._engine.queries.result(look)
            if not waiters:
                return json_response(result) if result is not None else unknown(topic_name, job_id)
            await waiters.pop().wait(max(0, until_ms - self._engine.now_ms()) / 1_000)

    def cancel(self, request: Request, topic_name: str, job_id: str) -> Answer:
        """No worker gets the job any more. A worker that runs it is notified at its next heartbeat."""
        state, tenant = self._engine.latest_state, request.query.get("tenant_id", "")
        key = find_job(state, self._engine.now_ms(), tenant, topic_name, job_id)
        log = state.logs[key.log_id] if key is not None else None
        if key is None or log is None or decide(request.identity, PRODUCE, log.topic) is not Verdict.ALLOWED:
            return self._context.hold(unknown(topic_name, job_id))
        command = c.Cancel(log.topic, log.partition, key.offset)
        return self._context.ask(command, lambda reply: json_response(CancelReply(job_id, reply.changed)))


def unknown(topic_name: str, job_id: str) -> Response:
    message = f"topic {topic_name} knows no job {job_id!r} (ids are kept for a while)"
    return refused(Code.NOT_FOUND, message)
