"""Pulling work: claim with a lease, and settle many messages in one call, each judged for itself."""

from __future__ import annotations

import logging
from collections.abc import Callable

from msgspec import json
from msgspec.structs import replace

from driftq.core.model import commands as c
from driftq.core.model.replies import Claimed, Delivery, Rejected, Settlement
from driftq.server.handlers.base import QUEUE_PROBLEMS, Context, json_response, read, read_json, refusal
from driftq.server.handlers.queue import settled, start_of
from driftq.server.http import Answer, BadRequest, Request, Response
from driftq.server.message_json import lines
from driftq.storage.corruption import CorruptLog
from driftq.wire.errors import Code
from driftq.wire.message import to_rfc3339
from driftq.wire.queue import AckRequest, ClaimRequest, HeldItem, RefusedItem, SettleReply, SettleRequest

logger = logging.getLogger("driftq.claims")

SETTLE_MAX = 10_000


class ClaimsHandlers:
    """Handlers of claims and of what ends them."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def claim(self, request: Request) -> Response:
        body = read(request, ClaimRequest, frozenset({"max", "wait_ms", "lease_ms"}))
        command = c.Claim(
            body.topic, body.group, body.owner, body.max, body.lease_ms, start_of(body.start), body.task, body.label
        )
        engine = self._context.engine
        reply = await engine.claim(command, body.wait_ms)
        if isinstance(reply, Rejected):
            return refusal(reply)
        if request.gone:
            self._give_back(command, reply)
            return json_response({"messages": []})
        items: list[bytes] = []
        damage: CorruptLog | None = None
        for delivery in reply.deliveries:
            damage = self._read(command, delivery, reply, items) or damage
        if damage is not None and not items:
            return refusal(Rejected(Code.DATA_CORRUPT, f"{damage}; run `driftq inspect verify` on the data folder"))
        return Response(200, _claimed(reply, items))

    def _read(self, command: c.Claim, delivery: Delivery, reply: Claimed, items: list[bytes]) -> CorruptLog | None:
        """Add a delivery's messages. What is damaged rests like what failed: it must not be claimed again at once."""
        damage: CorruptLog | None = None
        first = delivery.first
        while first < delivery.end:
            before = len(items)
            try:
                items.extend(lines(self._context.engine, replace(delivery, first=first), reply.token, reply.until_ms))
                break
            except CorruptLog as error:
                logger.error("not delivered: %s", error)
                damage = error
                at = first + len(items) - before
                first = min(delivery.end, max(at + 1, error.end_offset))
                held = (c.Held(delivery.partition, at, first, reply.token),)
                aside = c.Nack(command.topic, command.group, command.owner, held, "the record cannot be read")
                self._context.engine.submit_to(aside, lambda _: None)
        return damage

    def _give_back(self, command: c.Claim, reply: Claimed) -> None:
        """Nobody is there any more to take it."""
        held = tuple(c.Held(each.partition, each.first, each.end, reply.token) for each in reply.deliveries)
        if held:
            release = c.ReleaseMessages(command.topic, command.group, command.owner, held, sent=False)
            self._context.engine.submit_to(release, lambda _: None)

    # --- many at once ---

    def ack(self, request: Request) -> Answer:
        return self._settle(request, lambda body, held: c.Ack(body.topic, body.group, body.owner, held))

    def nack(self, request: Request) -> Answer:
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
        return self._context.ask(command(body, held_runs(body.messages)), _settlement)

    def ack_through(self, request: Request) -> Answer:
        """Everything up to and with an offset, if all of it is the caller's."""
        body = read(request, AckRequest, frozenset({"partition", "offset"}))
        if not isinstance(body.partition, int) or not isinstance(body.offset, int):
            raise BadRequest("partition and offset are required")
        command = c.AckThrough(body.topic, body.group, body.owner, body.partition, body.offset, body.token)
        return self._context.ask(command, settled)


def _claimed(reply: Claimed, items: list[bytes]) -> bytes:
    until = json.encode(_until(reply.until_ms) if reply.deliveries else "")
    tail = b'],"token":%b,"lease_until":%b}\n' % (json.encode(reply.token), until)
    return b'{"messages":[' + b",".join(items) + tail


def held_runs(items: list[HeldItem]) -> tuple[c.Held, ...]:
    """Neighbours under one token become one run: a claim that is acked as a whole costs as much as one message."""
    if not 1 <= len(items) <= SETTLE_MAX:
        raise BadRequest(f"messages must name 1 to {SETTLE_MAX} messages")
    runs: list[c.Held] = []
    for item in items:
        end = item.end if item.end is not None else item.offset + 1
        if end <= item.offset:
            raise BadRequest("end must lie behind offset")
        last = runs[-1] if runs else None
        if last is not None and (last.partition, last.end, last.token) == (item.partition, item.offset, item.token):
            runs[-1] = c.Held(item.partition, last.first, end, item.token)
        else:
            runs.append(c.Held(item.partition, item.offset, end, item.token))
    return tuple(runs)


def _settlement(reply: Settlement) -> Response:
    refused = [
        RefusedItem(each.partition, each.offset, QUEUE_PROBLEMS[each.code].error, each.message)
        for each in reply.refused
    ]
    return json_response(SettleReply(refused, _until(reply.until_ms) if reply.until_ms else ""))


def _until(until_ms: int) -> str:
    return to_rfc3339(until_ms)
