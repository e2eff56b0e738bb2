"""`POST /v1/produce`: one message, as JSON or as query parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import convert

from driftq.core.model.replies import Produced, Rejected
from driftq.server.access.identity import owned, require_target, require_topic
from driftq.server.handlers.codec import any_of, json_response, number, read_message, refusal
from driftq.server.http import Answer, BadRequest, Deferred, Request, Response
from driftq.server.produced_message import TRACE_HEADER, prepare, produce_command, produce_reply, traced
from driftq.wire.fields import to_rfc3339
from driftq.wire.grants import PRODUCE
from driftq.wire.message import Envelope, RetryPolicy, Routing
from driftq.wire.produce import ProduceItem, ProduceRequest

if TYPE_CHECKING:
    from driftq.server.handlers.context import Context
    from driftq.server.router.caller import RoutedItem
    from driftq.server.tracer import ReceivedTrace

PLAIN_KEY_LENGTH_MAX = 64

# A `ProduceReply`, for the fast path: the name of a topic that exists needs no escaping.
_PRODUCED = b'{"status":"produced","topic":"%b","routed_topic":"%b","partition":%d,"offset":%d}\n'

_QUERY_ALIASES = {"tenant": "tenant_id", "idem_key": "idempotency_key"}
_ENVELOPE_TEXTS = (
    "run_id", "step_id", "parent_step_id", "tenant_id", "idempotency_key", "target_topic", "traceparent",
    "tracestate", "baggage",
)  # fmt: skip
_RETRY_QUERY = {
    "retry_max_attempts": "max_attempts",
    "retry_backoff_ms": "backoff_ms",
    "retry_max_backoff_ms": "max_backoff_ms",
}


class ProduceHandlers:
    """The handler of `/v1/produce`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def produce(self, request: Request) -> Answer:
        body = read_message(request.body, ProduceRequest) if request.body else _from_query(request)
        if not body.topic:
            raise BadRequest("topic and value are required")
        require_topic(request, PRODUCE, body.topic)
        if self._context.tenant:
            body = owned(body, self._context.tenant)
        if TRACE_HEADER in request.head.fields:
            body = traced(body, request.head.fields)
        tracer = self._context.tracer
        if tracer is None:
            return self._accept(request, body)
        return tracer.received(request, body.topic, (body,), lambda trace: self._accept(request, body, trace))

    def _accept(self, request: Request, body: ProduceRequest, trace: ReceivedTrace | None = None) -> Answer:
        router = self._context.router
        if router is None:
            value = self._plain_value(body)
            if value is None:
                return self._produce(request, body.topic, body)
            answer = _ProduceAnswer(body.topic)
            partition = self._context.any_partition(body.topic, body) if body.partition is not None else None
            self._context.engine.produce_to(body.topic, value.encode(), body.key.encode(), answer, partition)
            return answer

        def finish(routes: list[RoutedItem]) -> Answer:
            return self._produce(request, body.topic, *routes[0])

        return router.then([(body.topic, body)], finish if trace is None else trace.after_route(finish))

    def _plain_value(self, body: ProduceRequest) -> str | None:
        """Fast path: the value, if the message is ASCII text with an optional short key and nothing else. `_produce`
        would store the same."""
        value, key = body.value, body.key
        if not value or len(key) > PLAIN_KEY_LENGTH_MAX or body.envelope is not None or body.value_base64 is not None:
            return None
        if body.task or body.id or body.priority or body.delay_ms or body.not_before or body.timeout_ms:
            return None
        if self._context.tenant or self._context.rates.active or not (value.isascii() and key.isascii()):
            return None
        return value

    def _produce(self, request: Request, topic: str, item: ProduceItem, routing: Routing | None = None) -> Answer:
        require_target(request, item)
        engine = self._context.engine
        strict = self._context.settings.idempotency.strict
        message = prepare(item, topic, engine.now_ms(), strict_keys=strict, routing=routing)
        command = produce_command(topic, item.envelope, message, self._context.any_partition(topic, item))
        rejected = self._context.charge(item.envelope, 1, command.payload_bytes)
        if rejected is not None:
            return refusal(rejected)
        answer = _ProduceAnswer(topic)
        engine.submit_to(command, answer)
        return answer


class _ProduceAnswer(Deferred):
    """The answer to a produce, which is also the callback of its command: one object instead of three."""

    __slots__ = ("_topic",)

    def __init__(self, topic: str) -> None:
        super().__init__()
        self._topic = topic  # as requested

    def __call__(self, reply: object) -> None:
        if type(reply) is not Produced:
            assert isinstance(reply, Rejected)
            self.resolve(refusal(reply))
        elif reply.topic == self._topic and not reply.duplicate:
            name = reply.topic.encode()
            self.resolve(Response(200, _PRODUCED % (name, name, reply.partition, reply.first_offset)))
        else:
            self.resolve(json_response(produce_reply(self._topic, reply)))


# --- query parameters -------------------------------------------------------------------------------------------------


def _from_query(request: Request) -> ProduceRequest:
    """The message from query parameters. Unknown ones are ignored."""
    query: dict[str, str] = {}
    for name, text in request.query.items():
        query.setdefault(_QUERY_ALIASES.get(name, name), text)
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
        partition=any_of(query.get("partition")),
    )


def _deadline(query: dict[str, str]) -> str:
    """`deadline_ms`, `deadline` or `deadline_rfc3339`."""
    if "deadline_ms" in query:
        return to_rfc3339(number("deadline_ms", query["deadline_ms"]))
    return query.get("deadline") or query.get("deadline_rfc3339", "")


def _retry_policy(query: dict[str, str]) -> RetryPolicy | None:
    numbers = {field: number(name, query[name]) for name, field in _RETRY_QUERY.items() if name in query}
    if not numbers:
        return None
    if not numbers.get("max_attempts"):
        raise BadRequest("retry_max_attempts must be > 0 when using retry backoff params")
    return convert(numbers, RetryPolicy)
