"""DriftQ as a peer of itself: what the others are compared with."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import driftq
from bench.peers.peer import GROUP, LIVE, QUEUE, Peer, PeerClient, Send
from bench.peers.server_process import ServerProcess, accepts, free_port

CLAIMS_AHEAD = 8
SETTINGS = ("limits.partition_messages=100000000", "limits.partition_bytes=100000000000")


class DriftQPeer(Peer):
    name = "DriftQ"
    client_package = "driftq"
    durability = "default: fdatasync of the journal before every reply"
    notes = "partition limits raised; batches by `send_many` of a producer; `claims(ahead=8)` acks with a later claim"

    def version(self) -> str:
        return driftq.__version__

    def start(self, folder: Path) -> str:
        port = free_port()
        sets = [part for setting in SETTINGS for part in ("--set", setting)]
        serve = ["serve", "--data", folder / "data", "--listen", f"127.0.0.1:{port}", *sets]
        process = ServerProcess([sys.executable, "-m", "driftq.cli.main", *serve], folder)
        self.processes.append(process)
        process.wait_until(lambda: accepts(port))
        url = f"http://127.0.0.1:{port}"
        with driftq.connect(url) as broker:
            for topic in (QUEUE, LIVE):
                broker.topics.create(topic)
                broker.claim(topic, GROUP)  # the group begins here
        return url


class DriftQClient(PeerClient):
    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._broker = driftq.connect(address)
        self._producer: driftq.Producer | None = None
        self._claims: Iterator[list[driftq.Message]] | None = None

    def write(self, values: Sequence[bytes]) -> None:
        if self._producer is None:
            self._producer = self._broker.producer(QUEUE)
        self._producer.send_many(values)

    def flush(self) -> None:
        if self._producer is not None:
            self._producer.flush()

    def send(self, value: bytes) -> None:
        self._broker.send(QUEUE, value)

    def claim_and_ack(self, count_max: int) -> int:
        if self._claims is None:
            self._claims = self._broker.claims(QUEUE, GROUP, max=count_max, drain=True, ahead=CLAIMS_AHEAD)
        messages = next(self._claims, [])  # acks the last batch, too
        for message in messages:
            assert message.value, "read it: a packed claim is unpacked when it is read"
        return len(messages)

    @contextlib.asynccontextmanager
    async def callers(self, count: int, queue: str) -> AsyncIterator[list[Send]]:
        async with self._broker.asynchronous() as broker:

            async def send(value: bytes) -> None:
                await broker.send(queue, value)

            yield [send] * count

    @contextlib.asynccontextmanager
    async def deliveries(self) -> AsyncIterator[AsyncIterator[bytes]]:
        async with self._broker.asynchronous() as broker:

            async def values() -> AsyncIterator[bytes]:
                async for messages in broker.claims(LIVE, GROUP, max=100):
                    for message in messages:
                        yield message.value

            yield values()

    def close(self) -> None:
        if self._producer is not None:
            self._producer.close()
        self._broker.close()
