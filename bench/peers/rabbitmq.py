"""RabbitMQ quorum queues, through pika: its blocking connection, and its asyncio connection with publisher confirms."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from bench.peers.installation import distribution_packages, library_path
from bench.peers.peer import LIVE, QUEUE, Peer, PeerClient, Send
from bench.peers.server_process import ServerProcess, accepts, free_port

PREFETCH = 1_000
ERL = '#!/bin/sh\nexec "$BINDIR/erlexec" "$@"\n'


class RabbitPeer(Peer):
    name = "RabbitMQ"
    client_package = "pika"
    durability = "quorum queue on one node, persistent messages, publisher confirms"
    notes = "batches are 1,000 publishes in flight; claims by a consumer with prefetch, whose acks are not confirmed"

    def __init__(self) -> None:
        super().__init__()
        self._root = Path("/")

    def install(self, *, download: bool) -> None:
        self._root = distribution_packages("rabbitmq-server", "rabbitmq-server", download=download) or Path("/")

    @property
    def _home(self) -> Path:
        return next(iter(sorted((self._root / "usr" / "lib" / "rabbitmq" / "lib").glob("rabbitmq_server-*"))))

    def version(self) -> str:
        return self._home.name.removeprefix("rabbitmq_server-")

    def start(self, folder: Path) -> str:
        import pika

        erlang = self._root / "usr" / "lib" / "erlang"
        runtime = next(iter(sorted(erlang.glob("erts-*")))) / "bin"
        port, epmd_port = free_port(), free_port()
        script = folder / "bin" / "erl"  # the packaged one only works where the package puts it
        script.parent.mkdir()
        script.write_text(ERL, encoding="utf-8")
        script.chmod(0o755)
        env = {
            **(library_path(self._root) if self._root != Path("/") else {}),
            "PATH": f"{script.parent}:{os.environ['PATH']}",
            "HOME": str(folder), "ROOTDIR": str(erlang), "BINDIR": str(runtime), "EMU": "beam", "PROGNAME": "erl",
            "ERL_EPMD_PORT": str(epmd_port), "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RUNNING_UNDER_SYSTEMD": "1",  # the script then becomes the server instead of starting it
            "RABBITMQ_NODENAME": f"bench-{port}@localhost",
            "RABBITMQ_NODE_PORT": str(port), "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_DIST_PORT": str(free_port()), "RABBITMQ_LOGS": "-",
            "RABBITMQ_MNESIA_BASE": str(folder / "data"), "RABBITMQ_CONFIG_FILE": str(folder / "config"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "environment"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_FEATURE_FLAGS_FILE": str(folder / "features"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(folder / "generated"),
        }  # fmt: skip
        command = [runtime / "epmd", "-port", str(epmd_port), "-address", "127.0.0.1"]
        self.processes.append(ServerProcess(command, folder, name="epmd", env=env))
        process = ServerProcess([self._home / "sbin" / "rabbitmq-server"], folder, env=env)
        self.processes.append(process)
        process.wait_until(lambda: process.has_logged("Server startup complete") and accepts(port))
        with contextlib.closing(pika.BlockingConnection(parameters(str(port)))) as connection:
            for queue in (QUEUE, LIVE):
                connection.channel().queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
        return str(port)


def parameters(address: str) -> Any:
    import pika

    return pika.ConnectionParameters("127.0.0.1", int(address), heartbeat=0)


def persistent() -> Any:
    import pika

    return pika.BasicProperties(delivery_mode=2)


class ConfirmedChannel:
    """A channel of an asyncio connection: `publish` returns when the broker has confirmed the message."""

    def __init__(self, address: str) -> None:
        loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[Any] = loop.create_future()
        self._closed: asyncio.Future[None] = loop.create_future()
        self._waiting: dict[int, asyncio.Future[None]] = {}  # by delivery tag, in order
        self._properties = persistent()
        self._published = 0
        self._connect(address, loop)

    def _connect(self, address: str, loop: asyncio.AbstractEventLoop) -> None:
        from pika.adapters.asyncio_connection import AsyncioConnection

        def channel_opened(channel: Any) -> None:
            channel.confirm_delivery(self._confirmed, callback=lambda _: self._opened.set_result(channel))

        self._connection = AsyncioConnection(
            parameters(address),
            on_open_callback=lambda connection: connection.channel(on_open_callback=channel_opened),
            on_open_error_callback=lambda _, error: self._opened.set_exception(ConnectionError(str(error))),
            on_close_callback=lambda _, __: self._closed.set_result(None),
            custom_ioloop=loop,
        )

    async def channel(self) -> Any:
        return await self._opened

    def publish(self, queue: str, value: bytes) -> asyncio.Future[None]:
        self._opened.result().basic_publish("", queue, value, self._properties)
        self._published += 1
        confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[self._published] = confirmed
        return confirmed

    def _confirmed(self, frame: Any) -> None:
        import pika

        tag = frame.method.delivery_tag
        assert isinstance(frame.method, pika.spec.Basic.Ack), "the broker refused a message"
        tags = [earlier for earlier in self._waiting if earlier <= tag] if frame.method.multiple else [tag]
        for confirmed_tag in tags:
            self._waiting.pop(confirmed_tag).set_result(None)

    async def close(self) -> None:
        self._connection.close()
        await self._closed


class RabbitClient(PeerClient):
    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._runner = asyncio.Runner()
        self._asynchronous: ConfirmedChannel | None = None
        self._publishing: Any = None
        self._consuming: Any = None
        self._connections: list[Any] = []

    def _blocking_channel(self) -> Any:
        import pika

        self._connections.append(pika.BlockingConnection(parameters(self.address)))
        return self._connections[-1].channel()

    def write(self, values: Sequence[bytes]) -> None:
        self._runner.run(self._write(values))

    async def _write(self, values: Sequence[bytes]) -> None:
        if self._asynchronous is None:
            self._asynchronous = ConfirmedChannel(self.address)
            await self._asynchronous.channel()
        await asyncio.gather(*(self._asynchronous.publish(QUEUE, value) for value in values))

    def send(self, value: bytes) -> None:
        if self._publishing is None:
            self._publishing = self._blocking_channel()
            self._publishing.confirm_delivery()
        self._publishing.basic_publish("", QUEUE, value, persistent())

    def claim_and_ack(self, count_max: int) -> int:
        if self._consuming is None:
            self._consuming = self._blocking_channel()
            self._consuming.basic_qos(prefetch_count=PREFETCH)
        count, tag = 0, None
        for method, _, _ in self._consuming.consume(QUEUE, inactivity_timeout=0.5):
            if method is None:
                break
            count, tag = count + 1, method.delivery_tag
            if count == count_max:
                break
        if tag is not None:
            self._consuming.basic_ack(tag, multiple=True)
        return count

    @contextlib.asynccontextmanager
    async def callers(self, count: int, queue: str) -> AsyncIterator[list[Send]]:
        channel = ConfirmedChannel(self.address)
        await channel.channel()
        yield [lambda value: channel.publish(queue, value)] * count
        await channel.close()

    @contextlib.asynccontextmanager
    async def deliveries(self) -> AsyncIterator[AsyncIterator[bytes]]:
        confirmed = ConfirmedChannel(self.address)
        channel = await confirmed.channel()
        arrived: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()
        channel.basic_qos(prefetch_count=PREFETCH)
        channel.basic_consume(LIVE, lambda _, method, __, body: arrived.put_nowait((method.delivery_tag, body)))

        async def values() -> AsyncIterator[bytes]:
            while True:
                tag, body = await arrived.get()
                yield body
                channel.basic_ack(tag)

        yield values()
        await confirmed.close()

    def close(self) -> None:
        if self._asynchronous is not None:
            self._runner.run(self._asynchronous.close())
        for connection in self._connections:
            connection.close()
        self._runner.close()
