"""Fetches ranges of packed records from partitions and streams, and notices when records are gone.

Built on the client's transport: a call is retried while the broker does not answer, for as long as `retryMs` says. A
Python worker that Spark reuses keeps its connections from task to task. Knows nothing of Spark and does not look into
records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from urllib.parse import urlencode

from msgspec import json

from driftq.client.calls import admin
from driftq.client.calls.queue import refusal, segment
from driftq.client.errors import Gone, InvalidCall, NotFound, Refused
from driftq.client.transport.http import HttpReply, parse_address
from driftq.client.transport.sansio import Call, RetryOptions
from driftq.client.transport.sync_transport import Transport
from driftq.spark.source.archived_ranges import archive_reader
from driftq.wire.topics import ArchivedRange

if TYPE_CHECKING:
    from driftq.spark.source.offsets import OffsetRange
    from driftq.spark.source.options import BrokerOptions, ReadOptions
    from driftq.wire.topics import TopicOffsetsReply

T = TypeVar("T")

ATTEMPT_MS = 30_000
CALL_TOPICS = 1_000  # of one call for offsets

_transports: dict[tuple[BrokerOptions, int], Transport] = {}


class DataLoss(Exception):
    """Records that should be read are gone."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}. Records may have been lost before they were read. Set failOnDataLoss=false to continue with "
            "what is left, or start with a new checkpoint."
        )


def transport_of(connection: BrokerOptions, *, first_contact_ms: int | None = None) -> Transport:
    """The transport to a broker, one for each process. A task waits `retry_ms` for a broker that restarts, even if it
    never reached it before; the planner passes a shorter `first_contact_ms` to fail soon if no broker is there."""
    first_contact_ms = connection.retry_ms if first_contact_ms is None else min(first_contact_ms, connection.retry_ms)
    transport = _transports.get((connection, first_contact_ms))
    if transport is None:
        retry = RetryOptions(ATTEMPT_MS, connection.retry_ms, first_contact_ms=first_contact_ms)
        transport = Transport(parse_address(connection.url, connection.token, connection.tls_files), retry)
        _transports[connection, first_contact_ms] = transport
    return transport


class FetchedBatches(NamedTuple):
    """The reply to one fetch. The batches may begin before `first`: only records in [first, next_offset) count. If they
    are `archived`, there is no data, but the place where it is."""

    data: bytes | bytearray
    first: int
    next_offset: int
    start: int  # of the log, now
    end: int  # of the log, now
    created_at: str  # of the log, if the broker reports it
    last: str  # what identifies the last batch of the log, if it was asked for
    archived: ArchivedRange | None = None


def fetch_call(
    path: str, offset: int | None, end: int, max_bytes: int, *, locate: bool = False
) -> Call[FetchedBatches]:
    """A fetch from a partition or a stream; `path` is that of `records_path`. An offset of None is a stream's start.
    With `locate`, records that are only in the archive are not sent, but where they are."""

    def read(reply: HttpReply) -> FetchedBatches:
        next_offset, start, log_end = (int(reply.headers[f"driftq-{name}-offset"]) for name in ("next", "start", "end"))
        first = start if offset is None else offset
        created_at, last = (reply.headers.get(f"driftq-{name}", "") for name in ("created-at", "last-batch"))
        archived: ArchivedRange | None = None
        if locate and reply.headers.get("content-type", "").startswith("application/json"):
            archived = json.decode(reply.body, type=ArchivedRange)
        data = reply.body if archived is None else b""
        return FetchedBatches(data, first, next_offset, start, log_end, created_at, last, archived)

    parameters = {"offset": offset, "end": end, "max_bytes": max_bytes, "locate": "true" if locate else None}
    query = urlencode({name: value for name, value in parameters.items() if value is not None})
    separator = "&" if "?" in path else "?"
    return Call("GET", f"{path}{separator}{query}", read, refusal=refusal, idempotent=True)


def records_path(topic: str, partition: int, *, stream: bool) -> str:
    if stream:
        return f"/v1/streams/records?{urlencode({'stream': topic})}"
    return f"/v1/topics/{segment(topic)}/partitions/{partition}/records"


def fetch_ranges(
    transport: Transport, ranges: Sequence[OffsetRange], options: ReadOptions
) -> Iterator[tuple[OffsetRange, FetchedBatches]]:
    """The batches of some ranges, one range after the other."""
    for piece in ranges:
        for batches in fetch_range(transport, piece, options):
            yield piece, batches
    if options.fail_on_loss and not options.streams:
        _check_same_topics(transport, ranges)


def fetch_range(transport: Transport, task: OffsetRange, options: ReadOptions) -> Iterator[FetchedBatches]:
    """The batches that cover a range, one fetch at a time. Records that are gone raise `DataLoss`, or are skipped."""
    name = f"{task.topic}/{task.partition}" if not options.streams else task.topic
    path = records_path(task.topic, task.partition, stream=bool(options.streams))
    offset = task.start
    archive = archive_reader(options.archive) if options.archive is not None else None
    while offset < task.end:
        locate = archive is not None and not archive.is_away
        try:
            batches = transport.execute(fetch_call(path, offset, task.end, options.fetch_bytes, locate=locate))
        except (Gone, NotFound, InvalidCall) as error:
            if options.fail_on_loss:
                raise DataLoss(f"{name} from offset {offset}: {error.message}") from None
            offset = _offset_after_loss(error, offset, task.end)
            continue
        if options.fail_on_loss and batches.created_at and task.created_at not in ("", batches.created_at):
            raise DataLoss(f"{name} was deleted and created again while it was read")
        if batches.next_offset <= offset:
            if options.fail_on_loss:
                raise DataLoss(f"{name} ends at {batches.end}, before offset {task.end}")
            return
        if archive is not None and batches.archived is not None:
            data = archive.read(batches.archived)
            if data is None:
                continue  # it is away now: the broker reads it
            batches = batches._replace(data=data)
        yield batches
        offset = batches.next_offset


def prefetched(fetches: Iterator[T]) -> Iterator[T]:
    """The same fetches, each made in a thread while the caller works on the one before it."""
    with ThreadPoolExecutor(1, "driftq-fetch") as pool:
        pending = pool.submit(next, fetches, None)
        while (fetched := pending.result()) is not None:
            pending = pool.submit(next, fetches, None)
            yield fetched


def _offset_after_loss(error: Refused, offset: int, end: int) -> int:
    """The first offset that can be read after the records that are gone; `end` if the log itself is gone or shorter."""
    if isinstance(error, Gone):
        readable = error.details.get("earliest_offset", error.details.get("next_offset", end))
        return max(offset + 1, int(readable))
    return end


def _check_same_topics(transport: Transport, ranges: Sequence[OffsetRange]) -> None:
    """A topic that was deleted and created again has other records under the same offsets. Creation times only grow:
    if the topic is still the one that was planned, it was so during the whole read."""
    planned = {piece.topic: piece.created_at for piece in ranges if piece.created_at}
    replies = offset_replies(transport, list(planned))
    created = {topic.topic: topic.created_at for reply in replies for topic in reply.topics}
    for topic, created_at in planned.items():
        if created.get(topic) != created_at:
            again = " and created again" if topic in created else ""
            raise DataLoss(f"{topic} was deleted{again} while it was read")


def offset_replies(transport: Transport, names: Sequence[str], *, last: bool = False) -> Iterator[TopicOffsetsReply]:
    """The offsets of the topics that exist, of a thousand topics at a time."""
    while names:
        reply = transport.execute(admin.offsets_of_topics(names[:CALL_TOPICS], last=last))
        yield reply
        names = names[reply.answered :]
