"""Producing many messages in one request: JSON, NDJSON, or packed batches that are stored as they come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from driftq.core.model import commands as c
from driftq.core.model.facts import ProducerSequence
from driftq.core.model.replies import Produced, Rejected, Reply
from driftq.server.handlers.base import ANY, QUEUE_PROBLEMS, Context, json_response, number, read_json, refusal
from driftq.server.handlers.queue import asks_for_any, produce_command, produced
from driftq.server.http import Answer, BadRequest, Deferred, Request, Response
from driftq.server.produced_message import HEADER as TRACE_HEADER
from driftq.server.produced_message import ProducedMessage, merged, outgoing, read_packed, traced
from driftq.wire.message import Routing
from driftq.wire.partitions import partition_of
from driftq.wire.queue import ProduceBatchRequest, ProduceItem, ProduceRequest
from driftq.wire.records import pack

MESSAGES_MAX = 10_000
PACKED = "application/x-driftq-batch"
_NO_SUMMARY: dict[str, Any] = {}
_Sticky = dict[str, int]  # for each topic the partition of a request's messages that may go to any
_Asked = tuple[str, ProduceItem, Routing | None]  # the requested topic, the message, the router's decision


class _Item(NamedTuple):
    """A message of the request with its place in it and where it asks to go."""

    place: int
    topic: str
    target: str
    partition: int | None
    message: ProducedMessage
    command: c.Produce | None  # a message with a key travels alone: its frame is its own


class BatchesHandlers:
    """Handlers of `/v1/produce/batch` and `/v1/produce/packed`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def produce(self, request: Request) -> Answer:
        """Per-item results, in order; what is wrong with one message does not stop the others."""
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type == PACKED:
            return self.produce_packed(request)
        asked, spread = _ndjson(request) if content_type == "application/x-ndjson" else _json(request)
        if not 1 <= len(asked) <= MESSAGES_MAX:
            raise BadRequest(f"a batch holds 1 to {MESSAGES_MAX} messages")
        trace = request.head.fields.get(TRACE_HEADER)
        if trace is not None:
            asked = [(topic, traced(item, trace)) for topic, item in asked]
        router = self._context.router
        if router is None:
            return self._produce([(topic, item, None) for topic, item in asked], spread)
        return router.then(
            asked, lambda routes: self._produce([(topic, *route) for (topic, _), route in zip(asked, routes)], spread)
        )

    def _produce(self, asked: list[_Asked], spread: bool) -> Answer:
        results: list[dict[str, Any]] = [_NO_SUMMARY] * len(asked)
        return self._submit(self._items(asked, results, spread), results)

    def _items(self, asked: list[_Asked], results: list[dict[str, Any]], spread: bool) -> list[_Item]:
        sticky: _Sticky = {}
        now_ms = self._context.engine.now_ms()
        strict = self._context.settings.idempotency.strict
        items: list[_Item] = []
        for index, (topic, item, routing) in enumerate(asked):
            try:
                if not topic:
                    raise BadRequest("topic and value are required")
                message = outgoing(item, topic, now_ms, strict_keys=strict, routing=routing)
            except BadRequest as error:
                results[index] = {"error": "INVALID_ARGUMENT", "message": error.message, "status": 400}
                continue
            wants_any = spread or item.partition is not None
            partition = self._context.any_partition(topic, item, sticky) if wants_any else None
            command = produce_command(topic, item.envelope, message, partition)
            refused = self._context.charge(item.envelope, 1, command.payload_bytes)
            if refused is not None:
                results[index] = _result(topic, refused, 0)
                continue
            alone = command if message.once or message.job else None
            items.append(_Item(index, topic, command.topic, command.partition, message, alone))
        return items

    def _submit(self, items: list[_Item], results: list[dict[str, Any]]) -> Answer:
        """One command for each partition, one for each key; the answer comes with the last reply."""
        answer = Deferred()
        calls = self._calls(items)
        left = len(calls)

        def on_reply(members: list[_Item], reply: Reply) -> None:
            nonlocal left
            for position, item in enumerate(members):
                results[item.place] = _result(item.topic, reply, position)
            left -= 1
            if not left:
                answer.resolve(_summary(results))

        if not calls:
            return _summary(results)
        for command, members in calls:
            self._context.engine.submit_to(command, _bound(on_reply, members))
        return answer

    def _calls(self, items: list[_Item]) -> list[tuple[c.Produce, list[_Item]]]:
        """The commands, so that the messages of a partition keep the order of the request."""
        calls: list[tuple[c.Produce, list[_Item]]] = []
        gathered: dict[tuple[str, int | None], list[_Item]] = {}
        for item in items:
            place = (item.target, self._partition(item))
            if item.command is None:
                gathered.setdefault(place, []).append(item)
                continue
            if place in gathered:
                members = gathered.pop(place)
                calls.append((_packed(*place, members), members))
            calls.append((item.command, [item]))
        calls.extend((_packed(*place, members), members) for place, members in gathered.items())
        return calls

    def _partition(self, item: _Item) -> int | None:
        topic = self._context.engine.latest_state.topics.get(item.target)
        if item.partition is not None or topic is None:
            return item.partition  # unknown topics and wrong partitions are refused by the broker
        return partition_of(item.message.record.key, len(topic.log_ids))

    # --- packed ---

    def produce_packed(self, request: Request) -> Answer:
        """`?topic=…&partition=…` (or `key=…`, or `partition=any`) and a packed batch as the body, with its producer
        inside."""
        topic = request.query.get("topic", "")
        if not topic:
            raise BadRequest("topic is required")
        bounds = self._context.settings.limits
        batch = read_packed(request.body, bounds.message_bytes, bounds.batch_bytes)
        if isinstance(batch, Rejected):
            return refusal(batch)
        header = batch.header
        partition = self._packed_partition(request, topic, bool(header.producer))
        producer = ProducerSequence(header.producer, header.epoch, header.seq, header.crc) if header.producer else None
        command = c.Produce(
            topic=topic,
            batch=request.body,
            count=header.count,
            payload_bytes=header.raw_bytes,
            key=request.query.get("key", "").encode(),
            partition=partition,
            producer=producer,
            marks=batch.marks,
        )
        refused = self._context.charge(None, header.count, header.raw_bytes)
        if refused is not None:
            return refusal(refused)
        return self._context.ask(command, lambda reply: json_response(_packed_reply(topic, reply)))

    def _packed_partition(self, request: Request, topic: str, has_producer: bool) -> int | None:
        text = request.query.get("partition")
        if text is None:
            return None
        if text != ANY:
            return number("partition", text)
        if has_producer:
            raise BadRequest(
                "partition=any is not for a batch with a producer: its repeat must meet the same partition"
            )
        return self._context.any_partition(topic, ProduceItem(key=request.query.get("key", ""), partition=ANY))


def _bound(call: Callable[[list[_Item], Reply], None], members: list[_Item]) -> Callable[[Reply], None]:
    return lambda reply: call(members, reply)


def _json(request: Request) -> tuple[list[tuple[str, ProduceItem]], bool]:
    """`{"topic": …, "messages": […]}`, or a plain array of messages that each name their topic; and whether all that
    have no key may go to any partition."""
    spread = asks_for_any(request.query.get("partition")) is not None
    if request.body.lstrip()[:1] == b"[":
        return [(each.topic, each) for each in read_json(request.body, list[ProduceRequest])], spread
    body = read_json(request.body, ProduceBatchRequest)
    return [(body.topic, each) for each in body.messages], spread or body.partition is not None


def _ndjson(request: Request) -> tuple[list[tuple[str, ProduceItem]], bool]:
    spread = asks_for_any(request.query.get("partition")) is not None
    default = request.query.get("topic", "")
    lines = [line for line in request.body.split(b"\n") if line.strip()]
    bodies = [read_json(line, ProduceRequest) for line in lines[: MESSAGES_MAX + 1]]
    return [(each.topic or default, each) for each in bodies], spread


def _packed(target: str, partition: int | None, members: list[_Item]) -> c.Produce:
    messages = [member.message for member in members]
    marks = tuple(merged(message.mark, index) for index, message in enumerate(messages) if message.mark is not None)
    return c.Produce(
        topic=target,
        batch=pack([message.record for message in messages], scheduled=bool(marks)),
        count=len(messages),
        payload_bytes=sum(len(message.record.key) + len(message.record.value) for message in messages),
        partition=partition,
        marks=marks,
    )


def _result(topic: str, reply: Reply, position: int) -> dict[str, Any]:
    if isinstance(reply, Produced):
        shown = msgspec.to_builtins(produced(topic, reply))
        shown["offset"] += position
        return {**shown, "status": 200}
    assert isinstance(reply, Rejected)
    problem = QUEUE_PROBLEMS[reply.code]
    return {"error": problem.error, "message": reply.message, "status": problem.status, **reply.details}


def _summary(results: list[dict[str, Any]]) -> Response:
    failed = sum("error" in result for result in results)
    return json_response({"produced": len(results) - failed, "failed": failed, "results": results})


def _packed_reply(topic: str, reply: Produced | Rejected) -> dict[str, Any]:
    if isinstance(reply, Rejected):  # `ask` answers refusals itself
        raise AssertionError(refusal(reply))
    return {
        "status": "produced",
        "topic": topic,
        "partition": reply.partition,
        "offset": reply.first_offset,
        "count": reply.count,
        "duplicate": reply.duplicate,
    }
