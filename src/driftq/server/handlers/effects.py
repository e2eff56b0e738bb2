"""Effects that happen once: begin, commit, fail, look; and the outcome of a piece of work, all or nothing."""

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
from driftq.core.state.idempotency import effect_scope
from driftq.server.handlers.base import Context, error_response, json_response, no_content, read_json
from driftq.server.handlers.claims import held_runs
from driftq.server.handlers.queue import produce_command, produced
from driftq.server.http import Answer, BadRequest, Request, Response
from driftq.server.produced_message import HEADER as TRACE_HEADER
from driftq.server.produced_message import outgoing, traced
from driftq.server.streams.requests import NOTHING, packed_for
from driftq.wire.admin import (
    BeginRequest,
    CommitRequest,
    EffectRequest,
    FailRequest,
    OutcomeAppend,
    OutcomeRequest,
)
from driftq.wire.message import Routing, to_rfc3339

if TYPE_CHECKING:
    from driftq.engine.queries import StateView
    from driftq.wire.queue import ProduceItem

_encoder = msgspec.json.Encoder(order="deterministic")


class EffectsHandlers:
    """Handlers of effect keys and outcomes."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def begin(self, request: Request) -> Answer:
        body = read_json(request.body, BeginRequest)
        if (body.partition is None) != (body.offset is None):
            raise BadRequest("partition and offset belong together")
        command = c.BeginEffect(
            _key(body), body.owner, body.lease_ms, body.partition, body.offset, body.token, body.fence
        )
        return self._context.ask(command, _begun)

    def commit(self, request: Request) -> Answer:
        return self._context.ask(_commit(read_json(request.body, CommitRequest)), no_content)

    def fail(self, request: Request) -> Answer:
        body = read_json(request.body, FailRequest)
        return self._context.ask(c.FailEffect(_key(body), body.fence, body.reason), no_content)

    def get(self, request: Request) -> Answer:
        """`?topic=&group=&key=&tenant_id=`."""
        query = {name: request.query[name] for name in ("topic", "group", "key", "tenant_id") if name in request.query}
        try:
            body = msgspec.convert(query, EffectRequest)
        except msgspec.ValidationError as error:
            raise BadRequest(f"invalid parameters: {error}") from None
        return self._context.query(lambda view: _effect(view, body))

    def outcome(self, request: Request) -> Answer:
        body = read_json(request.body, OutcomeRequest)
        if not (body.acks or body.produce or body.streams or body.commits):
            raise BadRequest("an outcome does at least one thing")
        trace = request.head.fields.get(TRACE_HEADER)
        asked = [(item.topic, traced(item, trace) if trace is not None else item) for item in body.produce]
        router = self._context.router
        if router is None or not asked:
            return self._outcome(body, [(topic, item, None) for topic, item in asked])
        return router.then(
            asked, lambda routes: self._outcome(body, [(topic, *route) for (topic, _), route in zip(asked, routes)])
        )

    def _outcome(self, body: OutcomeRequest, asked: list[tuple[str, ProduceItem, Routing | None]]) -> Answer:
        command = c.CommitOutcome(
            acks=tuple(c.Ack(ack.topic, ack.group, ack.owner, held_runs(ack.messages)) for ack in body.acks),
            produces=tuple(self._produce(*each) for each in asked),
            appends=tuple(self._append(item) for item in body.streams),
            commits=tuple(_commit(item) for item in body.commits),
            key=body.idempotency_key,
            digest=_digest(body),
        )
        return self._context.ask(command, lambda reply: _outcome(body, reply))

    def _produce(self, requested: str, item: ProduceItem, routing: Routing | None) -> c.Produce:
        if not requested:
            raise BadRequest("topic and value are required")
        strict = self._context.settings.idempotency.strict
        message = outgoing(item, requested, self._context.engine.now_ms(), strict_keys=strict, routing=routing)
        return produce_command(requested, item.envelope, message, self._context.any_partition(requested, item))

    def _append(self, item: OutcomeAppend) -> c.AppendStream:
        """The same rules as for a POST to the stream: JSON is checked and cut into its messages."""
        try:
            value = base64.b64decode(item.value_base64, validate=True) if item.value_base64 else item.value.encode()
        except (binascii.Error, ValueError):
            raise BadRequest("invalid value_base64") from None
        stream = self._context.engine.latest_state.streams.by_path.get(item.path)
        stream_type = stream.created.content_type if stream is not None and not stream.closed else None
        packed = packed_for(stream_type, item.content_type, value) if value else NOTHING
        producer = None
        if item.producer_id:
            digest = google_crc32c.value(value)
            producer = ProducerSequence(item.producer_id, item.producer_epoch, item.producer_seq, digest)
        return c.AppendStream(
            path=item.path,
            content_type=item.content_type,
            batch=packed.batch,
            count=packed.count,
            payload_bytes=len(value),
            producer=producer,
            close=item.close,
        )


def _effect(view: StateView, body: EffectRequest) -> Response:
    effect = view.state.effects.find(effect_scope(_key(body)))
    if effect is None or view.state.is_forgettable_at(effect, view.now_ms):
        return error_response(404, "NOT_FOUND", f"nothing is known of {body.key!r}")
    shown = {
        "status": effect.status.name,
        "fence": effect.fence,
        "owner": effect.owner,
        "at": to_rfc3339(effect.at_ms),
        "until": to_rfc3339(effect.until_ms),
        "result": effect.result.decode("utf-8", "replace"),
        "error": effect.error,
    }
    return json_response(shown)


def _key(body: EffectRequest) -> c.EffectKey:
    return c.EffectKey(body.tenant_id, body.topic, body.group, body.key)


def _commit(body: CommitRequest) -> c.CommitEffect:
    return c.CommitEffect(_key(body), body.fence, body.result.encode(), body.ttl_ms)


def _begun(reply: Reply) -> Response:
    if isinstance(reply, AlreadyDone):
        result = reply.result.decode("utf-8", "replace")
        return json_response({"status": "done", "result": result, "at": to_rfc3339(reply.at_ms)})
    assert isinstance(reply, EffectBegun)
    return json_response({"status": "begun", "fence": reply.fence, "until": to_rfc3339(reply.until_ms)})


def _digest(body: OutcomeRequest) -> bytes:
    """Of what was asked for beside the acks, as it was sent: routing, trace and times must not make a repeat another
    outcome."""
    asked = _encoder.encode((body.produce, body.streams, body.commits))
    return blake2b(asked, digest_size=16).digest()


def _outcome(body: OutcomeRequest, reply: OutcomeReply) -> Response:
    messages = []
    for item, each in zip(body.produce, reply.produced, strict=True):
        assert isinstance(each, Produced)
        messages.append(produced(item.topic, each))
    appended = []
    for part, shown in zip(body.streams, reply.appended, strict=True):
        assert isinstance(shown, StreamAppended)
        appended.append({"path": part.path, "end_offset": shown.end_offset, "closed": shown.closed})
    repeated = {"duplicate": True} if reply.duplicate else {}
    return json_response({"status": "done", "produced": messages, "streams": appended} | repeated)
