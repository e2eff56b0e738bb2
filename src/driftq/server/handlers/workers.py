"""Workers: the processes that announce themselves, and requests to end them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from driftq.server.access.identity import AccessRefused, require_group, require_topic, sees_group
from driftq.server.handlers.codec import (
    error_response,
    json_response,
    no_content,
    page_limit,
    read_json,
    refused,
)
from driftq.server.http import Answer, BadRequest, Request, Response
from driftq.wire.errors import Code
from driftq.wire.fields import ID_LENGTH_MAX, to_rfc3339
from driftq.wire.grants import MANAGE
from driftq.wire.workers import HeartbeatRequest, WorkerInfo, WorkersReply

if TYPE_CHECKING:
    from driftq.server.handlers.context import Context
    from driftq.server.worker_registry import WorkerEntry
    from driftq.wire.workers import WorkerCommand

HEARTBEAT_BYTES_MAX = 256 << 10


class WorkersHandlers:
    """Handlers of `/v1/workers`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._engine = context.engine
        self._registry = context.workers

    def heartbeat(self, request: Request, id: str) -> Answer:
        if len(id) > ID_LENGTH_MAX:
            raise BadRequest(f"the id of a worker has at most {ID_LENGTH_MAX} characters")
        if len(request.body) > HEARTBEAT_BYTES_MAX:
            raise BadRequest(f"a heartbeat has at most {HEARTBEAT_BYTES_MAX} bytes")
        body = read_json(request.body, HeartbeatRequest)
        _require_groups(request, body)
        self._require_own(request, id)
        reply = self._registry.heartbeat(id, body, len(request.body))
        if reply is None:
            headers = [("Retry-After", "10")]
            message = "the registry of workers is full; this worker is not listed, and works without an entry"
            return error_response(429, "RESOURCE_EXHAUSTED", message, {"retry_after_ms": 10_000}, headers)
        return json_response(reply)

    def list(self, request: Request) -> Answer:
        after, limit = request.query.get("after", ""), page_limit(request)
        entries, has_more = self._registry.page(after, limit, partial(_is_seen, request))
        infos = [self._info(entry) for entry in entries]
        return json_response(WorkersReply(infos, infos[-1].id if has_more else None))

    def describe(self, request: Request, id: str) -> Answer:
        entry = self._registry.find(id)
        return json_response(self._info(entry)) if entry is not None and _is_seen(request, entry) else _unknown(id)

    def remove(self, request: Request, id: str) -> Answer:
        entry = self._registry.find(id)
        if entry is not None and not _is_seen(request, entry):
            return no_content()  # as if it was gone already
        if entry is not None and entry.heartbeat is not None:
            _require_groups(request, entry.heartbeat)
        self._registry.remove(id)
        return no_content()

    def drain(self, request: Request, id: str) -> Answer:
        return self._request(request, id, "drain")

    def stop(self, request: Request, id: str) -> Answer:
        return self._request(request, id, "stop")

    def _require_own(self, request: Request, id: str) -> None:
        """An entry belongs to callers that may consume what it consumes. The refusal does not say what that is."""
        entry = self._registry.find(id)
        if entry is not None and entry.heartbeat is not None:
            if not _is_seen(request, entry):
                raise AccessRefused(
                    Code.PERMISSION_DENIED, f"the worker id {id} is taken by a worker with other grants; use another"
                )
            _require_groups(request, entry.heartbeat)

    def _request(self, request: Request, id: str, command: WorkerCommand) -> Answer:
        known = self._registry.find(id)
        if known is not None and not _is_seen(request, known):
            return _unknown(id)
        for worker in known.heartbeat.workers if known is not None and known.heartbeat is not None else ():
            require_topic(request, MANAGE, worker.topic)
        if known is None:
            return _unknown(id)

        def respond() -> Response:
            entry = self._registry.request(id, command)
            return json_response(self._info(entry), 202) if entry is not None else _unknown(id)

        return self._context.noted(request, id, respond)

    def _info(self, entry: WorkerEntry) -> WorkerInfo:
        heartbeat = entry.heartbeat
        assert heartbeat is not None
        now_ms = self._engine.now_ms()
        age_ms = self._registry.age_ms(entry)
        return WorkerInfo(
            id=entry.id,
            host=heartbeat.host,
            pid=heartbeat.pid,
            version=heartbeat.version,
            since=to_rfc3339(now_ms - age_ms - heartbeat.uptime_ms),
            seen=to_rfc3339(now_ms - age_ms),
            state=heartbeat.state,
            command=entry.command,
            concurrency=sum(worker.concurrency for worker in heartbeat.workers),
            busy=sum(worker.busy for worker in heartbeat.workers),
            tasks=sorted({worker.task for worker in heartbeat.workers if worker.task}),
            workers=heartbeat.workers,
        )


def _require_groups(request: Request, heartbeat: HeartbeatRequest) -> None:
    for worker in heartbeat.workers:
        require_group(request, worker.topic, worker.group)


def _is_seen(request: Request, entry: WorkerEntry) -> bool:
    """Whether the caller has a right on everything that a process consumes."""
    heartbeat = entry.heartbeat
    return heartbeat is not None and all(
        sees_group(request.identity, worker.topic, worker.group) for worker in heartbeat.workers
    )


def _unknown(id: str) -> Response:
    return refused(Code.NOT_FOUND, f"no worker {id!r} runs; entries end a few seconds after the last heartbeat")
