"""The presence of a process that runs workers: it announces itself to the broker, and notices when the broker is lost.

    heartbeat ──PUT /v1/workers/{owner}──▶ broker: listed by `driftq workers list`
              ◀──command, interval──────── "drain": stop claiming, finish, end;  "stop": end at once
              no reply within a second ──▶ a warning; the next reply ──▶ "is back"

A heartbeat is not retried: the next one follows soon. Workers do their work whether or not heartbeats arrive. A broker
that has no registry (an older version) is only asked whether it is alive.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from driftq import __version__
from driftq.client.calls import admin, workers
from driftq.client.errors import DriftQError, NotConnected, NotFound, OutcomeUnknown, Refused
from driftq.client.transport.sansio import RetryOptions
from driftq.client.worker.claim_errors import WARNING_S
from driftq.wire.workers import HEARTBEAT_MS, SUBSCRIPTIONS_MAX, HeartbeatRequest, WorkerSubscriptionInfo

if TYPE_CHECKING:
    from driftq.client.api import AsyncDriftQ
    from driftq.client.worker.worker import Worker
    from driftq.client.worker.worker_loop import WorkerLoop

logger = logging.getLogger("driftq.worker")

TIMEOUT_MS = 1_000
# A backoff longer than the deadline means that no retry is made.
ONCE = RetryOptions(TIMEOUT_MS, TIMEOUT_MS, backoff_ms=60_000, backoff_max_ms=60_000, first_contact_ms=0)
LATE_S = 0.5  # a timeout that comes later than this after its time was caused by this process, not by the broker


class Presence:
    """Announces one run of workers. `drain` is set to end it, `abort` to end it at once."""

    def __init__(
        self,
        client: AsyncDriftQ,
        workers: Sequence[tuple[Worker[Any, Any], WorkerLoop]],
        drain: asyncio.Event,
        abort: asyncio.Event,
    ) -> None:
        self._client = client
        self._peer = client._transport.peer
        self._workers = workers[:SUBSCRIPTIONS_MAX]
        self._drain = drain
        self._abort = abort
        self._started_s = time.monotonic()
        self._heartbeat_s = HEARTBEAT_MS / 1_000
        self._has_registry = True
        self._is_listed = False  # the broker has an entry of ours
        self._lost_s: float | None = None  # since when the broker does not answer
        self._reported_s = 0.0  # when that was logged last

    async def run(self, delay_s: float = 0.0) -> None:
        """Until it is cancelled. The first heartbeat follows after `delay_s`."""
        await asyncio.sleep(delay_s)
        try:
            while True:
                next_s = time.monotonic() + self._heartbeat_s
                if not await self._beat():
                    next_s = time.monotonic()  # this process was held up: look again at once
                await asyncio.sleep(max(0.01, next_s - time.monotonic()))
        finally:
            self._peer.is_lost = False
            if self._is_listed and self._lost_s is None:
                await self._leave()

    async def _beat(self) -> bool:
        """One heartbeat. False if its end says nothing about the broker."""
        began_s = time.monotonic()
        try:
            await self._announce() if self._has_registry else await self._ask()
        except (NotConnected, OutcomeUnknown) as error:
            if time.monotonic() - began_s > TIMEOUT_MS / 1_000 + LATE_S:
                return False
            self._on_silence(error)
            return True
        except Refused as error:
            logger.debug("no heartbeat: %s", error)  # it answers, and this worker is not listed for now
        self._on_reply()
        return True

    async def _announce(self) -> None:
        transport = self._client._transport
        try:
            reply = await transport.execute(workers.heartbeat(self._client.owner, self._heartbeat()), ONCE)
        except NotFound:
            self._has_registry = False
            return
        self._is_listed = True
        self._heartbeat_s = reply.heartbeat_ms / 1_000
        if reply.command and not self._drain.is_set():
            logger.info("asked to %s by the broker", reply.command)
        if reply.command:
            self._drain.set()
        if reply.command == "stop":
            self._abort.set()

    async def _ask(self) -> None:
        await self._client._transport.execute(admin.healthy(), ONCE)

    async def _leave(self) -> None:
        try:
            await self._client._transport.execute(workers.remove_worker(self._client.owner), ONCE)
        except DriftQError as error:
            logger.debug("the entry of this worker ends by itself: %s", error)

    def _heartbeat(self) -> HeartbeatRequest:
        return HeartbeatRequest(
            host=socket.gethostname()[:256],
            pid=os.getpid(),
            version=__version__,
            uptime_ms=int(1_000 * (time.monotonic() - self._started_s)),
            state="draining" if self._drain.is_set() else "running",
            workers=tuple(_info(worker, loop) for worker, loop in self._workers),
        )

    def _on_silence(self, error: DriftQError) -> None:
        now_s = time.monotonic()
        if self._lost_s is None:
            self._lost_s = self._reported_s = now_s
            self._peer.is_lost = True  # workers need not report it, too
            if self._peer.ever_connected:
                logger.warning("lost the broker at %s: %s", self._client.url, error)
            else:
                logger.warning("waiting for the broker: %s", error)
        elif now_s >= self._reported_s + WARNING_S:
            self._reported_s = now_s
            logger.warning("still no reply of the broker at %s after %.0f s", self._client.url, now_s - self._lost_s)

    def _on_reply(self) -> None:
        if self._lost_s is not None:
            logger.warning("the broker at %s is back after %.1f s", self._client.url, time.monotonic() - self._lost_s)
            self._lost_s = None
            self._peer.is_lost = False


def _info(worker: Worker[Any, Any], loop: WorkerLoop) -> WorkerSubscriptionInfo:
    subscription = worker.subscription
    return WorkerSubscriptionInfo(
        name=worker.full_name[:256],
        topic=subscription.topic,
        group=subscription.group,
        task=subscription.task or "",
        label=subscription.label or "",
        concurrency=worker.options.concurrency,
        busy=loop.busy,
        held=loop.held,
        acked=loop.counts.acked,
        failed=loop.counts.failed,
    )
