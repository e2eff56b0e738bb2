"""One open `/v1/consume`: claims messages and writes them as NDJSON, limited by the socket and the consumer window.

Theory of operation. `run` repeats two steps until the client disconnects or the server stops:

    _next ──> wait for room in the window ──> claim_or_wait ──> Claimed ──> _send ──> one JSON line per message
      ▲        (at most one heartbeat)         (a claim, or a wait for                    │
      └──────────────────────────────────────── the first message) <──────────────────────┘

Credit comes from two places. The *socket*: nothing is claimed while it is full, and what was claimed and could not be
written is released at once, without counting an attempt. The *window* (`engine.consumer_window`): how many unsettled
messages this connection may hold. Settling a message makes room, which `_on_window_change` notices once per commit.

Leases: while messages wait in the client behind others of the same connection, the server extends their leases. A timer
runs when the next one is due. An idle stream sends a bare newline as a heartbeat.

The size of a claim adapts: it doubles while the socket takes everything at once, up to `CLAIM_MAX`, and falls back to
`CLAIM_MIN` when the socket is full.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import msgspec

from driftq.core.model import commands as c
from driftq.core.model.replies import Claimed, Rejected
from driftq.engine.consumer_window import ConsumerWindow
from driftq.engine.lifetime import EngineStopped
from driftq.engine.waiters import claim_or_wait
from driftq.server.deliveries import DeliveryLines, give_back, set_aside
from driftq.storage.cold_segments import ColdRange
from driftq.storage.corruption import CorruptLog

if TYPE_CHECKING:
    from driftq.engine.engine import Engine
    from driftq.server.http import ResponseStream

logger = logging.getLogger("driftq.consume")

NDJSON = "application/x-ndjson; charset=utf-8"
CLAIM_MIN, CLAIM_MAX = 64, 1_024  # messages of one claim
TOP_UP_S = 0.02  # a nearly full connection waits this long for more room, so that it does not claim single messages


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
        self._window = ConsumerWindow(claim.lease_ms, in_flight_max, prefetch, self._on_window_change)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None  # for the next lease that has to be extended
        self._check_scheduled = False  # `_check_window` runs in this turn of the loop
        self._claim_max = CLAIM_MIN  # grows and shrinks, see above
        self._room_needed = 0  # what `_has_room` waits for
        self._has_room: asyncio.Future[None] | None = None
        self._claiming: asyncio.Task[Claimed | Rejected | None] | None = None  # cancelled when the stream is over

    async def run(self, stream: ResponseStream) -> None:
        await stream.start(200, content_type=NDJSON)
        stream.on_over(self._stop_claiming)
        try:
            while not stream.over:
                reply = await self._next(stream)
                if isinstance(reply, Rejected):
                    logger.info("consume of %s by %s ends: %s", self._claim.topic, self._claim.group, reply.message)
                    return  # the topic or the group was deleted
                if reply is not None:
                    await self._send(stream, reply)
        except EngineStopped:
            return
        finally:
            self._engine.watch.windows.close(self._window)
            if self._timer is not None:
                self._timer.cancel()

    def _stop_claiming(self) -> None:
        if self._claiming is not None:
            self._claiming.cancel()

    async def _next(self, stream: ResponseStream) -> Claimed | Rejected | None:
        """The next claim with messages. Without one, a heartbeat is sent and None is returned: try again."""
        self._claiming = self._loop.create_task(self._engine.monitor.steps("consume", self._claim_next()))
        try:
            reply = await self._claiming
        except asyncio.CancelledError:
            if not stream.over:
                raise
            return None
        finally:
            self._claiming = None
        if isinstance(reply, Claimed) and reply.deliveries:
            self._take(reply)
            return reply
        if isinstance(reply, Rejected):
            return reply
        stream.write(b"\n")
        await stream.drain()
        return None

    async def _claim_next(self) -> Claimed | Rejected | None:
        """Wait for room, then claim. None if there was no room within a heartbeat."""
        quarter = max(1, self._window.size(self._engine.now_ms()) // 4)
        room = self._window.room(self._engine.now_ms())
        if not room and not await self._wait_for_room(1, self._heartbeat_ms / 1_000):
            return None
        if room < quarter:
            await self._wait_for_room(quarter, TOP_UP_S)
        return await claim_or_wait(self._engine, self._claim, self._heartbeat_ms, self._claim_size)

    def _claim_size(self) -> int:
        return min(self._claim_max, self._window.room(self._engine.now_ms()))

    async def _wait_for_room(self, needed: int, timeout_s: float) -> bool:
        if self._window.room(self._engine.now_ms()) >= needed:
            return True
        self._room_needed = needed
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
        taken = sum(delivery.end - delivery.first for delivery in claimed.deliveries)
        if taken == self._claim_max:
            self._claim_max = min(CLAIM_MAX, 2 * taken)
        at_ms = min(claimed.until_ms - self._lease_ms, self._engine.now_ms())  # the clock may have been set
        until_ms = min(claimed.until_ms, at_ms + self._lease_ms)
        for delivery in claimed.deliveries:
            held = c.Held(delivery.partition, delivery.first, delivery.end, claimed.token)
            end_ms = min(until_ms, delivery.until_ms or until_ms)
            self._engine.watch.windows.deliver(self._window, group.progress[delivery.partition], held, end_ms, at_ms)
        self._set_timer()

    def _on_window_change(self) -> None:
        """Messages of the window were settled. Everything that one commit settles is handled together."""
        if not self._check_scheduled:
            self._check_scheduled = True
            self._loop.call_soon(self._engine.monitor.timed("consume", self._check_window))

    def _check_window(self) -> None:
        self._check_scheduled = False
        waiting = self._has_room
        if waiting is not None and not waiting.done() and self._window.room(self._engine.now_ms()) >= self._room_needed:
            waiting.set_result(None)
        self._extend_leases()

    def _extend_leases(self) -> None:
        """Extend the leases that are due, unless the engine has stopped."""
        if self._engine.stopped.done():
            return
        for until_ms, held in self._window.extensions(self._engine.now_ms()):
            command = c.Keep(self._claim.topic, self._claim.group, tuple(held), until_ms)
            self._engine.submit_to(command, lambda _: None)
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is None:
            next_ms = self._window.next_ms()
            if next_ms is not None:
                delay_s = max(0, next_ms - self._engine.now_ms()) / 1_000
                self._timer = self._loop.call_later(delay_s, self._engine.monitor.timed("consume", self._on_timer))

    def _on_timer(self) -> None:
        self._timer = None
        self._extend_leases()

    # --- the socket ---

    async def _wait_for_socket(self, stream: ResponseStream, messages: DeliveryLines) -> bool:
        """Wait until the socket takes more and the loop has time. False: the client has disconnected."""
        if stream.over:
            return False
        if not stream.writable:
            self._claim_max = CLAIM_MIN
            if stream.is_tight:
                messages.drop()
        return await stream.drain(messages.held_bytes)

    async def _send(self, stream: ResponseStream, claimed: Claimed) -> None:
        for index, delivery in enumerate(claimed.deliveries):
            sent = delivery.first
            messages = DeliveryLines(self._engine, delivery, claimed.token, claimed.until_ms)
            try:
                for line in messages:
                    if not (stream.ready or await self._wait_for_socket(stream, messages)) or stream.over:
                        break
                    stream.write(line + b"\n")
                    sent += 1
            except ColdRange:
                pass  # its records have left the cache: the rest goes back
            except CorruptLog as error:
                logger.error("a message was not delivered: %s", error)
                set_aside(self._engine, self._claim, c.Held(delivery.partition, sent, sent + 1, claimed.token))
                sent += 1
            if sent < delivery.end:
                unsent = (msgspec.structs.replace(delivery, first=sent), *claimed.deliveries[index + 1 :])
                give_back(self._engine, self._claim, unsent, claimed.token)
                return
        await stream.drain()
