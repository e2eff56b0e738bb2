"""What the bench needs of a peer: `Peer` is the server, `PeerClient` its usual Python client in another process.

A client sends and claims; the loops and clocks are in `cases`. Everything that a client reports as sent is on disk.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from bench.peers.server_process import ServerProcess

Send = Callable[[bytes], Awaitable[object]]

QUEUE = "jobs"  # what all cases but the latency use
LIVE = "live"  # what the latency uses: empty when its case starts
GROUP = "workers"


class Peer:
    """One server. `start` leaves it ready, with the queues QUEUE and LIVE."""

    name: ClassVar[str]  # as in results and tables
    client_package: ClassVar[str]  # as pip knows it
    durability: ClassVar[str]  # the setting that makes it sync before it replies
    notes: ClassVar[str] = ""  # how its client is used where that is not obvious
    lacks: ClassVar[Mapping[str, str]] = {}  # cases that it has no counterpart for, and why

    def __init__(self) -> None:
        self.processes: list[ServerProcess] = []

    def install(self, *, download: bool) -> None:
        """Find or bring what it needs; raises MissingError."""

    def version(self) -> str:
        """The version of the server that runs."""
        raise NotImplementedError

    def start(self, folder: Path) -> str:
        """Start it with its data in `folder`; returns the address for its client."""
        raise NotImplementedError

    def cpu_s(self) -> float:
        return sum(process.cpu_s() for process in self.processes)

    def stop(self) -> None:
        while self.processes:
            self.processes.pop().stop()


class PeerClient:
    """The client in the process that generates the load."""

    def __init__(self, address: str) -> None:
        self.address = address

    def write(self, values: Sequence[bytes]) -> None:
        """Send a batch in the way that has the highest throughput; it may still be in flight."""
        raise NotImplementedError

    def flush(self) -> None:
        """Return when everything written is on disk."""

    def send(self, value: bytes) -> None:
        """One message, on disk when this returns."""
        raise NotImplementedError

    def claim_and_ack(self, count_max: int) -> int:
        """Take up to `count_max` messages and settle them; returns how many."""
        raise NotImplementedError

    def callers(self, count: int, queue: str) -> contextlib.AbstractAsyncContextManager[list[Send]]:
        """`count` independent async senders to a queue."""
        raise NotImplementedError

    def deliveries(self) -> contextlib.AbstractAsyncContextManager[AsyncGenerator[bytes, None]]:
        """The values of LIVE as they arrive; each is settled after it was seen."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the connections of the blocking methods."""
