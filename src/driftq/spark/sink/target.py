"""What the sink says to the broker: chunks on their way in, and the one word that makes a batch seen.

A *staged* chunk lies unseen under a handle of its own until its batch is published; handles are new for each attempt of
a task, so attempts never meet. A *direct* chunk is seen at once, and its number makes a repeat harmless. A few chunks
are under way at a time, no more: the broker's pace is the task's. Knows no Spark and no Arrow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlencode

import msgspec

from driftq.client.calls import streams
from driftq.client.calls.queue import PACKED, post, reading, refusal, send_packed
from driftq.client.errors import DriftQError, InvalidCall
from driftq.client.transport.sansio import Call, RetryOptions
from driftq.wire.admin import ForgottenInfo, PublishedInfo, StagedInfo
from driftq.wire.streams import is_json, join_json

if TYPE_CHECKING:
    from driftq.client.transport.sync_transport import Transport
    from driftq.spark.sink.options import WriteOptions

UNDER_WAY_MAX = 2
FORGET_PATIENCE = RetryOptions(timeout_ms=5_000, deadline_ms=5_000, first_contact_ms=1_000)


class Packable(Protocol):
    """A chunk, as far as sending it goes."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def spread(self) -> bool: ...
    @property
    def seq(self) -> int: ...
    @property
    def rows(self) -> int: ...
    def pack(self, producer: str = ..., epoch: int = ..., *, compress: bool = ...) -> bytes: ...
    def values(self) -> list[bytes]: ...


# --- calls ------------------------------------------------------------------------------------------------------------


def stage(writer: str, handle: str, place: dict[str, object], batch: bytes, ttl_ms: int) -> Call[StagedInfo]:
    """One batch under a handle of its own. `place` is a topic and partition, or the path of a stream."""
    query = {"writer": writer, "handle": handle, "chunk": 0, "ttl_ms": ttl_ms, **place}
    path = f"/v1/stages?{urlencode(query)}"
    return Call("POST", path, reading(StagedInfo), refusal=refusal, body=batch, content_type=PACKED, idempotent=True)


def publish(writer: str, batch_id: int, handles: Sequence[str]) -> Call[PublishedInfo]:
    """Make handles seen, in this order, once for each batch of the writer."""
    body = {"writer": writer, "batch": batch_id, "handles": handles}
    return post("/v1/stages/publish", body, reading(PublishedInfo), idempotent=True)


def forget(writer: str, handles: Sequence[str]) -> Call[ForgottenInfo]:
    body = {"writer": writer, "handles": handles}
    return post("/v1/stages/forget", body, reading(ForgottenInfo), idempotent=True)


def forget_quietly(transport: Transport, writer: str, handles: Sequence[str]) -> None:
    """What is not forgotten now goes by itself: with the writer's next batch, or when its time is over."""
    if handles:
        try:
            transport.execute(forget(writer, handles), FORGET_PATIENCE)
        except DriftQError:
            return


# --- sending ----------------------------------------------------------------------------------------------------------


class ChunkUpload:
    """Chunks under way, in threads of their own: Spark makes the next rows while the broker syncs the last.

    With one thread chunks arrive in order, which numbered chunks need.
    """

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, "driftq-sink")
        self._under_way: deque[Future[None]] = deque()

    def put(self, send: Callable[[], None]) -> None:
        """Returns when there is room; raises what went wrong with an earlier chunk."""
        while len(self._under_way) >= UNDER_WAY_MAX:
            self._under_way.popleft().result()
        self._under_way.append(self._pool.submit(send))

    def drain(self) -> None:
        while self._under_way:
            self._under_way.popleft().result()

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


class SinkTarget:
    """Where the chunks of one task attempt go."""

    def __init__(self, transport: Transport, options: WriteOptions, writer: str, batch_id: int, task: int) -> None:
        self._transport = transport
        self._options = options
        self._writer = writer
        self._batch_id = batch_id
        self._task = task
        self._content_type = self._type_of_stream() if options.stream else ""

    def _type_of_stream(self) -> str:
        info = self._transport.execute(streams.describe(self._options.stream))
        if info.closed:
            raise InvalidCall(f"the stream {self._options.stream} is closed; nothing can be written there any more")
        return info.content_type

    def _checked_values(self, chunk: Packable) -> list[bytes]:
        """Values for a stream of JSON must be JSON, each of them one."""
        values = chunk.values()
        try:
            read = msgspec.json.decode(join_json(values), type=list[msgspec.Raw])
        except msgspec.DecodeError as error:
            raise InvalidCall(f"column value: the stream {self._options.stream} holds JSON: {error}") from None
        if len(read) != len(values):
            raise InvalidCall(f"column value: the stream {self._options.stream} holds JSON, one value in each row")
        return values


class StagedTarget(SinkTarget):
    """Chunks lie under handles until the driver publishes them."""

    threads = UNDER_WAY_MAX

    def __init__(
        self, transport: Transport, options: WriteOptions, writer: str, batch_id: int, task: int, attempt: str
    ) -> None:
        super().__init__(transport, options, writer, batch_id, task)
        self._attempt = attempt
        self.handles: list[str] = []

    def admit(self, chunk: Packable) -> Callable[[], None]:
        """Give the chunk its handle now, so that the order of handles is the order of chunks."""
        handle = f"{self._writer}/{self._batch_id}/{self._task}/{self._attempt}/{len(self.handles)}"
        self.handles.append(handle)
        return lambda: self._send(handle, chunk)

    def _send(self, handle: str, chunk: Packable) -> None:
        place: dict[str, object] = {"path": self._options.stream}
        if not self._options.stream:
            place = {"topic": chunk.topic, "partition": chunk.partition}
        elif is_json(self._content_type):
            self._checked_values(chunk)
        batch = chunk.pack(compress=self._options.compress)
        self._transport.execute(stage(self._writer, handle, place, batch, self._options.stage_ttl_ms))


class DirectTarget(SinkTarget):
    """Chunks are numbered: the batch is the epoch, the chunk is the seq. A repeat is known by its number, an older
    batch is refused, and the same number with other bytes is, too."""

    threads = 1
    handles: Sequence[str] = ()

    def admit(self, chunk: Packable) -> Callable[[], None]:
        return lambda: self._send(chunk)

    def _send(self, chunk: Packable) -> None:
        producer = f"{self._writer}/{self._task}{'/spread' if chunk.spread else ''}"
        if self._options.stream:
            values = self._checked_values(chunk) if is_json(self._content_type) else chunk.values()
            body = streams.body_of(self._content_type, values)
            numbered = (producer, self._batch_id, chunk.seq)
            self._transport.execute(streams.append(self._options.stream, body, self._content_type, producer=numbered))
            return
        batch = chunk.pack(producer, self._batch_id, compress=self._options.compress)
        self._transport.execute(send_packed(chunk.topic, chunk.partition, batch, has_producer=True))
