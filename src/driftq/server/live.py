"""Streams that stay open: NDJSON of claimed messages, with credit from the socket.

Nothing is claimed for a socket that is full: the next claim comes when the last one was taken. What was claimed and not
written goes back at once and counts no attempt. An idle stream carries bare newlines.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec

from driftq.core import commands as c
from driftq.core.replies import Claimed, Delivery, Rejected
from driftq.engine.engine import Engine, EngineStopped
from driftq.server.http import Stream
from driftq.server.lines import lines
from driftq.storage.damage import CorruptLog

logger = logging.getLogger("driftq.consume")

NDJSON = "application/x-ndjson; charset=utf-8"
CLAIM_MIN, CLAIM_MAX = 64, 1_024  # small while others wait, large for a consumer that reads alone


def cancel(task: asyncio.Future[Any]) -> None:
    task.cancel()


class Consumer:
    """One open `/v1/consume`."""

    def __init__(self, engine: Engine, claim: c.Claim, heartbeat_ms: int) -> None:
        self._engine = engine
        self._claim = msgspec.structs.replace(claim, max_messages=CLAIM_MIN)
        self._heartbeat_ms = heartbeat_ms

    async def run(self, stream: Stream) -> None:
        await stream.start(200, content_type=NDJSON)
        try:
            while not stream.over:
                reply = await self._next(stream)
                if isinstance(reply, Rejected):
                    logger.info("consume of %s by %s ends: %s", self._claim.topic, self._claim.group, reply.message)
                    return  # the topic or the group is gone
                if reply is not None:
                    await self._send(stream, reply)
        except EngineStopped:
            return

    async def _next(self, stream: Stream) -> Claimed | Rejected | None:
        """The next claim that brings something; a heartbeat goes out while there is none. None: the stream is over."""
        waiting = asyncio.ensure_future(self._engine.claim(self._claim, self._heartbeat_ms))
        stream.on_over(lambda: cancel(waiting))
        try:
            reply = await waiting
        except asyncio.CancelledError:
            if not stream.over:
                raise
            return None
        if isinstance(reply, Claimed) and not reply.deliveries:
            stream.write(b"\n")
            await stream.drain()
            return None
        if isinstance(reply, Claimed):
            self._choose_size(reply)
        return reply

    def _choose_size(self, claimed: Claimed) -> None:
        """A claim waits for the disk once, however large it is; but what one consumer holds the others do not get."""
        taken = sum(delivery.end - delivery.first for delivery in claimed.deliveries)
        alone = not self._engine.watch.standing(claimed.group_id)
        size = CLAIM_MIN
        if alone and taken == self._claim.max_messages:
            size = min(CLAIM_MAX, 2 * taken)
        if size != self._claim.max_messages:
            self._claim = msgspec.structs.replace(self._claim, max_messages=size)

    async def _send(self, stream: Stream, claimed: Claimed) -> None:
        for index, delivery in enumerate(claimed.deliveries):
            sent = delivery.first
            try:
                for line in lines(self._engine, delivery, claimed.token, claimed.until_ms):
                    if stream.over or not (stream.writable or await stream.drain()):
                        break
                    stream.write(line + b"\n")
                    sent += 1
            except CorruptLog as error:
                logger.error("not delivered: %s", error)
                self._set_aside(delivery, sent, claimed.token)
                sent += 1
            if sent < delivery.end:
                unsent = (msgspec.structs.replace(delivery, first=sent), *claimed.deliveries[index + 1 :])
                self._give_back(unsent, claimed.token)
                return
        await stream.drain()

    def _set_aside(self, delivery: Delivery, offset: int, token: str) -> None:
        """A message that cannot be read rests like one that failed; it must not be claimed again and again at once."""
        held = (c.Held(delivery.partition, offset, offset + 1, token),)
        claim = self._claim
        self._engine.submit_to(
            c.Nack(claim.topic, claim.group, claim.owner, held, "the record cannot be read"), lambda _: None
        )

    def _give_back(self, deliveries: tuple[Delivery, ...], token: str) -> None:
        held = tuple(c.Held(each.partition, each.first, each.end, token) for each in deliveries)
        claim = self._claim
        self._engine.submit_to(c.Release(claim.topic, claim.group, claim.owner, held, sent=False), lambda _: None)
