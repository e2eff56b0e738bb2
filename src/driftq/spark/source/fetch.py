"""Fetches ranges of packed records, of partitions and of streams, and notices when they are not there any more.

Built on the client's transport: calls are repeated while the broker does not answer, for as long as the options say.
A reused worker keeps its connections from task to task. Knows nothing of Spark and does not look into records.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlencode

from driftq.client.calls import admin
from driftq.client.calls.queue import refusal, segment
from driftq.client.errors import Gone, InvalidCall, NotFound, Refused
from driftq.client.transport.http import HttpReply, address_of
from driftq.client.transport.sansio import Call, RetryOptions
from driftq.client.transport.sync_transport import Transport

if TYPE_CHECKING:
    from driftq.spark.source.offsets import OffsetRange
    from driftq.spark.source.options import BrokerOptions, ReadOptions

ATTEMPT_MS = 30_000

_transports: dict[tuple[BrokerOptions, int], Transport] = {}


class DataLoss(Exception):
    """Records that should be read are not there any more."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}. Records may have been lost before they were read. Set failOnDataLoss=false to go on with what is "
            "there, or start with a new checkpoint."
        )


def transport_of(connection: BrokerOptions, *, first_contact_ms: int | None = None) -> Transport:
    """One for each broker and process. A task waits for a broker that starts again even if it never met it; who plans
    a query hears soon that nobody is there."""
    first_contact_ms = connection.retry_ms if first_contact_ms is None else min(first_contact_ms, connection.retry_ms)
    found = _transports.get((connection, first_contact_ms))
    if found is None:
        patience = RetryOptions(ATTEMPT_MS, connection.retry_ms, first_contact_ms=first_contact_ms)
        found = Transport(address_of(connection.url, connection.token), patience)
        _transports[connection, first_contact_ms] = found
    return found


class FetchedRun(NamedTuple):
    """A run of batches: what they hold of [first, next_offset) counts. `start` and `end` are the log's own now; `made`
    is when it was made, where the broker says so."""

    data: bytes | bytearray
    first: int
    next_offset: int
    start: int
    end: int
    made: str


def fetch_call(path: str, offset: int | None, end: int, max_bytes: int) -> Call[FetchedRun]:
    """Records of a partition or a stream, by the path that `records_path` gives. An offset of None is a stream's
    start."""

    def read(reply: HttpReply) -> FetchedRun:
        following, start, last = (int(reply.headers[f"driftq-{name}-offset"]) for name in ("next", "start", "end"))
        first = start if offset is None else offset
        return FetchedRun(reply.body, first, following, start, last, reply.headers.get("driftq-created-at", ""))

    asked = {"offset": offset, "end": end, "max_bytes": max_bytes}
    query = urlencode({name: value for name, value in asked.items() if value is not None})
    joint = "&" if "?" in path else "?"
    return Call("GET", f"{path}{joint}{query}", read, refusal=refusal, repeatable=True)


def records_path(topic: str, partition: int, *, stream: bool) -> str:
    if stream:
        return f"/v1/streams/records?{urlencode({'stream': topic})}"
    return f"/v1/topics/{segment(topic)}/partitions/{partition}/records"


def runs(transport: Transport, task: OffsetRange, options: ReadOptions) -> Iterator[FetchedRun]:
    """The batches that cover a range, a fetch at a time. What is gone raises `DataLoss`, or is passed over."""
    name = f"{task.topic}/{task.partition}" if not options.streams else task.topic
    path = records_path(task.topic, task.partition, stream=bool(options.streams))
    offset = task.start
    while offset < task.end:
        try:
            found = transport.ask(fetch_call(path, offset, task.end, options.fetch_bytes))
        except (Gone, NotFound, InvalidCall) as error:
            if options.fail_on_loss:
                raise DataLoss(f"{name} from offset {offset}: {error.message}") from None
            offset = _behind(error, offset, task.end)
            continue
        if options.fail_on_loss and found.made and task.made and found.made != task.made:
            raise DataLoss(f"{name} was deleted while it was read, and made again")
        if found.next_offset <= offset:
            if options.fail_on_loss:
                raise DataLoss(f"{name} ends at {found.end}, before offset {task.end}")
            return
        yield found
        offset = found.next_offset
    if options.fail_on_loss and not options.streams:
        _refuse_another(transport, task)


def ahead(found: Iterator[FetchedRun]) -> Iterator[FetchedRun]:
    """The same runs, each fetched while the one before it is worked on."""
    with ThreadPoolExecutor(1, "driftq-fetch") as pool:
        coming = pool.submit(next, found, None)
        while (run := coming.result()) is not None:
            coming = pool.submit(next, found, None)
            yield run


def _behind(error: Refused, offset: int, end: int) -> int:
    """Where reading can go on behind what is gone: nowhere when the log itself is, or when it is too short."""
    if isinstance(error, Gone):
        following = error.details.get("earliest_offset", error.details.get("next_offset", end))
        return max(offset + 1, int(following))
    return end


def _refuse_another(transport: Transport, task: OffsetRange) -> None:
    """A topic that was deleted and made again has other records under the same offsets. Times of creation only rise:
    if it still is the one that was planned, it was so all the time."""
    if not task.made:
        return
    try:
        made = transport.ask(admin.describe_topic(task.topic)).created_at
    except NotFound:
        made = ""
    if made != task.made:
        raise DataLoss(f"{task.topic} was deleted while it was read" + (", and made again" if made else ""))
