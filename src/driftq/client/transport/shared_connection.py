"""One connection for the short calls of many callers: requests are written together, replies come in their order.

    caller A ──send──▶ ┐
    caller B ──send──▶ ├─ _unwritten ──one write at the end of the loop's turn──▶ AsyncConnection ──▶ broker
    caller C ──send──▶ ┘                                                            │
    each gets its own reply  ◀────────── in order, usually several in one read ─────┘

A turn of the event loop costs one write and one read, however many callers there are. The calls that share a connection
have the same `Call.lane`, so a slow call delays only its own kind; calls that may be held by the broker have none.

One timer watches the oldest call. If it gets no reply in time, the connection is closed, and every call on it fails as
on a broken connection. A caller that is cancelled leaves, and its reply is dropped.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from driftq.client.errors import OutcomeUnknown

if TYPE_CHECKING:
    from driftq.client.transport.async_transport import AsyncConnection
    from driftq.client.transport.http import HttpReply

CALLS_MAX = 64  # on one connection at a time; the broker starts no more


class SharedConnection:
    """A connection while calls of one lane are under way on it."""

    def __init__(self, connection: AsyncConnection) -> None:
        self.connection = connection
        self.calls = 0  # under way
        self._loop = asyncio.get_running_loop()
        self._unwritten: list[bytes] = []
        self._deadlines_s: dict[asyncio.Future[HttpReply], float] = {}  # in the order of replies
        self._timer: asyncio.TimerHandle | None = None

    def has_room(self) -> bool:
        return self.connection.usable and self.calls < CALLS_MAX

    def send(self, request: bytes, timeout_s: float) -> asyncio.Future[HttpReply]:
        """The reply to a request; call `ended` when it has arrived, or its caller was cancelled."""
        waiter = self.connection.expect_reply()
        if not self._unwritten:
            self._loop.call_soon(self._write)
        self._unwritten.append(request)
        self.calls += 1
        self._deadlines_s[waiter] = self._loop.time() + timeout_s
        if self._timer is None:
            self._timer = self._loop.call_later(timeout_s, self._check)
        return waiter

    def ended(self, waiter: asyncio.Future[HttpReply]) -> None:
        self.calls -= 1
        del self._deadlines_s[waiter]
        if not self._deadlines_s and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _write(self) -> None:
        requests, self._unwritten = self._unwritten, []
        self.connection.write(b"".join(requests))

    def _check(self) -> None:
        """The timer: is the oldest call too late, or when to look again?"""
        self._timer = None
        oldest_s = min(self._deadlines_s.values(), default=None)
        if oldest_s is None:
            return
        if oldest_s <= self._loop.time():
            self.connection.error = OutcomeUnknown("no reply in time")
            self.connection.close()
        else:
            self._timer = self._loop.call_at(oldest_s, self._check)
