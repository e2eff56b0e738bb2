"""What a claim returned: the messages, in runs that are decoded when they are read, and the acks that were refused.

A broker that packs claims sends batches of records (`wire.packed_claim`). A `MessageRun` is one of them with what its
lease says. Its messages are cheap: their values, keys and heads stay in the batch until a handler asks for them. An
older broker answers in JSON; then each message is decoded already.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from driftq.wire.claims import ClaimReply, Delivered, HeldItem, RefusedItem
from driftq.wire.errors import Code
from driftq.wire.message import BAD_HEAD, Head, decode_head

if TYPE_CHECKING:
    from driftq.client.transport.http import HttpReply
    from driftq.wire.packed_claim import BatchColumns, PackedRun
    from driftq.wire.records import Header

CLAIM_TYPE = "application/x-driftq-claim"
ACCEPTED = (("Accept", f"{CLAIM_TYPE}, application/json"),)

_json = msgspec.json.Decoder(ClaimReply)


class MessageRun:
    """Messages that follow each other, as one batch of records."""

    __slots__ = ("_batch", "_columns", "_header", "count", "first", "lease", "partition", "timestamp_ms", "token")

    def __init__(self, lease: PackedRun, token: str, header: Header, batch: bytes) -> None:
        self.lease = lease  # attempts, version and end of the lease: the same for all of them
        self.token = token
        self.partition = lease.partition
        self.first = header.first_offset
        self.count = header.count
        self.timestamp_ms = header.at_ms
        self._header = header
        self._batch = batch
        self._columns: BatchColumns | None = None

    @property
    def columns(self) -> BatchColumns:
        columns = self._columns
        if columns is None:
            from driftq.wire.packed_claim import BatchColumns  # noqa: PLC0415  # see `read_claim`

            columns = self._columns = BatchColumns(self._batch, self._header)
        return columns

    def held(self) -> HeldItem:
        """All of it, in a call that settles."""
        return HeldItem(self.partition, self.first, self.first + self.count, self.token)

    def key(self, index: int) -> str:
        return self.columns.key(index).decode("utf-8", "replace")

    def delivered(self, index: int) -> Delivered:
        """A message as the JSON of a claim describes it. A head that cannot be read is replaced by an error."""
        lease, columns = self.lease, self.columns
        raw = columns.value(index)
        value, value_base64 = "", None
        try:
            value = raw.decode()
        except UnicodeDecodeError:
            value_base64 = base64.b64encode(raw).decode("ascii")
        head, error, message = Head(), "", ""
        try:
            head = decode_head(columns.head(index))
        except BAD_HEAD as reason:
            error = str(Code.DATA_CORRUPT)
            message = f"the head of this record (envelope, routing, job) cannot be read: {reason}"
        return Delivered(
            self.partition, self.first + index, lease.attempts, lease.last_error, lease.lease_version, self.token,
            lease.lease_until_ms, self.timestamp_ms, self.key(index), value, value_base64,
            head.envelope, head.routing, head.job, head.dlq, head.job_batch, error, message,
        )  # fmt: skip


class ClaimResult(NamedTuple):
    """The reply to a claim. One of `runs` and `messages` is empty, by the form in which the broker answered."""

    runs: list[MessageRun]
    messages: list[Delivered]
    refused: list[RefusedItem]  # acks that were sent with the claim
    is_packed: bool  # so the broker takes acks with a claim


def read_claim(reply: HttpReply) -> ClaimResult:
    if not reply.headers.get("content-type", "").startswith(CLAIM_TYPE):
        body = _json.decode(reply.body)
        return ClaimResult([], body.messages, body.refused, is_packed=False)
    from driftq.wire.packed_claim import unpack_claim  # noqa: PLC0415  # the record codec costs 10 ms to import

    head, batches = unpack_claim(bytes(reply.body))
    runs = [MessageRun(run, head.token, header, batch) for run, header, batch in batches]
    return ClaimResult(runs, [], head.refused, is_packed=True)
