"""Producing many messages in one request: as JSON or NDJSON, or as a packed batch that is stored as it is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from msgspec import Raw, Struct
from msgspec.structs import replace

from driftq.core.model import commands as c
from driftq.core.model.facts import ProducerSequence
from driftq.core.model.replies import Produced, Rejected, Reply
from driftq.server.access.identity import AccessRefused, owned, require_target, require_topic
from driftq.server.handlers.codec import any_of, json_response, number, read_json, refusal
from driftq.server.http import Answer, BadRequest, Deferred, Request, Response, reply_of
from driftq.server.http import Reply as HttpReply
from driftq.server.packed_batch import PackedBatch, PackedReader
from driftq.server.produced_message import (
    TRACE_HEADER,
    ProducedMessage,
    prepare,
    produce_command,
    traced,
)
from driftq.server.slices import next_slice
from driftq.wire.errors import CODES, Code, error_fields
from driftq.wire.grants import PRODUCE
from driftq.wire.message import Routing
from driftq.wire.partitions import partition_of
from driftq.wire.produce import (
    ANY,
    PACKED_TYPE,
    BatchResult,
    PackedReply,
    ProduceBatchRequest,
    ProduceItem,
    ProduceRequest,
)
from driftq.wire.records import pack
from driftq.wire.streams import media_type

if TYPE_CHECKING:
    from driftq.engine.engine import Engine
    from driftq.server.handlers.context import Context
    from driftq.server.router.caller import RoutedItem
    from driftq.server.tracer import ReceivedTrace

M = TypeVar("M", bound=ProduceItem)

MESSAGES_MAX = 10_000
AT_ONCE = 500  # messages that are submitted before other requests get a turn
DECODED_AT_ONCE_BYTES = 512 << 10  # of a body; a larger one is decoded message by message, in slices

_Requested = tuple[str, ProduceItem, Routing | None]  # the requested topic, the message, the router's decision
_Result = BatchResult | dict[str, Any]  # an error is a dict: its details differ from code to code
_NO_RESULT: _Result = {}


class _Item(NamedTuple):
    """A message of the request."""

    number: int  # its place in the request
    topic: str  # as requested
    target: str  # where it goes
    partition: int | None
    message: ProducedMessage
    command: c.Produce | None  # a message with an idempotency key or a job id has a command of its own


class _Submission:
    """The commands of one request, and the results of its messages. The answer comes with the last reply."""

    def __init__(self, engine: Engine, messages: int) -> None:
        self.results = [_NO_RESULT] * messages
        self.answer = Deferred()
        self._engine = engine
        self._left = 1  # replies that are still to come, and the parts

    def run(self, parts: Iterator[None], route: str) -> None:
        """Submit the parts: now as many as fit into a slice, the others in later turns of the loop."""
        try:
            if next_slice(parts) is None:
                self._ended()
                return
        except Exception as error:
            self.answer.fail(error)
            return
        asyncio.get_running_loop().call_soon(self._engine.monitor.timed(route, self.run), parts, route)

    def submit(self, commands: list[tuple[c.Produce, list[_Item]]]) -> None:
        self._left += len(commands)
        for command, members in commands:
            self._engine.submit_to(command, partial(self._on_reply, members))

    def _on_reply(self, members: list[_Item], reply: Reply) -> None:
        for position, item in enumerate(members):
            self.results[item.number] = _result(item.topic, reply, position)
        self._ended()

    def _ended(self) -> None:
        self._left -= 1
        if not self._left:
            self.answer.resolve(_batch_reply(self.results))


class ProduceBatchHandlers:
    """Handlers of `/v1/produce/batch` and `/v1/produce/packed`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        bounds = context.settings.limits
        self._reader = PackedReader(bounds.message_bytes, bounds.batch_bytes)

    def produce(self, request: Request) -> Answer:
        """One result for each message, in order. An invalid message does not stop the others."""
        content_type = media_type(request.headers.get("content-type", ""))
        if content_type == PACKED_TYPE:
            return self.produce_packed(request)
        is_lines = content_type == "application/x-ndjson"
        if len(request.body) > DECODED_AT_ONCE_BYTES:
            return self._decode(request, *(_ndjson(request) if is_lines else _json_one_by_one(request)))
        if not is_lines:
            return self._received(request, *_json(request))
        items, wants_any = _ndjson(request)
        return self._received(request, list(items), wants_any)

    async def _decode(self, request: Request, items: Iterator[tuple[str, ProduceItem]], wants_any: bool) -> HttpReply:
        """A large body, in slices."""
        requested: list[tuple[str, ProduceItem]] = []
        while (taken := next_slice(items)) is not None:
            requested += taken
            await asyncio.sleep(0)
        return await reply_of(self._received(request, requested, wants_any))

    def _received(self, request: Request, requested: list[tuple[str, ProduceItem]], wants_any: bool) -> Answer:
        if not 1 <= len(requested) <= MESSAGES_MAX:
            raise BadRequest(f"a batch holds 1 to {MESSAGES_MAX} messages")
        if self._context.tenant:
            requested = [(topic, owned(item, self._context.tenant)) for topic, item in requested]
        headers = request.head.fields
        if TRACE_HEADER in headers:
            requested = [(topic, traced(item, headers)) for topic, item in requested]
        tracer = self._context.tracer
        if tracer is None:
            return self._accept(request, requested, wants_any)
        items = [item for _, item in requested]
        return tracer.received(
            request, requested[0][0], items, lambda trace: self._accept(request, requested, wants_any, trace)
        )

    def _accept(
        self,
        request: Request,
        requested: list[tuple[str, ProduceItem]],
        wants_any: bool,
        trace: ReceivedTrace | None = None,
    ) -> Answer:
        router = self._context.router
        if router is None:
            return self._produce(request, [(topic, item, None) for topic, item in requested], wants_any)

        def finish(routes: list[RoutedItem]) -> Answer:
            routed = [(topic, *route) for (topic, _), route in zip(requested, routes)]
            return self._produce(request, routed, wants_any)

        return router.then(requested, finish if trace is None else trace.after_route(finish))

    def _produce(self, request: Request, requested: list[_Requested], wants_any: bool) -> Answer:
        submission = _Submission(self._context.engine, len(requested))
        sticky: dict[str, int] = {}

        def parts() -> Iterator[None]:
            for first in range(0, len(requested), AT_ONCE):
                part = requested[first : first + AT_ONCE]
                items = self._items(request, part, first, submission.results, wants_any, sticky)
                submission.submit(self._commands(items))
                yield None

        submission.run(parts(), request.head.route)
        return submission.answer

    def _items(
        self,
        request: Request,
        requested: list[_Requested],
        first: int,
        results: list[_Result],
        wants_any: bool,
        sticky: dict[str, int],
    ) -> list[_Item]:
        """The messages that can be submitted; `first` is the number of the first one. The others get their result
        here."""
        now_ms = self._context.engine.now_ms()
        strict = self._context.settings.idempotency.strict
        items: list[_Item] = []
        for index, (topic, item, routing) in enumerate(requested, first):
            try:
                if not topic:
                    raise BadRequest("topic and value are required")
                require_topic(request, PRODUCE, topic)
                require_target(request, item)
                message = prepare(item, topic, now_ms, strict_keys=strict, routing=routing)
            except BadRequest as error:
                code = error.code if isinstance(error, AccessRefused) else Code.INVALID_ARGUMENT
                results[index] = _error_result(Rejected(code, error.message))
                continue
            partition = None
            if wants_any or item.partition is not None:
                partition = self._context.any_partition(topic, item, sticky)
            command = produce_command(topic, item.envelope, message, partition)
            rejected = self._context.charge(item.envelope, 1, command.payload_bytes)
            if rejected is not None:
                results[index] = _error_result(rejected)
                continue
            alone = command if message.once or message.job else None
            items.append(_Item(index, topic, command.topic, command.partition, message, alone))
        return items

    def _commands(self, items: list[_Item]) -> list[tuple[c.Produce, list[_Item]]]:
        """The commands with their messages. The messages of a partition keep the order of the request."""
        commands: list[tuple[c.Produce, list[_Item]]] = []
        open_batches: dict[tuple[str, int | None], list[_Item]] = {}
        for item in items:
            place = (item.target, self._partition(item))
            if item.command is None:
                open_batches.setdefault(place, []).append(item)
                continue
            if place in open_batches:
                members = open_batches.pop(place)
                commands.append((_packed(*place, members), members))
            commands.append((item.command, [item]))
        commands.extend((_packed(*place, members), members) for place, members in open_batches.items())
        return commands

    def _partition(self, item: _Item) -> int | None:
        topic = self._context.engine.latest_state.topics.get(item.target)
        if item.partition is not None or topic is None:
            return item.partition  # the broker refuses unknown topics and partitions
        return partition_of(item.message.record.key, len(topic.log_ids))

    # --- packed ---

    def produce_packed(self, request: Request) -> Answer:
        """`?topic=…&partition=…` (or `key=…`, or `partition=any`) and a packed batch as the body. The batch names its
        producer, if it has one."""
        topic = request.query.get("topic", "")
        if not topic:
            raise BadRequest("topic is required")
        require_topic(request, PRODUCE, topic)
        place = (topic, request.query.get("partition"), request.query.get("key"))
        return self._reader.read(request.body, place, lambda batch: self._store_packed(request, topic, batch))

    def _store_packed(self, request: Request, topic: str, batch: PackedBatch) -> Answer:
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
            marks=batch.schedules,
        )
        rejected = self._context.charge(None, header.count, header.raw_bytes)
        if rejected is not None:
            return refusal(rejected)

        def respond(reply: Produced) -> Response:
            return json_response(
                PackedReply("produced", topic, reply.partition, reply.first_offset, reply.count, reply.duplicate)
            )

        return self._context.ask(command, respond)

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


def _json(request: Request) -> tuple[list[tuple[str, ProduceItem]], bool]:
    """The messages with their topics, and whether all those without a key may go to any partition. The body is
    `{"topic": …, "messages": […]}`, or an array of messages that each name their topic."""
    wants_any = any_of(request.query.get("partition")) is not None
    if request.body.lstrip()[:1] == b"[":
        return [(item.topic, item) for item in read_json(request.body, list[ProduceRequest])], wants_any
    body = read_json(request.body, ProduceBatchRequest)
    return [(body.topic, item) for item in body.messages], wants_any or body.partition is not None


class _Shape(Struct, frozen=True, forbid_unknown_fields=True):
    """A `ProduceBatchRequest` whose messages are not decoded."""

    topic: str
    messages: list[Raw]
    partition: Literal["any"] | None = None


def _json_one_by_one(request: Request) -> tuple[Iterator[tuple[str, ProduceItem]], bool]:
    """`_json`, decoding each message when it is reached."""
    wants_any = any_of(request.query.get("partition")) is not None
    if request.body.lstrip()[:1] == b"[":
        texts = read_json(request.body, list[Raw])
        items = (_numbered(number, text, ProduceRequest) for number, text in enumerate(texts))
        return ((item.topic, item) for item in items), wants_any
    body = read_json(request.body, _Shape)
    messages = (_numbered(number, text, ProduceItem) for number, text in enumerate(body.messages))
    return ((body.topic, item) for item in messages), wants_any or body.partition is not None


def _numbered(number: int, text: Raw, kind: type[M]) -> M:
    try:
        return read_json(bytes(text), kind)
    except BadRequest as error:
        raise BadRequest(f"message {number}: {error.message}") from None


def _ndjson(request: Request) -> tuple[Iterator[tuple[str, ProduceItem]], bool]:
    wants_any = any_of(request.query.get("partition")) is not None
    default = request.query.get("topic", "")
    items = (read_json(line, ProduceRequest) for line in islice(_lines(request.body), MESSAGES_MAX + 1))
    return ((item.topic or default, item) for item in items), wants_any


def _lines(body: bytes) -> Iterator[bytes]:
    """The lines of NDJSON that are not blank, up to the first one that is not an object. A body may have millions of
    blank lines, so they are passed over by `find` and `isspace`, which are much faster than a pattern."""
    at = 0
    while (start := body.find(b"{", at)) >= 0 and (start == at or body[at:start].isspace()):
        end = body.find(b"\n", start)
        yield body[start:] if end < 0 else body[start:end]
        if end < 0:
            return
        at = end
    if rest := body[at:].lstrip():
        yield rest.partition(b"\n")[0]


def _packed(target: str, partition: int | None, members: list[_Item]) -> c.Produce:
    messages = [member.message for member in members]
    schedules = tuple(
        replace(message.schedule, index=index) for index, message in enumerate(messages) if message.schedule is not None
    )
    return c.Produce(
        topic=target,
        batch=pack([message.record for message in messages], scheduled=bool(schedules)),
        count=len(messages),
        payload_bytes=sum(message.record.size_bytes for message in messages),
        partition=partition,
        marks=schedules,
    )


def _result(topic: str, reply: Reply, position: int) -> _Result:
    """The result of the message at a position of its command."""
    if isinstance(reply, Produced):
        offset = reply.first_offset + position
        return BatchResult(200, topic, reply.topic, reply.partition, offset, reply.duplicate)
    assert isinstance(reply, Rejected)
    return _error_result(reply)


def _error_result(rejected: Rejected) -> dict[str, Any]:
    spec = CODES[rejected.code]
    return error_fields(spec.error, rejected.message, {"status": spec.status, **rejected.details})


def _batch_reply(results: list[_Result]) -> Response:
    """A `BatchReply`."""
    failed = sum(type(result) is dict for result in results)
    return json_response({"produced": len(results) - failed, "failed": failed, "results": results})
