"""Consuming: claim messages under a lease, stream them, and settle them, one by one or many in one call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from msgspec import UNSET, json

from driftq.core.model import commands as c
from driftq.core.model.replies import Claimed, Rejected, Settlement
from driftq.engine.settle_slices import (
    RESULTS_BYTES_MAX,
    RUN_MESSAGES_MAX,
    RUNS_MAX,
    SettleCommand,
    is_one_slice,
    settle_in_slices,
)
from driftq.server.access.identity import require_group
from driftq.server.consume_stream import ConsumeStream
from driftq.server.deliveries import (
    ClaimReader,
    PackedClaim,
    give_back,
    held_runs,
    json_bytes,
    refused_items,
)
from driftq.server.handlers.claim_reply import claim_reply, corrupt, packed_claim_reply
from driftq.server.handlers.codec import json_response, no_content, read, read_json, refusal, refused, start_of
from driftq.server.handlers.context import responder
from driftq.server.http import Answer, BadRequest, Deferred, Reply, Request, Response, Streaming
from driftq.wire.claims import (
    AckRequest,
    ClaimReply,
    ClaimRequest,
    ConsumeRequest,
    DeadItem,
    NackRequest,
    SettleRequest,
)
from driftq.wire.errors import Code
from driftq.wire.fields import to_rfc3339
from driftq.wire.packed_claim import CLAIM_TYPE

if TYPE_CHECKING:
    from driftq.server.handlers.context import Context

_PARTITION_OFFSET = frozenset({"partition", "offset"})
_CLAIM_NUMBERS = frozenset({"max", "wait_ms", "lease_ms"})
_CLAIM_TYPE = CLAIM_TYPE.encode()


class _ClaimAnswer(NamedTuple):
    """The reply to a claim while it is made: run all slices, then respond."""

    slices: Iterator[None]
    respond: Callable[[], Reply]


async def _finished(claimed: _ClaimAnswer) -> Reply:
    for _ in claimed.slices:
        await asyncio.sleep(0)
    return claimed.respond()


class ClaimsHandlers:
    """Handlers of `/v1/claim`, `/v1/consume` and the calls that settle messages."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._engine = context.engine
        self._unfinished: set[asyncio.Task[None]] = set()  # large replies that are being made

    # --- claim ---

    def claim(self, request: Request) -> Answer:
        """A claim that may wait is a task; any other one is answered by the commit that makes it durable."""
        body = read(request, ClaimRequest, _CLAIM_NUMBERS)
        require_group(request, body.topic, body.group)
        start = body.start if body.start == "earliest" else start_of(body.start)
        acks = held_runs(body.acks) if body.acks else ()
        if acks and not is_one_slice(c.Ack(body.topic, body.group, body.owner, acks)):
            raise BadRequest(
                f"the acks of a claim name up to {RUN_MESSAGES_MAX} messages in up to {RUNS_MAX} runs, with results of "
                f"up to {RESULTS_BYTES_MAX} bytes"
            )
        command = c.Claim(
            body.topic, body.group, body.owner, body.max, body.lease_ms, start, body.task, body.label, acks,
            self._context.settings.limits.reply_bytes,
        )  # fmt: skip
        if body.wait_ms and not acks:
            return self._claim_or_wait(request, command, body.wait_ms)
        answer = Deferred()

        def on_claimed(reply: Claimed | Rejected) -> Reply | None:
            claimed = self._read(request, command, reply)
            for _ in claimed.slices:  # a large reply: the rest of it is made in other turns of the loop
                self._finish_later(claimed, answer)
                return None
            return claimed.respond()

        self._engine.claim_to(command, responder(answer, on_claimed))
        return answer

    async def _claim_or_wait(self, request: Request, command: c.Claim, wait_ms: int) -> Reply:
        return await _finished(self._read(request, command, await self._engine.claim(command, wait_ms)))

    def _read(self, request: Request, command: c.Claim, reply: Claimed | Rejected) -> _ClaimAnswer:
        if isinstance(reply, Rejected):
            return _ClaimAnswer(iter(()), partial(refusal, reply))
        if request.gone:  # the client has disconnected
            give_back(self._engine, command, reply.deliveries, reply.token)
            return _ClaimAnswer(iter(()), lambda: json_response(ClaimReply([], "", "")))
        accepted = request.head.fields.get(b"accept")
        is_packed = accepted is not None and _CLAIM_TYPE in accepted
        bytes_max = self._context.settings.limits.reply_bytes
        if not is_packed:
            return _ClaimAnswer(iter(()), partial(claim_reply, self._engine, command, reply, bytes_max))
        body = PackedClaim(reply, bytes_max)
        reader = ClaimReader(self._engine, command, reply, body)

        def respond() -> Reply:
            if reader.damage is not None and not len(body) and not command.acks:
                return corrupt(reader.damage)
            return packed_claim_reply(self._engine, command, reply, body)

        return _ClaimAnswer(reader.slices(), respond)

    def _finish_later(self, claimed: _ClaimAnswer, answer: Deferred) -> None:
        async def finish() -> None:
            await asyncio.sleep(0)
            try:
                answer.resolve(await _finished(claimed))
            except Exception as error:
                answer.fail(error)

        task = asyncio.ensure_future(self._engine.monitor.steps("POST /v1/claim", finish()))
        self._unfinished.add(task)
        task.add_done_callback(self._unfinished.discard)

    # --- consume ---

    def consume(self, request: Request) -> Answer:
        body = read(request, ConsumeRequest, frozenset({"lease_ms", "prefetch"}))
        if not (body.topic and body.group and body.owner):
            raise BadRequest("topic, group, and owner are required")
        require_group(request, body.topic, body.group)
        lease_ms = body.lease_ms if body.lease_ms is not None else self._lease_ms(body.topic)
        claim = c.Claim(
            body.topic, body.group, body.owner, 1, lease_ms, start_of(body.start), body.task, body.label,
            max_bytes=self._context.settings.limits.reply_bytes,
        )  # fmt: skip
        return self._open_stream(claim, body.prefetch)

    def _lease_ms(self, topic: str) -> int:
        known = self._engine.latest_state.topics.get(topic)
        return (known.config.lease_ms if known is not None else 0) or self._context.settings.queue.lease_ms

    def _in_flight_max(self, topic: str) -> int:
        known = self._engine.latest_state.topics.get(topic)
        return (known.config.in_flight_max if known is not None else 0) or self._context.settings.queue.in_flight_max

    async def _open_stream(self, claim: c.Claim, prefetch: int | None) -> Response | Streaming:
        """The group is created first, so that an invalid request gets an error instead of an empty stream. A request
        that is refused creates nothing."""
        limits = self._engine.queries.limits
        low, high = limits.lease_ms_min, limits.lease_ms_max
        if claim.lease_ms is not None and not low <= claim.lease_ms <= high:
            return refused(Code.INVALID_ARGUMENT, f"invalid lease_ms: it must be {low} to {high}")
        reply = await self._engine.submit(c.CreateGroup(claim.topic, claim.group, claim.start))
        if isinstance(reply, Rejected):
            return refusal(reply)
        heartbeat_ms = self._context.settings.queue.heartbeat_ms
        in_flight_max = self._in_flight_max(claim.topic)
        consumer = ConsumeStream(self._engine, claim, heartbeat_ms, in_flight_max, prefetch)
        return Streaming(consumer.run, cancel_when_gone=False)

    # --- settle one message ---

    def ack(self, request: Request) -> Answer:
        body = read(request, AckRequest, _PARTITION_OFFSET)
        require_group(request, body.topic, body.group)
        held = (_held(body, json_bytes(body.result)),)
        return self._context.ask(c.Ack(body.topic, body.group, body.owner, held), _settled)

    def nack(self, request: Request) -> Answer:
        body = read(request, NackRequest, _PARTITION_OFFSET | {"delay_ms"}, {"error": "reason"})
        require_group(request, body.topic, body.group)
        command = c.Nack(body.topic, body.group, body.owner, (_held(body),), body.reason, body.delay_ms, body.traceback)
        return self._context.ask(command, _settled)

    def ack_through(self, request: Request) -> Answer:
        """Ack everything up to and including an offset, if the caller holds all of it."""
        body = read(request, AckRequest, _PARTITION_OFFSET)
        require_group(request, body.topic, body.group)
        if body.partition is UNSET or body.offset is UNSET:
            raise BadRequest("partition and offset are required")
        command = c.AckThrough(body.topic, body.group, body.owner, body.partition, body.offset, body.token)
        return self._context.ask(command, _settled)

    # --- settle many messages ---

    def ack_batch(self, request: Request) -> Answer:
        return self._settle(request, lambda body, held: c.Ack(body.topic, body.group, body.owner, held))

    def nack_batch(self, request: Request) -> Answer:
        return self._settle(
            request,
            lambda body, held: c.Nack(
                body.topic, body.group, body.owner, held, body.reason, body.delay_ms, body.traceback
            ),
        )

    def release(self, request: Request) -> Answer:
        return self._settle(
            request,
            lambda body, held: c.ReleaseMessages(body.topic, body.group, body.owner, held, True, body.delay_ms or 0),
        )

    def reject(self, request: Request) -> Answer:
        return self._settle(
            request,
            lambda body, held: c.RejectMessages(body.topic, body.group, body.owner, held, body.reason, body.traceback),
        )

    def extend(self, request: Request) -> Answer:
        return self._settle(
            request, lambda body, held: c.Extend(body.topic, body.group, body.owner, held, body.lease_ms)
        )

    def _settle(
        self, request: Request, command: Callable[[SettleRequest, tuple[c.Held, ...]], SettleCommand]
    ) -> Answer:
        """A nack or reject may have to leave something to a next command at any size, because of large dead letters."""
        body = read_json(request.body, SettleRequest)
        require_group(request, body.topic, body.group)
        settle = command(body, held_runs(body.messages))
        if is_one_slice(settle) and not isinstance(settle, c.Nack | c.RejectMessages):
            return self._context.ask(settle, _settle_reply)
        return self._settle_in_slices(settle)

    async def _settle_in_slices(self, command: SettleCommand) -> Response:
        items: list[bytes] = []
        until_ms: int | None = None
        dead: list[DeadItem] = []
        async for reply in settle_in_slices(self._engine, command):
            if isinstance(reply, Rejected):
                return refusal(reply)
            items.extend(map(json.encode, refused_items(reply.refused)))
            if reply.until_ms:
                until_ms = min(reply.until_ms, until_ms or reply.until_ms)
            dead.extend(DeadItem(partition, offset) for partition, offset in reply.dead)
        return _settle_response(items, until_ms or 0, dead)


def _held(body: AckRequest, result: bytes = b"") -> c.Held:
    partition, offset = body.partition, body.offset
    if partition is UNSET or offset is UNSET:
        raise BadRequest("partition and offset are required")
    if not (body.topic and body.group and (body.owner or body.token)):
        raise BadRequest("topic, group, and owner are required")
    return c.Held(partition, offset, offset + 1, body.token, result)


def _settled(settlement: Settlement) -> Response:
    """For one message: if it was refused, so is the call."""
    if settlement.refused:
        first = settlement.refused[0]
        return refused(first.code, first.message)
    return no_content()


def _settle_reply(settlement: Settlement) -> Response:
    return _settle_response(list(map(json.encode, refused_items(settlement.refused))), settlement.until_ms)


def _settle_response(items: list[bytes], until_ms: int, dead: list[DeadItem] | None = None) -> Response:
    """A `SettleReply`, around refusals that are JSON already: there may be a hundred thousand of them."""
    more = b',"lease_until":%b' % json.encode(to_rfc3339(until_ms)) if until_ms else b""
    if dead:
        more += b',"dead":' + json.encode(dead)
    return Response(200, b'{"refused":[%b]%b}\n' % (b",".join(items), more))
