"""The queue as the v1 specification has it: topics, produce, consume, ack, nack, with JSON bodies or query
parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from msgspec import UNSET, convert

from driftq.core.model import commands as c
from driftq.core.model.facts import TopicConfig
from driftq.core.model.replies import Produced, Rejected, Settlement, TopicReady
from driftq.core.state.groups import DEAD_PREFIX
from driftq.server.consume_stream import ConsumeStream
from driftq.server.handlers.base import ANY, Context, json_response, no_content, number, page_limit, read, refusal
from driftq.server.http import Answer, BadRequest, Deferred, Request, Response, Streaming
from driftq.server.produced_message import HEADER as TRACE_HEADER
from driftq.server.produced_message import ProducedMessage, outgoing, traced
from driftq.wire.errors import Code
from driftq.wire.message import Envelope, RetryPolicy, Routing, from_rfc3339, to_rfc3339
from driftq.wire.queue import (
    AckRequest,
    ConsumeRequest,
    NackRequest,
    ProduceItem,
    ProduceReply,
    ProduceRequest,
    TopicReply,
    TopicRequest,
    TopicsReply,
)
from driftq.wire.records import pack_one

if TYPE_CHECKING:
    from driftq.engine.queries import StateView

_PARTITION_OFFSET = frozenset({"partition", "offset"})
_TOPIC_NUMBERS = frozenset(TopicRequest.__struct_fields__) - {"name", "retry", "history", "fair"}
_PRODUCED = b'{"status":"produced","topic":"%b","routed_topic":"%b","partition":%d,"offset":%d}\n'
_RETRY = {
    "retry_max_attempts": "max_attempts",
    "retry_backoff_ms": "backoff_ms",
    "retry_max_backoff_ms": "max_backoff_ms",
}
_ALIASES = {"tenant": "tenant_id", "idem_key": "idempotency_key"}
_ENVELOPE_TEXTS = ("run_id", "step_id", "parent_step_id", "tenant_id", "idempotency_key", "target_topic", "traceparent")


class QueueHandlers:
    """Handlers of the specified routes."""

    def __init__(self, context: Context) -> None:
        self._context = context

    # --- topics ---

    def list_topics(self, request: Request) -> Answer:
        """All names, or with `limit` or `after` a page of them."""
        paged = "limit" in request.query or "after" in request.query
        limit, after = page_limit(request, 1_000), request.query.get("after", "")

        def look(view: StateView) -> Response:
            names = sorted(name for name in view.state.topics if not name.startswith(DEAD_PREFIX) and name > after)
            more = paged and len(names) > limit
            return json_response(TopicsReply(names[:limit], names[limit - 1]) if more else TopicsReply(names))

        return self._context.query(look)

    def create_topic(self, request: Request) -> Answer:
        body = read(request, TopicRequest, _TOPIC_NUMBERS, flags=frozenset({"history"}))
        name = body.name.strip()
        if not name:
            raise BadRequest("name is required")
        config = TopicConfig(
            body.retention_ms,
            body.retention_bytes,
            body.lease_ms,
            body.in_flight_max,
            body.backlog_messages_max,
            body.backlog_bytes_max,
            body.retry,
            body.history,
            body.fair,
        )

        def respond(reply: TopicReady) -> Response:
            status = 201 if reply.created else 200
            return json_response(
                TopicReply("created" if reply.created else "exists", reply.topic, reply.partitions), status
            )

        return self._context.ask(c.CreateTopic(name, body.partitions or 1, config), respond)

    # --- produce ---

    def produce(self, request: Request) -> Answer:
        body = read(request, ProduceRequest, frozenset()) if request.body else _produce_query(request)
        if not body.topic:
            raise BadRequest("topic and value are required")
        trace = request.head.fields.get(TRACE_HEADER)
        if trace is not None:
            body = traced(body, trace)
        router = self._context.router
        if router is None:
            value = self._plain_value(body)
            if value is None:
                return self._produce(body.topic, body)
            answer = _Producing(body.topic)
            partition = self._context.any_partition(body.topic, body) if body.partition is not None else None
            self._context.engine.produce_to(body.topic, value.encode(), body.key.encode(), answer, partition)
            return answer
        return router.then([(body.topic, body)], lambda routes: self._produce(body.topic, *routes[0]))

    def _plain_value(self, body: ProduceRequest) -> str | None:
        """The value of what most messages are: a text, perhaps a key, and nothing else. `_produce` would make the same
        of it, in more."""
        value, key = body.value, body.key
        if not value or len(key) > 64 or body.envelope is not None or body.value_base64 is not None:
            return None
        if body.task or body.id or body.priority or body.delay_ms or body.not_before or body.timeout_ms:
            return None
        if self._context.rates.active or not (value.isascii() and key.isascii()):
            return None
        return value

    def _produce(self, requested: str, item: ProduceItem, routing: Routing | None = None) -> Answer:
        engine = self._context.engine
        strict = self._context.settings.idempotency.strict
        message = outgoing(item, requested, engine.now_ms(), strict_keys=strict, routing=routing)
        command = produce_command(requested, item.envelope, message, self._context.any_partition(requested, item))
        refused = self._context.charge(item.envelope, 1, command.payload_bytes)
        if refused is not None:
            return refusal(refused)
        return self._ask_to_produce(requested, command)

    def _ask_to_produce(self, requested: str, command: c.Produce) -> Answer:
        answer = _Producing(requested)
        self._context.engine.submit_to(command, answer)
        return answer

    # --- consume ---

    def consume(self, request: Request) -> Answer:
        body = read(request, ConsumeRequest, frozenset({"lease_ms", "prefetch"}))
        if not (body.topic and body.group and body.owner):
            raise BadRequest("topic, group, and owner are required")
        lease_ms = body.lease_ms if body.lease_ms is not None else self._lease_ms(body.topic)
        claim = c.Claim(body.topic, body.group, body.owner, 1, lease_ms, start_of(body.start), body.task, body.label)
        return self._open_stream(claim, body.prefetch)

    def _lease_ms(self, topic: str) -> int:
        known = self._context.engine.latest_state.topics.get(topic)
        return (known.config.lease_ms if known is not None else 0) or self._context.settings.queue.lease_ms

    def _in_flight_max(self, topic: str) -> int:
        known = self._context.engine.latest_state.topics.get(topic)
        return (known.config.in_flight_max if known is not None else 0) or self._context.settings.queue.in_flight_max

    async def _open_stream(self, claim: c.Claim, prefetch: int | None) -> Response | Streaming:
        """The group is registered first, so that a wrong request is answered with a status, not with a stream. A
        request that is refused registers nothing."""
        limits = self._context.engine.queries.limits
        low, high = limits.lease_ms_min, limits.lease_ms_max
        if claim.lease_ms is not None and not low <= claim.lease_ms <= high:
            return refusal(Rejected(Code.INVALID_ARGUMENT, f"invalid lease_ms: it must be {low} to {high}"))
        reply = await self._context.engine.submit(c.CreateGroup(claim.topic, claim.group, claim.start))
        if isinstance(reply, Rejected):
            return refusal(reply)
        heartbeat_ms = self._context.settings.queue.heartbeat_ms
        in_flight_max = self._in_flight_max(claim.topic)
        consumer = ConsumeStream(self._context.engine, claim, heartbeat_ms, in_flight_max, prefetch)
        return Streaming(consumer.run, cancel_when_gone=False)

    # --- settle ---

    def ack(self, request: Request) -> Answer:
        body = read(request, AckRequest, _PARTITION_OFFSET)
        return self._context.ask(c.Ack(body.topic, body.group, body.owner, (_held(body),)), settled)

    def nack(self, request: Request) -> Answer:
        body = read(request, NackRequest, _PARTITION_OFFSET | {"delay_ms"}, {"error": "reason"})
        command = c.Nack(body.topic, body.group, body.owner, (_held(body),), body.reason, body.delay_ms)
        return self._context.ask(command, settled)


class _Producing(Deferred):
    """The answer to a produce, and who is called with its reply: one object instead of three."""

    __slots__ = ("_requested",)

    def __init__(self, requested: str) -> None:
        super().__init__()
        self._requested = requested

    def __call__(self, reply: object) -> None:
        if type(reply) is not Produced:
            assert isinstance(reply, Rejected)
            self.resolve(refusal(reply))
        elif reply.topic == self._requested and not reply.duplicate:
            # What nearly every answer is. A topic that exists has a name that needs no quoting.
            name = reply.topic.encode()
            self.resolve(Response(200, _PRODUCED % (name, name, reply.partition, reply.first_offset)))
        else:
            self.resolve(json_response(produced(self._requested, reply)))


def produce_command(
    topic: str, envelope: Envelope | None, message: ProducedMessage, any_partition: int | None = None
) -> c.Produce:
    """The routing controls of the envelope win over the requested topic, the key's hash and the partition in turn."""
    record = message.record
    override = envelope.partition_override if envelope is not None else None
    target = envelope.target_topic or topic if envelope is not None else topic
    return c.Produce(
        topic=target,
        batch=pack_one(record.value, record.key, record.head, scheduled=message.mark is not None),
        count=1,
        payload_bytes=len(record.key) + len(record.value),
        key=record.key,
        partition=override if override is not None else any_partition,
        once=message.once,
        marks=(message.mark,) if message.mark is not None else (),
        job=message.job,
    )


def produced(requested: str, reply: Produced) -> ProduceReply:
    return ProduceReply("produced", requested, reply.topic, reply.partition, reply.first_offset, reply.duplicate)


def settled(reply: Settlement) -> Response:
    """For one message: its refusal is the call's."""
    if reply.refused:
        first = reply.refused[0]
        return refusal(Rejected(first.code, first.message))
    return no_content()


def _held(body: AckRequest) -> c.Held:
    partition, offset = body.partition, body.offset
    if partition is UNSET or offset is UNSET:
        raise BadRequest("partition and offset are required")
    if not (body.topic and body.group and (body.owner or body.token)):
        raise BadRequest("topic, group, and owner are required")
    return c.Held(partition, offset, offset + 1, body.token)


def start_of(text: str) -> str | int:
    """Where a new group begins: earliest, latest, or an RFC 3339 time."""
    if text in ("earliest", "latest"):
        return text
    try:
        return from_rfc3339(text)
    except ValueError:
        raise BadRequest("invalid start: earliest, latest or an RFC 3339 time") from None


def _produce_query(request: Request) -> ProduceRequest:
    """The same message from query parameters; unknown ones are ignored."""
    query: dict[str, str] = {}
    for name, text in request.query.items():
        query.setdefault(_ALIASES.get(name, name), text)
    fields: dict[str, Any] = {name: query[name] for name in _ENVELOPE_TEXTS if name in query}
    if "partition_override" in query:
        fields["partition_override"] = number("partition_override", query["partition_override"])
    envelope = Envelope(**fields, deadline=_deadline(query), retry_policy=_retry_policy(query))
    return ProduceRequest(
        topic=query.get("topic", ""),
        value=query.get("value"),
        key=query.get("key", ""),
        envelope=None if envelope == Envelope() else envelope,
        id=query.get("id", ""),
        task=query.get("task", ""),
        priority=number("priority", query["priority"]) if "priority" in query else 0,
        delay_ms=number("delay_ms", query["delay_ms"]) if "delay_ms" in query else 0,
        not_before=query.get("not_before", ""),
        partition=asks_for_any(query.get("partition")),
    )


def asks_for_any(text: str | None) -> Literal["any"] | None:
    """`partition` where only "any" has a meaning."""
    if text is None:
        return None
    if text != ANY:
        raise BadRequest('invalid partition: only "any"; partition_override names one')
    return ANY


def _deadline(query: dict[str, str]) -> str:
    """Three names for one thing, all honoured."""
    if "deadline_ms" in query:
        return to_rfc3339(number("deadline_ms", query["deadline_ms"]))
    return query.get("deadline") or query.get("deadline_rfc3339", "")


def _retry_policy(query: dict[str, str]) -> RetryPolicy | None:
    numbers = {field: number(name, query[name]) for name, field in _RETRY.items() if name in query}
    if not numbers:
        return None
    if not numbers.get("max_attempts"):
        raise BadRequest("retry_max_attempts must be > 0 when using retry backoff params")
    return convert(numbers, RetryPolicy)
