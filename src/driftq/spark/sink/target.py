"""The sink's calls to the broker: chunks in, and the call that publishes a batch.

A *staged* chunk is stored under a handle of its own, invisible until its batch is published. Handles are new for each
attempt of a task, so attempts never collide. A *direct* chunk is visible immediately, and its number makes a repeat
harmless. Only a few chunks are in flight at a time, so a task is never faster than the broker. Knows no Spark and no
Arrow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlencode

import msgspec

from driftq.client.calls import streams
from driftq.client.calls.queue import json_reader, post, refusal, send_packed
from driftq.client.errors import DriftQError, InvalidCall
from driftq.client.transport.sansio import Call, RetryOptions
from driftq.wire.produce import PACKED_TYPE
from driftq.wire.stages import ForgottenInfo, PublishedInfo, StagedInfo
from driftq.wire.streams import is_json, join_json

if TYPE_CHECKING:
    from driftq.client.transport.sync_transport import Transport
    from driftq.spark.sink.options import WriteOptions

IN_FLIGHT_MAX = 2
FORGET_RETRY = RetryOptions(timeout_ms=5_000, deadline_ms=5_000, first_contact_ms=1_000)


class Packable(Protocol):
    """What a target needs to know of a chunk."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def round_robin(self) -> bool: ...
    @property
    def seq(self) -> int: ...
    @property
    def rows(self) -> int: ...
    def pack(self, producer: str = ..., epoch: int = ..., *, compress: bool = ...) -> bytes: ...
    def digest(self) -> int: ...
    def values(self) -> list[bytes]: ...


# --- calls ------------------------------------------------------------------------------------------------------------


def stage(writer: str, handle: str, log: dict[str, object], batch: bytes, ttl_ms: int) -> Call[StagedInfo]:
    """Store one packed batch under a handle. `log` is a topic and partition, or the path of a stream."""
    query = {"writer": writer, "handle": handle, "chunk": 0, "ttl_ms": ttl_ms, **log}
    path = f"/v1/stages?{urlencode(query)}"
    return Call(
        "POST", path, json_reader(StagedInfo), refusal=refusal, body=batch, content_type=PACKED_TYPE, idempotent=True
    )


def publish(writer: str, batch_id: int, handles: Sequence[str], content: str = "") -> Call[PublishedInfo]:
    """Make the batches of these handles visible, in this order, once for each batch number of the writer. `content`
    identifies what is published; the broker refuses the same number with another one."""
    body: dict[str, object] = {"writer": writer, "batch": batch_id, "handles": handles}
    if content:
        body["content"] = content
    return post("/v1/stages/publish", body, json_reader(PublishedInfo), idempotent=True)


def forget(writer: str, handles: Sequence[str]) -> Call[ForgottenInfo]:
    body = {"writer": writer, "handles": handles}
    return post("/v1/stages/forget", body, json_reader(ForgottenInfo), idempotent=True)


def try_forget(transport: Transport, writer: str, handles: Sequence[str]) -> None:
    """Best effort: what is not forgotten now is dropped with the writer's next batch, or when `stageTtl` is over."""
    if handles:
        try:
            transport.execute(forget(writer, handles), FORGET_RETRY)
        except DriftQError:
            return


# --- sending ----------------------------------------------------------------------------------------------------------


class ChunkUpload:
    """Sends chunks in threads: Spark computes the next rows while the broker syncs the last ones.

    Chunks of one lane are sent by one thread, in order.
    """

    def __init__(self) -> None:
        self._threads = [ThreadPoolExecutor(1, "driftq-sink") for _ in range(IN_FLIGHT_MAX)]
        self._in_flight: deque[Future[None]] = deque()

    def submit(self, lane: int, send: Callable[[], None]) -> None:
        """Blocks while too many chunks are in flight. Raises the error of an earlier chunk."""
        while len(self._in_flight) >= IN_FLIGHT_MAX:
            self._in_flight.popleft().result()
        self._in_flight.append(self._threads[lane % IN_FLIGHT_MAX].submit(send))

    def drain(self) -> None:
        while self._in_flight:
            self._in_flight.popleft().result()

    def close(self) -> None:
        for thread in self._threads:
            thread.shutdown(wait=True, cancel_futures=True)


class SinkTarget:
    """Where the chunks of one task attempt go."""

    def __init__(self, transport: Transport, options: WriteOptions, writer: str, batch_id: int, task: int) -> None:
        self._transport = transport
        self._options = options
        self._writer = writer
        self._batch_id = batch_id
        self._task = task
        self._content_type = self._stream_content_type() if options.stream else ""

    def _stream_content_type(self) -> str:
        info = self._transport.execute(streams.describe(self._options.stream))
        if info.closed:
            raise InvalidCall(f"the stream {self._options.stream} is closed; it cannot be written to")
        return info.content_type

    def _checked_values(self, chunk: Packable) -> list[bytes]:
        """The values of a chunk; for a JSON stream each must be one JSON value."""
        values = chunk.values()
        try:
            decoded = msgspec.json.decode(join_json(values), type=list[msgspec.Raw])
        except msgspec.DecodeError as error:
            raise InvalidCall(f"column value: the stream {self._options.stream} holds JSON: {error}") from None
        if len(decoded) != len(values):
            raise InvalidCall(f"column value: the stream {self._options.stream} holds JSON, one value in each row")
        return values


class StagedTarget(SinkTarget):
    """Chunks are stored under handles until the driver publishes them."""

    def __init__(
        self, transport: Transport, options: WriteOptions, writer: str, batch_id: int, task: int, attempt: str
    ) -> None:
        super().__init__(transport, options, writer, batch_id, task)
        self._attempt = attempt
        self.handles: list[str] = []

    def lane(self, chunk: Packable) -> int:
        """Chunks may arrive in any order."""
        return len(self.handles)

    def admit(self, chunk: Packable) -> Callable[[], None]:
        """Assign the handle now, so that handles are in the order of chunks, whatever order they are sent in."""
        handle = f"{self._writer}/{self._batch_id}/{self._task}/{self._attempt}/{len(self.handles)}"
        self.handles.append(handle)
        return lambda: self._send(handle, chunk)

    def _send(self, handle: str, chunk: Packable) -> None:
        log: dict[str, object] = {"path": self._options.stream}
        if not self._options.stream:
            log = {"topic": chunk.topic, "partition": chunk.partition}
        elif is_json(self._content_type):
            self._checked_values(chunk)
        batch = chunk.pack(compress=self._options.compress)
        self._transport.execute(stage(self._writer, handle, log, batch, self._options.stage_ttl_ms))


class DirectTarget(SinkTarget):
    """Chunks are appended as those of a producer: the batch id is the epoch, the number of the chunk is the seq. The
    broker recognises a repeat by its number, and refuses an older batch or the same number with other bytes."""

    handles: Sequence[str] = ()

    def lane(self, chunk: Packable) -> int:
        """Chunks are numbered in each partition, and must arrive there in order."""
        return chunk.partition

    def admit(self, chunk: Packable) -> Callable[[], None]:
        return lambda: self._send(chunk)

    def _send(self, chunk: Packable) -> None:
        producer = f"{self._writer}/{self._task}{'/spread' if chunk.round_robin else ''}"
        if self._options.stream:
            values = self._checked_values(chunk) if is_json(self._content_type) else chunk.values()
            body = streams.body_of(self._content_type, values)
            sequence = (producer, self._batch_id, chunk.seq)
            self._transport.execute(streams.append(self._options.stream, body, self._content_type, producer=sequence))
            return
        batch = chunk.pack(producer, self._batch_id, compress=self._options.compress)
        self._transport.execute(send_packed(chunk.topic, chunk.partition, batch, has_producer=True))
