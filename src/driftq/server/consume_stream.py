"""Streams that stay open: NDJSON of claimed messages, with credit from the socket and from the connection's window.

Nothing is claimed for a socket that is full, nor for a connection that holds as much as it may: see
`engine.consumer_window`, which also says whose leases are kept. What was claimed and not written goes back at once and
counts no attempt. An idle stream carries bare newlines.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import msgspec

from driftq.core.model import commands as c
from driftq.core.model.replies import Claimed, Rejected
from driftq.engine.consumer_window import ConsumerWindow
from driftq.engine.engine import Engine, EngineStopped
from driftq.engine.waiters import claim_or_wait
from driftq.server.held_messages import give_back, set_aside
from driftq.server.message_json import lines
from driftq.storage.corruption import CorruptLog

if TYPE_CHECKING:
    from driftq.server.http import ResponseStream

logger = logging.getLogger("driftq.consume")

NDJSON = "application/x-ndjson; charset=utf-8"
CLAIM_MIN, CLAIM_MAX = 64, 1_024  # a claim grows while the socket takes everything at once
TOP_UP_S = 0.02  # how long a connection that is nearly full waits for more room, so that claims are not of one message


class ConsumeStream:
    """One open `/v1/consume`."""

    def __init__(
        self, engine: Engine, claim: c.Claim, heartbeat_ms: int, in_flight_max: int, prefetch: int | None
    ) -> None:
        assert claim.lease_ms is not None
        self._engine = engine
        self._claim = claim
        self._lease_ms = claim.lease_ms
        self._heartbeat_ms = heartbeat_ms
        self._window = ConsumerWindow(claim.lease_ms, in_flight_max, prefetch, self._moved)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None  # for leases that end before the next settlement
        self._moving = False
        self._most = CLAIM_MIN
        self._wanted = 0  # the room that `_has_room` waits for
        self._has_room: asyncio.Future[None] | None = None
        self._asking: asyncio.Task[Claimed | Rejected | None] | None = None

    async def run(self, stream: ResponseStream) -> None:
        await stream.start(200, content_type=NDJSON)
        stream.on_over(self._stop_asking)
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
        finally:
            self._engine.watch.windows.close(self._window)
            if self._timer is not None:
                self._timer.cancel()

    def _stop_asking(self) -> None:
        if self._asking is not None:
            self._asking.cancel()

    async def _next(self, stream: ResponseStream) -> Claimed | Rejected | None:
        """The next claim that brings something; a heartbeat goes out while there is none. None: look again."""
        self._asking = self._loop.create_task(self._ask())
        try:
            reply = await self._asking
        except asyncio.CancelledError:
            if not stream.over:
                raise
            return None
        finally:
            self._asking = None
        if isinstance(reply, Claimed) and reply.deliveries:
            self._take(reply)
            return reply
        if isinstance(reply, Rejected):
            return reply
        stream.write(b"\n")
        await stream.drain()
        return None

    async def _ask(self) -> Claimed | Rejected | None:
        """Wait for room, then claim. None if there was no room for as long as a heartbeat."""
        quarter = max(1, self._window.size(self._engine.now_ms()) // 4)
        room = self._window.room(self._engine.now_ms())
        if not room and not await self._wait_for_room(1, self._heartbeat_ms / 1_000):
            return None
        if room < quarter:
            await self._wait_for_room(quarter, TOP_UP_S)
        return await claim_or_wait(self._engine, self._claim, self._heartbeat_ms, self._claim_size)

    def _claim_size(self) -> int:
        return min(self._most, self._window.room(self._engine.now_ms()))

    async def _wait_for_room(self, wanted: int, timeout_s: float) -> bool:
        if self._window.room(self._engine.now_ms()) >= wanted:
            return True
        self._wanted = wanted
        self._has_room = self._loop.create_future()
        try:
            async with asyncio.timeout(timeout_s):
                await self._has_room
        except TimeoutError:
            return False
        finally:
            self._has_room = None
        return True

    # --- the window ---

    def _take(self, claimed: Claimed) -> None:
        group = self._engine.latest_state.groups.get(claimed.group_id)
        if group is None:
            return
        taken = sum(each.end - each.first for each in claimed.deliveries)
        if taken == self._most:
            self._most = min(CLAIM_MAX, 2 * taken)
        at_ms = min(claimed.until_ms - self._lease_ms, self._engine.now_ms())  # the clock may have been set since
        until_ms = min(claimed.until_ms, at_ms + self._lease_ms)
        for each in claimed.deliveries:
            held = c.Held(each.partition, each.first, each.end, claimed.token)
            end_ms = min(until_ms, each.until_ms or until_ms)
            self._engine.watch.windows.deliver(self._window, group.progress[each.partition], held, end_ms, at_ms)
        self._arm()

    def _moved(self) -> None:
        """Messages of the window ended. All that one commit ends is looked at once."""
        if not self._moving:
            self._moving = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        self._moving = False
        waiting = self._has_room
        if waiting is not None and not waiting.done() and self._window.room(self._engine.now_ms()) >= self._wanted:
            waiting.set_result(None)
        self._keep()

    def _keep(self) -> None:
        """Extend the leases that are due, unless the engine has ended."""
        if self._engine.stopped.done():
            return
        for until_ms, held in self._window.extensions(self._engine.now_ms()):
            command = c.Keep(self._claim.topic, self._claim.group, tuple(held), until_ms)
            self._engine.submit_to(command, lambda _: None)
        self._arm()

    def _arm(self) -> None:
        if self._timer is None:
            next_ms = self._window.next_ms()
            if next_ms is not None:
                delay_s = max(0, next_ms - self._engine.now_ms()) / 1_000
                self._timer = self._loop.call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._keep()

    # --- the socket ---

    async def _send(self, stream: ResponseStream, claimed: Claimed) -> None:
        for index, delivery in enumerate(claimed.deliveries):
            sent = delivery.first
            try:
                for line in lines(self._engine, delivery, claimed.token, claimed.until_ms):
                    if not stream.writable:
                        self._most = CLAIM_MIN
                    if stream.over or not (stream.writable or await stream.drain()):
                        break
                    stream.write(line + b"\n")
                    sent += 1
            except CorruptLog as error:
                logger.error("not delivered: %s", error)
                set_aside(self._engine, self._claim, c.Held(delivery.partition, sent, sent + 1, claimed.token))
                sent += 1
            if sent < delivery.end:
                unsent = (msgspec.structs.replace(delivery, first=sent), *claimed.deliveries[index + 1 :])
                give_back(self._engine, self._claim, unsent, claimed.token)
                return
        await stream.drain()
