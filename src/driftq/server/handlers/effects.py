"""Effects, which happen once under a key: begin, commit, fail, look up; and outcomes, which commit effects along with
the other results of the work.

`POST /v1/outcome` stores everything that one piece of work did, in one write: acks, messages, stream appends and
committed effects. All of it is stored, or nothing. The messages are routed as at a produce; the appends follow the
rules of a POST to the stream.
"""

from __future__ import annotations

import base64
import binascii
from hashlib import blake2b
from typing import TYPE_CHECKING

import google_crc32c
import msgspec

from driftq.core.model import commands as c
from driftq.core.model.facts import ProducerSequence
from driftq.core.model.replies import AlreadyDone, EffectBegun, OutcomeReply, Produced, Reply, StreamAppended
from driftq.server.access.identity import owned, require_group, require_stream, require_target, require_topic
from driftq.server.deliveries import held_runs
from driftq.server.handlers.codec import from_query, json_response, no_content, read_json, refused
from driftq.server.http import Answer, BadRequest, Request, Response
from driftq.server.produced_message import TRACE_HEADER, prepare, produce_command, produce_reply, traced
from driftq.server.streams.requests import NOTHING, packed_for
from driftq.wire.effects import (
    AppendedInfo,
    BeginReply,
    BeginRequest,
    CommitRequest,
    EffectReply,
    EffectRequest,
    FailRequest,
    OutcomeAppend,
    OutcomeDone,
    OutcomeRequest,
)
from driftq.wire.errors import Code
from driftq.wire.fields import to_rfc3339
from driftq.wire.grants import APPEND, PRODUCE

if TYPE_CHECKING:
    from driftq.engine.queries import StateView
    from driftq.server.handlers.context import Context
    from driftq.wire.message import Routing
    from driftq.wire.produce import ProduceItem

OUTCOME_ITEMS_MAX = 10_000  # it is one decision and one write, during which nothing else runs


class EffectsHandlers:
    """Handlers of `/v1/idempotency`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def begin(self, request: Request) -> Answer:
        body = read_json(request.body, BeginRequest)
        require_group(request, body.topic, body.group)
        if (body.partition is None) != (body.offset is None):
            raise BadRequest("partition and offset belong together")
        command = c.BeginEffect(
            _key(body), body.owner, body.lease_ms, body.partition, body.offset, body.token, body.fence
        )
        return self._context.ask(command, _begin_reply)

    def commit(self, request: Request) -> Answer:
        body = read_json(request.body, CommitRequest)
        require_group(request, body.topic, body.group)
        return self._context.ask(_commit(body), no_content)

    def fail(self, request: Request) -> Answer:
        body = read_json(request.body, FailRequest)
        require_group(request, body.topic, body.group)
        return self._context.ask(c.FailEffect(_key(body), body.fence, body.reason), no_content)

    def get(self, request: Request) -> Answer:
        """`?topic=&group=&key=&tenant_id=`."""
        names = ("topic", "group", "key", "tenant_id")
        body = from_query({name: request.query[name] for name in names if name in request.query}, EffectRequest)
        require_group(request, body.topic, body.group)
        return self._context.query(lambda view: _effect_reply(view, body))


def _key(body: EffectRequest) -> c.EffectKey:
    return c.EffectKey(body.tenant_id, body.topic, body.group, body.key)


def _commit(commit: CommitRequest) -> c.CommitEffect:
    return c.CommitEffect(_key(commit), commit.fence, commit.result.encode(), commit.ttl_ms)


def _begin_reply(reply: Reply) -> Response:
    if isinstance(reply, AlreadyDone):
        result = reply.result.decode("utf-8", "replace")
        return json_response(BeginReply("done", result=result, at=to_rfc3339(reply.at_ms)))
    assert isinstance(reply, EffectBegun)
    return json_response(BeginReply("begun", reply.fence, to_rfc3339(reply.until_ms)))


def _effect_reply(view: StateView, body: EffectRequest) -> Response:
    effect = view.state.effects.of(_key(body))
    if effect is None or view.state.is_forgettable_at(effect, view.now_ms):
        return refused(Code.NOT_FOUND, f"nothing is known of {body.key!r}")
    return json_response(
        EffectReply(
            status=effect.status.name,  # type: ignore[arg-type]  # the names of EffectStatus
            fence=effect.fence,
            owner=effect.owner,
            at=to_rfc3339(effect.at_ms),
            until=to_rfc3339(effect.until_ms),
            result=effect.result.decode("utf-8", "replace"),
            error=effect.error,
        )
    )


# --- outcomes ---

_deterministic = msgspec.json.Encoder(order="deterministic")


class OutcomeHandlers:
    """The handler of `/v1/outcome`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def outcome(self, request: Request) -> Answer:
        body = read_json(request.body, OutcomeRequest)
        if not (body.acks or body.produce or body.streams or body.commits):
            raise BadRequest("an outcome does at least one thing")
        if sum(map(len, (body.acks, body.produce, body.streams, body.commits))) > OUTCOME_ITEMS_MAX:
            raise BadRequest(f"an outcome does at most {OUTCOME_ITEMS_MAX} things")
        if request.identity is not None:
            _check_rights(request, body)
        if self._context.tenant:
            body = msgspec.structs.replace(body, produce=[owned(item, self._context.tenant) for item in body.produce])
        headers = request.head.fields
        has_trace = TRACE_HEADER in headers
        items = [(item.topic, traced(item, headers) if has_trace else item) for item in body.produce]
        router = self._context.router
        if router is None or not items:
            return self._submit(request, body, [(topic, item, None) for topic, item in items])
        return router.then(
            items,
            lambda routes: self._submit(request, body, [(topic, *route) for (topic, _), route in zip(items, routes)]),
        )

    def _submit(
        self, request: Request, body: OutcomeRequest, items: list[tuple[str, ProduceItem, Routing | None]]
    ) -> Answer:
        for _, item, _ in items:
            require_target(request, item)
        command = c.CommitOutcome(
            acks=tuple(c.Ack(ack.topic, ack.group, ack.owner, held_runs(ack.messages)) for ack in body.acks),
            produces=tuple(self._produce(*item) for item in items),
            appends=tuple(self._append(append) for append in body.streams),
            commits=tuple(_commit(commit) for commit in body.commits),
            key=body.idempotency_key,
            digest=_digest(body),
        )
        return self._context.ask(command, lambda reply: _outcome_done(body, reply))

    def _produce(self, topic: str, item: ProduceItem, routing: Routing | None) -> c.Produce:
        if not topic:
            raise BadRequest("topic and value are required")
        strict = self._context.settings.idempotency.strict
        message = prepare(item, topic, self._context.engine.now_ms(), strict_keys=strict, routing=routing)
        return produce_command(topic, item.envelope, message, self._context.any_partition(topic, item))

    def _append(self, append: OutcomeAppend) -> c.AppendStream:
        try:
            value = (
                base64.b64decode(append.value_base64, validate=True) if append.value_base64 else append.value.encode()
            )
        except (binascii.Error, ValueError):
            raise BadRequest("invalid value_base64") from None
        stream = self._context.engine.latest_state.streams.by_path.get(append.path)
        stream_type = stream.created.content_type if stream is not None and not stream.closed else None
        packed = packed_for(stream_type, append.content_type, value) if value else NOTHING
        producer = None
        if append.producer_id:
            digest = google_crc32c.value(value)
            producer = ProducerSequence(append.producer_id, append.producer_epoch, append.producer_seq, digest)
        return c.AppendStream(
            path=append.path,
            content_type=append.content_type,
            batch=packed.batch,
            count=packed.count,
            payload_bytes=len(value),
            producer=producer,
            close=append.close,
        )


def _check_rights(request: Request, body: OutcomeRequest) -> None:
    """Every part needs its own right; one that is refused refuses all of them."""
    for ack in body.acks:
        require_group(request, ack.topic, ack.group)
    for item in body.produce:
        require_topic(request, PRODUCE, item.topic)
    for append in body.streams:
        require_stream(request, APPEND, append.path)
    for commit in body.commits:
        require_group(request, commit.topic, commit.group)


def _digest(body: OutcomeRequest) -> bytes:
    """A digest of everything but the acks, as it was sent. Routing, trace and time differ in a repeat, so they are not
    a part of it."""
    return blake2b(_deterministic.encode((body.produce, body.streams, body.commits)), digest_size=16).digest()


def _outcome_done(body: OutcomeRequest, reply: OutcomeReply) -> Response:
    produced = []
    for item, part in zip(body.produce, reply.produced, strict=True):
        assert isinstance(part, Produced)
        produced.append(produce_reply(item.topic, part))
    appended = []
    for append, end in zip(body.streams, reply.appended, strict=True):
        assert isinstance(end, StreamAppended)
        appended.append(AppendedInfo(append.path, end.end_offset, end.closed))
    return json_response(OutcomeDone("done", produced, appended, reply.duplicate))
