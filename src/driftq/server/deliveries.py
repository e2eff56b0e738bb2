"""Messages on their way to a consumer: their bytes, and the lease under which the consumer holds them.

    claim ──▶ delivery ──▶ sent, held                PackedClaim: the body of a claim's reply
                 │            │                      lines: a delivery's messages as JSON objects
                 │            ├──▶ settled           held_runs: which messages a settle call names
                 │            └──▶ lease expired     (the broker's, see `core.transitions.expiry`)
                 ├──▶ never reached the consumer,    give_back: no attempt is counted
                 │    or too much for one reply
                 └──▶ its record cannot be read      set_aside: counts as a failed attempt, so it waits in backoff

The JSON is a `wire.claims.Delivered` or the content of a `wire.message.StoredMessage`, written by hand. A claim may
return thousands of messages, so the text of each is joined from bytes instead of encoding a Struct; a test compares the
two. The fields of a record's head are decoded and encoded again, never copied, because a client wrote them. A head that
cannot be read is replaced by an error, so that the other messages of a reply stay readable.
"""

from __future__ import annotations

import base64
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, json
from msgspec.structs import replace

from driftq.core.model import commands as c
from driftq.server.http.request import BadRequest
from driftq.server.http.response import Response
from driftq.storage.cold_segments import ColdRange
from driftq.storage.corruption import CorruptLog
from driftq.wire import records
from driftq.wire.claims import RefusedItem
from driftq.wire.errors import CODES, Code
from driftq.wire.message import BAD_HEAD, decode_head, encode_head
from driftq.wire.packed_claim import CLAIM_TYPE, PackedClaimHead, PackedRun, cut, pack_claim

if TYPE_CHECKING:
    from driftq.core.model.replies import Claimed, Delivery, Refusal
    from driftq.engine.engine import Engine
    from driftq.wire.claims import HeldItem


logger = logging.getLogger("driftq.claims")

_encode = json.Encoder().encode
READ_BYTES = 256 << 10  # read from the log at a time; at least a batch


class DeliveryLines:
    """The messages of a delivery, each as a JSON object without a line end. `offset` is that of the next one."""

    def __init__(self, engine: Engine, delivery: Delivery, token: str, until_ms: int) -> None:
        self._engine = engine
        self._delivery = delivery
        self._until_ms = delivery.until_ms or until_ms
        self._token = token
        self._lines: Iterator[bytes] | None = None
        self.offset = delivery.first
        self.held_bytes = 0  # of the batches that were read last

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if self._lines is None:
            self._lines = self._read()
        line = next(self._lines)
        self.offset += 1
        return line

    def take(self, size_bytes: int) -> list[bytes]:
        """The next messages, of about this size in all; none at the end. Raises `CorruptLog` if the next one is
        damaged."""
        if self._lines is None:
            self._lines = self._read()
        taken: list[bytes] = []
        try:
            for line in self._lines:
                taken.append(line)
                size_bytes -= len(line)
                if size_bytes <= 0:
                    break
        except (CorruptLog, ColdRange):
            self._lines = None
            if not taken:
                raise
        self.offset += len(taken)
        return taken

    def untake(self) -> None:
        """The last message is not sent."""
        self._lines = None
        self.offset -= 1

    def drop(self) -> None:
        """Free what was read ahead. It is read again when it is needed."""
        self._lines = None
        self.held_bytes = 0

    def _read(self) -> Iterator[bytes]:
        delivery = self._delivery
        front = b'{"partition":%d,"offset":' % delivery.partition
        token, until_ms = _encode(self._token), self._until_ms
        tail = b',"lease_version":%d,"token":%b,"lease_until_ms":%d' % (delivery.version, token, until_ms)
        middle = b',"attempts":%d,"last_error":%b' % (delivery.attempts, _encode(delivery.error))
        offset = self.offset
        while offset < delivery.end:
            batches = self._engine.read(delivery.log_id, offset, delivery.end, READ_BYTES)
            if not batches:
                return  # the log was deleted in the meantime
            self.held_bytes = sum(map(len, batches))
            for batch in batches:
                header = records.read_header(batch)
                first = max(offset, header.first_offset)
                stop = min(delivery.end, header.end_offset)
                stamp = b',"timestamp_ms":%d' % header.at_ms
                for record in self._engine.unpack(delivery.log_id, batch, header, first, stop):
                    yield b"".join((front, b"%d" % first, middle, tail, stamp, content(record), b"}"))
                    first += 1
                offset = first


# --- the body of a claim's reply, if it is packed; JSON is made in `handlers.claim_reply` ---


class PackedClaim:
    """A `PackedClaimHead` and the batches of its runs."""

    def __init__(self, reply: Claimed, bytes_max: int) -> None:
        self._reply = reply
        self._runs: list[PackedRun] = []
        self._batches: list[bytes] = []
        self.next_offset = 0
        self.left_bytes = bytes_max
        self.is_full = False

    def __len__(self) -> int:
        return len(self._runs)

    def add(self, engine: Engine, delivery: Delivery, first: int) -> Iterator[int]:
        before = len(self._batches)
        self.next_offset = first
        try:
            for batch, end in _batches(engine, delivery.log_id, first, delivery.end):
                if len(batch) > self.left_bytes and self._batches:
                    self.is_full = True
                    return
                self._batches.append(batch)
                self.left_bytes -= len(batch)
                self.next_offset = end
                yield len(batch)
        finally:
            if self.next_offset > first:
                self._runs.append(
                    PackedRun(
                        delivery.partition, first, self.next_offset, delivery.attempts, delivery.version,
                        delivery.until_ms or self._reply.until_ms, sum(map(len, self._batches[before:])),
                        delivery.error,
                    )
                )  # fmt: skip

    def response(self) -> Response:
        head = PackedClaimHead(self._reply.token, self._runs, refused_items(self._reply.refused))
        return Response(200, pack_claim(head, self._batches), CLAIM_TYPE)


SLICE_BYTES = 512 << 10  # of a reply that are made in one turn of the loop
SLICE_S = 0.005
PIECE_BYTES = 1 << 10  # a short message costs as much time as so many bytes


class ClaimReader:
    """Reads the messages of a claim into the body of its packed reply. What the body has no room for is given back: the
    broker estimates the sizes when it decides what is claimed."""

    def __init__(self, engine: Engine, claim: c.Claim, reply: Claimed, body: PackedClaim) -> None:
        self._engine = engine
        self._claim = claim
        self._reply = reply
        self._body = body
        self._slice_bytes = 0
        self._slice_ends_s = time.perf_counter() + SLICE_S
        self.damage: CorruptLog | None = None  # the last record that could not be read

    def slices(self) -> Iterator[None]:
        """Read everything. Yields where something else should run on the loop; small claims never do."""
        deliveries = self._reply.deliveries
        for index, delivery in enumerate(deliveries):
            if time.perf_counter() > self._slice_ends_s:  # one message may cost the unpacking of a whole batch
                yield
                self._next_slice()
            yield from self._read(delivery)
            if self._body.is_full:
                unsent = (replace(delivery, first=self._body.next_offset), *deliveries[index + 1 :])
                give_back(self._engine, self._claim, unsent, self._reply.token)
                return

    def _read(self, delivery: Delivery) -> Iterator[None]:
        """Damaged records are skipped and set aside."""
        body = self._body
        first = delivery.first
        while first < delivery.end:
            try:
                for size in body.add(self._engine, delivery, first):
                    self._slice_bytes += size + PIECE_BYTES
                    if self._slice_bytes > SLICE_BYTES:
                        yield
                        self._next_slice()
                return
            except ColdRange:
                body.is_full = True  # its records have left the cache: the rest goes back
                return
            except CorruptLog as error:
                logger.error("not delivered: %s", error)
                self.damage = error
                damaged_at = body.next_offset
                first = min(delivery.end, max(damaged_at + 1, error.end_offset))
                held = c.Held(delivery.partition, damaged_at, first, self._reply.token)
                set_aside(self._engine, self._claim, held)

    def _next_slice(self) -> None:
        self._slice_bytes = 0
        self._slice_ends_s = time.perf_counter() + SLICE_S


def _batches(engine: Engine, log_id: int, first: int, end: int) -> Iterator[tuple[bytes, int]]:
    """Batches that hold exactly the records [first, end) of a log, each with the offset after it."""
    while first < end:
        batches = engine.read(log_id, first, end, READ_BYTES)
        if not batches:
            return  # the topic was deleted while the reply was made
        for batch in batches:
            header = records.read_header(batch)
            stop = min(end, header.end_offset)
            yield cut(batch, header, first - header.first_offset, stop - first), stop
            first = stop


def refused_items(refused: Iterable[Refusal]) -> list[RefusedItem]:
    return [RefusedItem(item.partition, item.offset, CODES[item.code].error, item.message) for item in refused]


def lines(engine: Engine, delivery: Delivery, token: str, until_ms: int) -> Iterator[bytes]:
    """The messages of a delivery, each as a JSON object without a line end."""
    return DeliveryLines(engine, delivery, token, until_ms)


def content(record: records.Record) -> bytes:
    """`,"key":…,"value":…` and the fields of the head. Bytes that are not text are sent as base64."""
    head = _head(record.head) if record.head else b""
    return b"".join((b',"key":', _text(record.key), _value(record.value), head))


def _head(text: bytes) -> bytes:
    try:
        fields = encode_head(decode_head(text))
    except BAD_HEAD as error:
        message = f"the head of this record (envelope, routing, job) cannot be read: {error}"
        return b',"error":"%b","message":%b' % (Code.DATA_CORRUPT.encode(), _encode(message))
    return b"," + fields[1:-1] if fields else b""


def _value(value: bytes) -> bytes:
    try:
        return b',"value":' + _encode(value.decode())
    except UnicodeDecodeError:
        return b',"value":"","value_base64":"%b"' % base64.b64encode(value)


def _text(raw: bytes) -> bytes:
    return _encode(raw.decode("utf-8", "replace")) if raw else b'""'


# --- messages that a consumer holds ---

SETTLE_MAX = 10_000  # items of a settle call
SETTLE_MESSAGES_MAX = 100_000  # messages in them


def held_runs(items: Sequence[HeldItem]) -> tuple[c.Held, ...]:
    """The messages of a settle call. Neighbours under one token become one run, so that acking a whole claim costs as
    much as acking one message."""
    if not 1 <= len(items) <= SETTLE_MAX:
        raise BadRequest(f"messages must name 1 to {SETTLE_MAX} messages")
    runs: list[c.Held] = []
    count = 0
    for item in items:
        end = item.end if item.end is not None else item.offset + 1
        if end <= item.offset:
            raise BadRequest("end must be greater than offset")
        count += end - item.offset
        last = runs[-1] if runs else None
        if item.result is not UNSET or item.progress is not UNSET:
            if end != item.offset + 1:
                raise BadRequest("a result or a progress belongs to one message: name it without `end`")
            result, progress = json_bytes(item.result), json_bytes(item.progress)
            runs.append(c.Held(item.partition, item.offset, end, item.token, result, progress))
        elif (
            last is not None
            and (last.partition, last.end, last.token) == (item.partition, item.offset, item.token)
            and not (last.result or last.progress)
        ):
            runs[-1] = c.Held(item.partition, last.first, end, item.token)
        else:
            runs.append(c.Held(item.partition, item.offset, end, item.token))
    if count > SETTLE_MESSAGES_MAX:
        raise BadRequest(f"one call may name {SETTLE_MESSAGES_MAX} messages, not {count}: send several calls")
    return tuple(runs)


def json_bytes(value: Any) -> bytes:
    """A result or a progress as it is stored: compact JSON, whatever the client sent; empty if it sent none."""
    return b"" if value is UNSET else json.encode(value)


def give_back(engine: Engine, claim: c.Claim, deliveries: Iterable[Delivery], token: str) -> None:
    """Release messages that were claimed and not sent."""
    held = tuple(c.Held(delivery.partition, delivery.first, delivery.end, token) for delivery in deliveries)
    if held:
        engine.submit_to(c.ReleaseMessages(claim.topic, claim.group, claim.owner, held, sent=False), _ignore)


def set_aside(engine: Engine, claim: c.Claim, held: c.Held) -> None:
    """Nack messages whose records cannot be read. Released, they would be claimed again at once, and again."""
    engine.submit_to(c.Nack(claim.topic, claim.group, claim.owner, (held,), "the record cannot be read"), _ignore)


def _ignore(_: object) -> None:
    """The claim may have ended in the meantime; then there is nothing to do."""
