"""Asks the broker: which logs there are, how far they reach, and for ranges of packed records.

Built on the client's transport: calls are repeated while the broker does not answer, for as long as the options say.
A reused worker keeps its connections from task to task. Knows nothing of Spark and does not look into records.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple
from urllib.parse import urlencode

from driftq.client import admincalls
from driftq.client.blocking import Transport
from driftq.client.calls import refusal, segment
from driftq.client.errors import Gone, InvalidCall, NotFound, Refused
from driftq.client.flows import Call, Patience
from driftq.client.http import Reply, address_of
from driftq.spark.offsets import LogName, Range, Span
from driftq.spark.options import BadOption, Connection, ReadOptions
from driftq.wire.times import to_rfc3339

FIRST_CONTACT_MS = 10_000
ATTEMPT_MS = 30_000
LOOKS_MAX = 8

_transports: dict[Connection, Transport] = {}


class DataLoss(Exception):
    """Records that should be read are not there any more."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}. Records may have been lost before they were read. Set failOnDataLoss=false to go on with what is "
            "there, or start with a new checkpoint."
        )


def transport_of(connection: Connection) -> Transport:
    """One for each broker and process."""
    found = _transports.get(connection)
    if found is None:
        patience = Patience(
            ATTEMPT_MS, connection.retry_ms, first_contact_ms=min(FIRST_CONTACT_MS, connection.retry_ms)
        )
        found = _transports[connection] = Transport(address_of(connection.url, connection.token), patience)
    return found


class Fetched(NamedTuple):
    """A run of batches. `next_offset` is where to go on; `end` is where the log ends now."""

    data: bytes
    next_offset: int
    end: int


def _fetched(reply: Reply) -> Fetched:
    headers = reply.headers
    return Fetched(reply.body, int(headers["driftq-next-offset"]), int(headers["driftq-end-offset"]))


def fetch_call(topic: str, partition: int, offset: int, end: int, max_bytes: int) -> Call[Fetched]:
    query = urlencode({"offset": offset, "end": end, "max_bytes": max_bytes})
    path = f"/v1/topics/{segment(topic)}/partitions/{partition}/records?{query}"
    return Call("GET", path, _fetched, refusal=refusal, repeatable=True)


# --- which logs there are ---------------------------------------------------------------------------------------------


def spans_of(transport: Transport, options: ReadOptions, *, known: Sequence[LogName] = ()) -> list[Span]:
    """Every log that the options name, as it is now. A topic that is named, was never read and is not there is an
    error; one of `known` that is gone is simply left out, and the planner sees the loss."""
    names = list(options.topics) or list(dict.fromkeys(topic for topic, _ in options.assigned))
    if options.pattern:
        fits = re.compile(options.pattern)
        names = [name for name in transport.ask(admincalls.list_topics()) if fits.fullmatch(name)]
    read_before = {topic for topic, _ in known}
    found: list[Span] = []
    for name in names:
        try:
            found.extend(_topic_spans(transport, name))
        except NotFound as error:
            if name not in read_before and not options.pattern:
                raise BadOption(f"there is no topic {name} at {options.connection.url}: {error.message}") from None
    if options.assigned:
        missing = set(options.assigned) - {span.log for span in found} - set(known)
        if missing:
            topic, partition = min(missing)
            raise BadOption(f"assign names {topic}/{partition}, which is not there")
        found = [span for span in found if span.log in set(options.assigned)]
    return found


def _topic_spans(transport: Transport, topic: str) -> list[Span]:
    """The description has the time of creation and sizes, the offsets have what is durable."""
    told = transport.ask(admincalls.describe_topic(topic))
    reach = transport.ask(admincalls.offsets(topic))
    sizes = {each.partition: each.payload_bytes / each.messages for each in told.partitions if each.messages}
    return [
        Span(topic, each.partition, each.start, each.end, sizes.get(each.partition, 0.0), told.created_at)
        for each in reach.partitions
    ]


def offsets_at(transport: Transport, spans: Sequence[Span], at_ms: int) -> dict[LogName, int]:
    """For each log the first offset at or after a time; its end when there is none."""
    found = {}
    for topic in dict.fromkeys(span.topic for span in spans):
        for each in transport.ask(admincalls.offsets(topic, at=to_rfc3339(at_ms))).partitions:
            found[topic, each.partition] = each.end if each.at is None else each.at
    return {span.log: found.get(span.log, span.end) for span in spans}


def oldest_s(transport: Transport, waiting: Sequence[Range], now_s: float) -> float:
    """The age of the oldest record that waits, looked up where most wait: a progress report is no place for hundreds of
    questions."""
    found_ms: list[int] = []
    for each in waiting[:LOOKS_MAX]:
        with contextlib.suppress(Refused):
            found = transport.ask(admincalls.peek(each.topic, each.partition, offset=each.start, limit=1))
            found_ms.extend(message.timestamp_ms for message in found)
    return round(max(0.0, now_s - min(found_ms) / 1_000), 3) if found_ms else 0.0


# --- what is in them --------------------------------------------------------------------------------------------------


def runs(transport: Transport, task: Range, fetch_bytes: int, *, fail_on_loss: bool) -> Iterator[Fetched]:
    """The batches that cover a range, a fetch at a time. The first and the last may reach beyond it.

    What is gone raises `DataLoss`, or is passed over.
    """
    offset = task.start
    while offset < task.end:
        try:
            found = transport.ask(fetch_call(task.topic, task.partition, offset, task.end, fetch_bytes))
        except (Gone, NotFound, InvalidCall) as error:
            if fail_on_loss:
                raise DataLoss(f"{task.topic}/{task.partition} from offset {offset}: {error.message}") from None
            offset = _behind(error, offset, task.end)
            continue
        if found.next_offset <= offset:
            if fail_on_loss:
                raise DataLoss(f"{task.topic}/{task.partition} ends at {found.end}, before offset {task.end}")
            return
        yield found
        offset = found.next_offset
    _refuse_another(transport, task, fail_on_loss=fail_on_loss)


def ahead(found: Iterator[Fetched]) -> Iterator[Fetched]:
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


def _refuse_another(transport: Transport, task: Range, *, fail_on_loss: bool) -> None:
    """A topic that was deleted and made again has other records under the same offsets. Times of creation only rise:
    if it still is the one that was planned, it was so all the time."""
    if not task.made or not fail_on_loss:
        return
    try:
        made = transport.ask(admincalls.describe_topic(task.topic)).created_at
    except NotFound:
        made = ""
    if made != task.made:
        raise DataLoss(f"the topic {task.topic} was deleted while it was read" + (", and made again" if made else ""))
