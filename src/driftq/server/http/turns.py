"""Turns of the loop: how much work connections may start before everything else gets its turn, and who is next.

Theory of operation. One loop serves all connections, so one turn must be short, whatever arrives. A turn has a budget:

    a request costs 1, and 1 more for every 4 KiB of its body; output that is made in pieces costs 1 for every 2 KiB

    bytes arrive ──> `left` > 0?  ──yes──> parse and start requests at once, until the budget is spent
                        │no                                                          │
                        ▼                                                            ▼
                     the connection pauses reading and waits in the `FairQueue` <────┘
                        │
    next turn ──────────┘  serves the queue: `VISIT_COST` for each connection, in the order of what they have used

Without overload the queue is empty, and all that this costs is a counter and one callback for each turn of the loop.
With overload every connection goes through the queue. Those that send one request at a time are served first, so they
wait for about one turn, no matter how many connections flood the server or how deep they pipeline. Who floods waits:
its input stays in the socket.

While several tenants are connected (`share_turns`), turns are shorter: one of them waits for at most a small piece of
another's work, and the loop looks for its input more often. Then the time is checked after each request, because one
can cost ten times as much as another. All this costs a few more system calls, so one tenant alone has long turns.

What is started has to be answered, and the answers of one commit leave in one go. So two more things are limited over
all connections. *Pipelined requests*, those that a connection starts before it has answered the one before: beyond
`PIPELINED_MAX`, a connection has one request under way. Tenants have equal parts of it, so that one whose answers wait
leaves room for the others. *Large requests*, because it is the disk that they keep busy, not the loop: `started_bytes`
of them are started and not yet answered at any time. Further ones wait here, small ones do not.

The cost is counted, so the same input leads to the same order. Some requests cost much more than they count, so a turn
also ends after `TURN_S`, whatever is left of its budget. The queue is pure; this module connects it to the loop. It
does not know what a request is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, Protocol

from driftq.server.http.fair_queue import FairQueue, Flow
from driftq.server.http.limits import PIECE_BYTES

TURN_COST: Final = 128
VISIT_COST: Final = 16
TURN_S: Final = 0.004
SHARED_TURN_COST: Final = 32
SHARED_TURN_S: Final = 0.0005
COST_BYTES_SHIFT: Final = 12  # 4 KiB of input
OUTPUT_BYTES_SHIFT: Final = 11  # 2 KiB of output, most of whose cost is the kernel's
PIPELINED_MAX: Final = 256  # one connection may have `HttpLimits.pipelined` of them
PIPELINED_MIN: Final = 8  # of a tenant, however many there are
PIPELINES_KEPT: Final = 64  # of tenants without connections
READ_BUFFER_BYTES: Final = 256 * 1024
# Accounts for the time of a callback by a cause: `LoopMonitor.timed`.
Timed = Callable[[str, Callable[..., object]], Callable[..., None]]


class TurnTaker(Protocol):
    """A connection, as the turns see it."""

    def take_turn(self) -> None:
        """Do some work, until `Turns.left` is spent. If there is more to do, `Turns.wait` again."""

    def share_key(self) -> str:
        """Whose share the work is of."""


class PipelinedRequests:
    """The requests of a tenant that are started beyond the first of each connection, and have no response yet."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Turns:
    """The turns of one loop."""

    __slots__ = (
        "_call_soon", "_clock", "_cost_max", "_full_buffer", "_pipelines", "_queue", "_serve", "_serving",
        "_small_buffer", "_started_bytes", "_started_max_bytes", "_waiting_for_room", "armed", "is_shared", "left",
        "pipelined_max", "read_buffer", "started_s", "turn_s",
    )  # fmt: skip

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        started_max_bytes: int,
        timed: Timed,
        clock: Callable[[], float],
    ) -> None:
        self._call_soon = call_soon  # the loop's
        self._clock = clock
        self._queue: FairQueue[TurnTaker] = FairQueue()
        self._started_max_bytes = started_max_bytes
        self._started_bytes = 0  # of large requests that are started and not answered
        self._waiting_for_room: dict[Flow[TurnTaker], None] = {}  # flows whose next request is large
        self._serving = False  # `_next_turn` runs, and sets `left` itself
        self._serve = timed("http", self._serve_queue)
        # One buffer is enough: the loop gets it, fills it and hands it over without running anything in between. While
        # connections wait, less is read from each: what is read and not parsed takes memory.
        self._full_buffer = memoryview(bytearray(READ_BUFFER_BYTES))
        self._small_buffer = self._full_buffer[:PIECE_BYTES]
        self.read_buffer = self._full_buffer
        self.is_shared = False  # connections of several tenants are open
        self._cost_max = TURN_COST  # of one turn
        self.turn_s = TURN_S  # a turn ends after this time
        self.left = TURN_COST  # of this turn; 0 or less: wait
        self._pipelines: dict[str, PipelinedRequests] = {}  # by tenant; "": callers without one
        self.pipelined_max = PIPELINED_MAX  # requests in each of them
        self.started_s = 0.0  # when the first input of this turn arrived, or its first visit began
        self.armed = False  # `_next_turn` is scheduled. To spend, call `arm` if it is not

    def share_turns(self, tenants: Collection[str]) -> None:
        """Connections of these tenants are open."""
        self.is_shared = is_shared = len(tenants) > 1
        self._cost_max = SHARED_TURN_COST if is_shared else TURN_COST
        self.turn_s = SHARED_TURN_S if is_shared else TURN_S
        self.pipelined_max = max(PIPELINED_MIN, PIPELINED_MAX // max(1, len(tenants)))
        if len(self._pipelines) > 2 * len(tenants) + PIPELINES_KEPT:
            kept = {tenant: self._pipelines[tenant] for tenant in tenants if tenant in self._pipelines}
            self._pipelines = {
                tenant: pipeline for tenant, pipeline in self._pipelines.items() if pipeline.count
            } | kept

    def pipeline(self, tenant: str) -> PipelinedRequests:
        return self._pipelines.setdefault(tenant, PipelinedRequests())

    @property
    def pipelined(self) -> int:
        """Pipelined requests of all tenants."""
        return sum(pipeline.count for pipeline in self._pipelines.values())

    def arm(self) -> None:
        """Something is spent in this turn: the next one has its full budget again."""
        self.armed = True
        if self.is_shared:
            self.started_s = self._clock()
        self._call_soon(self._next_turn)

    def wait(self, flow: Flow[TurnTaker]) -> None:
        """The flow has work that this turn has no budget for."""
        if not self._serving:
            self.left = 0  # work that arrives later must not overtake it
            self.read_buffer = self._small_buffer
        self._queue.push(flow, flow.owner.share_key())
        if not self.armed:
            self.arm()

    def leave(self, flow: Flow[TurnTaker]) -> None:
        """The connection is lost."""
        self._queue.remove(flow)
        self._waiting_for_room.pop(flow, None)

    def charge(self, size_bytes: int) -> None:
        """Output of this size was made in this turn."""
        self.left -= size_bytes >> OUTPUT_BYTES_SHIFT
        if not self.armed:
            self.arm()

    def _next_turn(self) -> None:
        if self._queue:
            self._serve()
        else:
            self.armed = False
            self.left = self._cost_max
            self.read_buffer = self._full_buffer

    def _serve_queue(self) -> None:
        queue = self._queue
        remaining = max(VISIT_COST, self._cost_max + min(0, self.left))  # less after a turn that cost too much
        self.started_s = self._clock()
        until_s = self.started_s + self.turn_s
        self._serving = True
        while remaining > 0 and (flow := queue.pop()) is not None:
            visit = self.left = min(VISIT_COST, remaining)
            flow.owner.take_turn()
            cost = max(1, visit - self.left)
            remaining -= cost
            queue.charge(flow, cost)
            if self._clock() >= until_s:
                break
        self._serving = False
        self.left = 0 if queue else remaining
        self.read_buffer = self._small_buffer if queue else self._full_buffer
        self.arm()

    # --- large requests ---

    def has_room(self) -> bool:
        """Whether another large request may start."""
        return self._started_bytes < self._started_max_bytes

    def wait_for_room(self, flow: Flow[TurnTaker]) -> None:
        """The next request of this flow is large, and there is no room for it."""
        self._waiting_for_room[flow] = None

    def large_started(self, size_bytes: int) -> None:
        self._started_bytes += size_bytes

    def large_ended(self, size_bytes: int) -> None:
        self._started_bytes -= size_bytes
        if self._waiting_for_room and self.has_room():
            flows, self._waiting_for_room = self._waiting_for_room, {}
            for flow in flows:
                self.wait(flow)
