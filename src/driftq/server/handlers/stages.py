"""Staged appends for exactly-once sinks: stage packed batches invisibly, then publish them together, once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from driftq.core.model import commands as c
from driftq.server.access.identity import require_stream, require_topic
from driftq.server.handlers.codec import json_response, number, read_json
from driftq.server.http import Answer, BadRequest, Request, Response
from driftq.server.packed_batch import PackedBatch, PackedReader
from driftq.wire import streams as w
from driftq.wire.fields import ID_LENGTH_MAX, to_rfc3339
from driftq.wire.grants import APPEND, PRODUCE
from driftq.wire.records import Header, unpack
from driftq.wire.stages import (
    ForgetRequest,
    ForgottenInfo,
    PublishedInfo,
    PublishedPartInfo,
    PublishRequest,
    StagedInfo,
)

if TYPE_CHECKING:
    from driftq.core.model.replies import PublishedReply, StagedReply
    from driftq.server.handlers.context import Context


class StagesHandlers:
    """Handlers of `/v1/stages`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        bytes_max = context.settings.limits.batch_bytes
        self._reader = PackedReader(bytes_max, bytes_max)

    def stage(self, request: Request) -> Answer:
        """`?writer=&handle=&topic=&partition=` (or `&path=` of a stream) and a packed batch as the body."""
        query = request.query
        writer, handle = _name(query.get("writer", ""), "writer"), _name(query.get("handle", ""), "handle")
        topic, path = query.get("topic", ""), query.get("path", "")
        if bool(topic) == bool(path):
            raise BadRequest("a stage is for a topic or for the path of a stream")
        if topic:
            require_topic(request, PRODUCE, topic)
        else:
            require_stream(request, APPEND, path)
        return self._reader.read(request.body, handle, lambda batch: self._stage(request, writer, handle, batch))

    def _stage(self, request: Request, writer: str, handle: str, batch: PackedBatch) -> Answer:
        query, header = request.query, batch.header
        topic, path = query.get("topic", ""), query.get("path", "")
        if path:
            self._check_json(path, request.body, header)
        if any(
            schedule.priority or schedule.task or schedule.label or schedule.not_before_ms or schedule.deadline_ms
            for schedule in batch.schedules
        ):
            raise BadRequest("staged messages are plain: no priority, task, delay or deadline")
        command = c.Stage(
            writer=writer,
            handle=handle,
            batch=request.body,
            count=header.count,
            payload_bytes=header.raw_bytes,
            topic=topic,
            key=query.get("key", "").encode(),
            partition=number("partition", query["partition"]) if "partition" in query else None,
            path=path,
            ttl_ms=number("ttl_ms", query["ttl_ms"]) if "ttl_ms" in query else 0,
            chunk=number("chunk", query["chunk"]) if "chunk" in query else None,
        )
        return self._context.ask(command, _staged)

    def _check_json(self, path: str, batch: bytes, header: Header) -> None:
        """Each record of a batch for a JSON stream must be one JSON value, like an element of the array in a POST."""
        stream = self._context.engine.latest_state.streams.by_path.get(path)
        if stream is None or not w.is_json(stream.created.content_type):
            return
        try:
            w.check_messages([record.value for record in unpack(batch, header)])
        except w.NotJson as error:
            raise BadRequest(f"not JSON: {error}") from None

    def publish(self, request: Request) -> Answer:
        """Make handles visible, in this order. Everything else that the writer staged is deleted."""
        body = read_json(request.body, PublishRequest)
        self._check_targets(request, body.writer, body.handles)
        command = c.Publish(body.writer, body.batch, tuple(body.handles), body.content)
        return self._context.ask(command, self._published)

    def forget(self, request: Request) -> Answer:
        body = read_json(request.body, ForgetRequest)
        self._check_targets(request, body.writer, body.handles)
        command = c.ForgetStages(body.writer, tuple(body.handles))
        return self._context.ask(command, lambda reply: json_response(ForgottenInfo(reply.changed)))

    def _check_targets(self, request: Request, writer: str, handles: Sequence[str]) -> None:
        """The caller needs a right on every target of the handles, and on those of the writer's last publication, which
        a repeat is answered with. One that is refused refuses all of them."""
        if request.identity is None:
            return
        state = self._context.engine.latest_state
        staged = [stage for handle in handles if (stage := state.stages.by_handle.get(handle)) is not None]
        log_ids = [batch.target_log_id for stage in staged for batch in stage.batches]
        last = state.stages.writers.get(writer)
        log_ids += [part.log_id for part in last.parts] if last is not None else []
        for log_id in dict.fromkeys(log_ids):
            log, stream = state.logs.get(log_id), state.streams.by_log.get(log_id)
            if stream is not None:
                require_stream(request, APPEND, stream.path)
            elif log is not None:
                require_topic(request, PRODUCE, log.topic)

    def _published(self, reply: PublishedReply) -> Response:
        parts: list[PublishedPartInfo] = []
        for part in reply.parts:
            log = self._context.engine.latest_state.logs.get(part.log_id)
            if log is not None and log.topic:
                parts.append(PublishedPartInfo(part.first_offset, part.count, log.topic, log.partition))
            else:
                parts.append(PublishedPartInfo(part.first_offset, part.count))
        return json_response(PublishedInfo(reply.batch_number, reply.duplicate, parts))


def _staged(reply: StagedReply) -> Response:
    info = StagedInfo(reply.handle, reply.count, to_rfc3339(reply.expires_ms), reply.duplicate)
    return json_response(info, 200 if reply.duplicate else 201)


def _name(text: str, kind: str) -> str:
    if not 1 <= len(text.encode()) <= ID_LENGTH_MAX:
        raise BadRequest(f"{kind} is required, with at most {ID_LENGTH_MAX} bytes")
    return text
