"""Whose work is next: a fair queue of flows, in order of what each has used.

Theory of operation. A *flow* is one source of work, such as a connection. Flows are grouped in *shares*, by a key such
as the address of the peer. This is start-time fair queueing on two levels: every share, and every flow within its
share, has a *tag*, the virtual time at which its next work may start.

    push(flow)       an idle flow starts at the present virtual time, or later if it still has to pay for earlier work
    pop()            the share with the lowest tag, and of its flows the one with the lowest tag; their tags become the
                     present virtual time
    charge(flow, n)  what the work cost: moves the tags of the flow and of its share by `n`

        tag ──────────────────────────────▶
        light      |■ served next: it has used little
        heavy 1        |■■■■■■
        heavy 2          |■■■■■■

From this follow the three properties that `tests/property/test_fair_queue.py` checks:

- *Fair*: shares that always have work get the same cost, up to one piece of work each; so do the flows of a share. So a
  client with 200 connections gets no more than one with a single connection, if they have different keys.
- *Light first*: a flow that was idle is served before any other flow is served twice.
- *Work-conserving and free of starvation*: `pop` returns a flow as long as one waits; each gets its turn, because the
  tags of those that are served grow and its own does not.

Pure: no clock, no sockets. The cost is whatever the caller passes. All operations are O(log n).
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final, Generic, TypeVar

T = TypeVar("T")

SHARES_KEPT: Final = 256  # idle shares whose tag is remembered, before those that owe nothing are forgotten


class Flow(Generic[T]):
    """One source of work. `owner` is the caller's, everything else the queue's."""

    __slots__ = ("entry", "owner", "share", "tag")

    def __init__(self, owner: T) -> None:
        self.owner = owner
        self.share: _Share[T] | None = None  # of the last push
        self.tag = 0.0  # when its next work may start, in the virtual time of its share
        self.entry = 0  # the number of its entry in the share's heap; 0: it does not wait

    @property
    def is_waiting(self) -> bool:
        return self.entry > 0


class _Share(Generic[T]):
    """The flows of one key."""

    __slots__ = ("entry", "flows", "now", "tag", "waiting")

    def __init__(self) -> None:
        self.entry = 0  # the number of its entry in the queue's heap; older ones do not count
        self.tag = 0.0  # when its next work may start, in the virtual time of the queue
        self.now = 0.0  # the virtual time of its flows
        self.flows: list[tuple[float, int, Flow[T]]] = []  # a heap; entries of flows that left are dropped by `pop`
        self.waiting = 0  # flows that wait


class FairQueue(Generic[T]):
    """Flows that have work, in the order in which they are served."""

    __slots__ = ("_entries", "_now", "_queue", "_shares", "_waiting")

    def __init__(self) -> None:
        self._now = 0.0
        self._entries = 0  # numbers entries, so that equal tags are served in order of arrival
        self._waiting = 0
        self._shares: dict[str, _Share[T]] = {}
        self._queue: list[tuple[float, int, _Share[T]]] = []  # a heap of shares with flows that wait

    def __len__(self) -> int:
        """How many flows wait."""
        return self._waiting

    def push(self, flow: Flow[T], key: str) -> None:
        """The flow has work. Does nothing if it waits already."""
        if flow.entry:
            return
        if not self._waiting:
            self._shares = {}  # no flow waited, so none has an advantage to make up for
            self._now = 0.0
        share = self._shares.get(key)
        if share is None:
            share = self._shares[key] = _Share()
            self._forget_idle()
        if share is not flow.share:
            flow.share, flow.tag = share, share.now
        flow.tag = max(flow.tag, share.now)
        self._entries += 1
        flow.entry = self._entries
        heappush(share.flows, (flow.tag, flow.entry, flow))
        share.waiting += 1
        self._waiting += 1
        if share.waiting == 1:
            share.tag = max(share.tag, self._now)
            self._enter(share)

    def _enter(self, share: _Share[T]) -> None:
        self._entries += 1
        share.entry = self._entries
        heappush(self._queue, (share.tag, share.entry, share))

    def pop(self) -> Flow[T] | None:
        """The flow whose turn it is; it waits no longer. None if no flow waits."""
        while self._queue:
            tag, entry, share = heappop(self._queue)
            if share.entry != entry or not share.waiting:
                continue  # its flows left
            if tag < share.tag:  # it was charged in the meantime
                heappush(self._queue, (share.tag, entry, share))
                continue
            self._now = tag
            flow = self._pop_flow(share)
            if share.waiting:
                self._enter(share)
            return flow
        return None

    def _pop_flow(self, share: _Share[T]) -> Flow[T]:
        while True:
            tag, entry, flow = heappop(share.flows)
            if flow.entry != entry or flow.share is not share:
                continue  # it left
            if tag < flow.tag:
                heappush(share.flows, (flow.tag, entry, flow))
                continue
            share.now = tag
            self._leave(flow, share)
            return flow

    def remove(self, flow: Flow[T]) -> None:
        """The flow ends, or has nothing to do any more."""
        if flow.entry:
            assert flow.share is not None
            self._leave(flow, flow.share)

    def _leave(self, flow: Flow[T], share: _Share[T]) -> None:
        flow.entry = 0
        share.waiting -= 1
        self._waiting -= 1
        if not share.waiting:
            share.flows.clear()

    def charge(self, flow: Flow[T], cost: float) -> None:
        """The flow was served, at this cost."""
        flow.tag += cost
        if flow.share is not None:
            flow.share.tag += cost

    def _forget_idle(self) -> None:
        if len(self._shares) > SHARES_KEPT:
            kept = {key: share for key, share in self._shares.items() if share.waiting or share.tag > self._now}
            if len(kept) <= len(self._shares) // 2:
                self._shares = kept
