"""Consuming: claim messages under a lease, stream them, and settle them, one by one or many in one call."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import UNSET, json
from msgspec.structs import replace

from driftq.core.model import commands as c
from driftq.core.model.replies import Claimed, Delivery, Rejected, Settlement
from driftq.server.consume_stream import ConsumeStream
from driftq.server.handlers.request_body import read, read_json, start_of
from driftq.server.handlers.responses import json_response, no_content, refusal, refused
from driftq.server.held_messages import give_back, held_runs, set_aside
from driftq.server.http import Answer, BadRequest, Request, Response, Streaming
from driftq.server.message_json import lines
from driftq.storage.corruption import CorruptLog
from driftq.wire.claims import (
    AckRequest,
    ClaimReply,
    ClaimRequest,
    ConsumeRequest,
    NackRequest,
    RefusedItem,
    SettleReply,
    SettleRequest,
)
from driftq.wire.errors import CODES, Code
from driftq.wire.fields import to_rfc3339

if TYPE_CHECKING:
    from driftq.server.handlers.context import Context

logger = logging.getLogger("driftq.claims")

_PARTITION_OFFSET = frozenset({"partition", "offset"})


class ClaimsHandlers:
    """Handlers of `/v1/claim`, `/v1/consume` and the calls that settle messages."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._engine = context.engine

    # --- claim ---

    async def claim(self, request: Request) -> Response:
        body = read(request, ClaimRequest, frozenset({"max", "wait_ms", "lease_ms"}))
        command = c.Claim(
            body.topic, body.group, body.owner, body.max, body.lease_ms, start_of(body.start), body.task, body.label
        )
        reply = await self._engine.claim(command, body.wait_ms)
        if isinstance(reply, Rejected):
            return refusal(reply)
        if request.gone:  # the client has disconnected
            give_back(self._engine, command, reply.deliveries, reply.token)
            return json_response(ClaimReply([], "", ""))
        messages: list[bytes] = []
        damage: CorruptLog | None = None
        for delivery in reply.deliveries:
            damage = self._read(command, delivery, reply, messages) or damage
        if damage is not None and not messages:
            return refused(Code.DATA_CORRUPT, f"{damage}; run `driftq inspect verify` on the data folder")
        return Response(200, _claim_reply(reply, messages))

    def _read(self, claim: c.Claim, delivery: Delivery, reply: Claimed, messages: list[bytes]) -> CorruptLog | None:
        """Append a delivery's messages. Damaged records are skipped and set aside."""
        damage: CorruptLog | None = None
        first = delivery.first
        while first < delivery.end:
            before = len(messages)
            try:
                messages.extend(lines(self._engine, replace(delivery, first=first), reply.token, reply.until_ms))
                break
            except CorruptLog as error:
                logger.error("not delivered: %s", error)
                damage = error
                damaged_at = first + len(messages) - before
                first = min(delivery.end, max(damaged_at + 1, error.end_offset))
                set_aside(self._engine, claim, c.Held(delivery.partition, damaged_at, first, reply.token))
        return damage

    # --- consume ---

    def consume(self, request: Request) -> Answer:
        body = read(request, ConsumeRequest, frozenset({"lease_ms", "prefetch"}))
        if not (body.topic and body.group and body.owner):
            raise BadRequest("topic, group, and owner are required")
        lease_ms = body.lease_ms if body.lease_ms is not None else self._lease_ms(body.topic)
        claim = c.Claim(body.topic, body.group, body.owner, 1, lease_ms, start_of(body.start), body.task, body.label)
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
        return self._context.ask(c.Ack(body.topic, body.group, body.owner, (_held(body),)), _settled)

    def nack(self, request: Request) -> Answer:
        body = read(request, NackRequest, _PARTITION_OFFSET | {"delay_ms"}, {"error": "reason"})
        command = c.Nack(body.topic, body.group, body.owner, (_held(body),), body.reason, body.delay_ms)
        return self._context.ask(command, _settled)

    def ack_through(self, request: Request) -> Answer:
        """Ack everything up to and including an offset, if the caller holds all of it."""
        body = read(request, AckRequest, _PARTITION_OFFSET)
        if body.partition is UNSET or body.offset is UNSET:
            raise BadRequest("partition and offset are required")
        command = c.AckThrough(body.topic, body.group, body.owner, body.partition, body.offset, body.token)
        return self._context.ask(command, _settled)

    # --- settle many messages ---

    def ack_batch(self, request: Request) -> Answer:
        return self._settle(request, lambda body, held: c.Ack(body.topic, body.group, body.owner, held))

    def nack_batch(self, request: Request) -> Answer:
        return self._settle(
            request, lambda body, held: c.Nack(body.topic, body.group, body.owner, held, body.reason, body.delay_ms)
        )

    def release(self, request: Request) -> Answer:
        return self._settle(
            request,
            lambda body, held: c.ReleaseMessages(body.topic, body.group, body.owner, held, True, body.delay_ms or 0),
        )

    def reject(self, request: Request) -> Answer:
        return self._settle(
            request, lambda body, held: c.RejectMessages(body.topic, body.group, body.owner, held, body.reason)
        )

    def extend(self, request: Request) -> Answer:
        return self._settle(
            request, lambda body, held: c.Extend(body.topic, body.group, body.owner, held, body.lease_ms)
        )

    def _settle(self, request: Request, command: Callable[[SettleRequest, tuple[c.Held, ...]], c.Command]) -> Answer:
        body = read_json(request.body, SettleRequest)
        return self._context.ask(command(body, held_runs(body.messages)), _settle_reply)


def _held(body: AckRequest) -> c.Held:
    partition, offset = body.partition, body.offset
    if partition is UNSET or offset is UNSET:
        raise BadRequest("partition and offset are required")
    if not (body.topic and body.group and (body.owner or body.token)):
        raise BadRequest("topic, group, and owner are required")
    return c.Held(partition, offset, offset + 1, body.token)


def _claim_reply(reply: Claimed, messages: list[bytes]) -> bytes:
    """A `ClaimReply`, around messages that are JSON already."""
    until = json.encode(to_rfc3339(reply.until_ms) if reply.deliveries else "")
    tail = b'],"token":%b,"lease_until":%b}\n' % (json.encode(reply.token), until)
    return b'{"messages":[' + b",".join(messages) + tail


def _settled(settlement: Settlement) -> Response:
    """For one message: if it was refused, so is the call."""
    if settlement.refused:
        first = settlement.refused[0]
        return refused(first.code, first.message)
    return no_content()


def _settle_reply(settlement: Settlement) -> Response:
    items = [
        RefusedItem(item.partition, item.offset, CODES[item.code].error, item.message) for item in settlement.refused
    ]
    return json_response(SettleReply(items, to_rfc3339(settlement.until_ms) if settlement.until_ms else ""))
