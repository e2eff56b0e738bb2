"""Questions about logs. They are commands, so that an answer waits until everything it rests on is durable: nobody is
told of a record, a stream or an end that a crash could take back. Reading renews a sliding lifetime; nothing else
here becomes a fact."""

from __future__ import annotations

from itertools import islice

from driftq.core import commands as c
from driftq.core import facts as f
from driftq.core.case import Case
from driftq.core.replies import ProducerView, Rejected, Reply, StreamEntry, StreamsListed, StreamView
from driftq.core.rules.streams import find
from driftq.core.streams import Stream
from driftq.wire.errors import Code

JSON_TYPE = "application/json"


def read_stream(case: Case, command: c.ReadStream) -> Reply:
    stream = find(case, command.path)
    if isinstance(stream, Rejected):
        return stream
    if command.renews:
        _renew(case, stream)
    created = stream.created
    inherited = tuple(case.state.streams.resolve(stream, 0, created.start_offset))
    return StreamView(
        stream.log_id,
        _earliest(case, stream.log_id, created.start_offset, inherited),
        case.state.logs[stream.log_id].end,
        stream.closed,
        created.content_type,
        created.ttl_s,
        created.expires_text,
        tuple((log_id, first, end) for log_id, first, end in inherited),
    )


def _earliest(case: Case, log_id: int, first: int, inherited: tuple[tuple[int, int, int], ...]) -> int:
    """The lowest offset from which everything can be read: a trim anywhere in a chain of forks ends the search."""
    start = case.state.logs[log_id].start
    if start > first:
        return start
    for source_id, source_first, source_end in reversed(inherited):
        start = min(max(case.state.logs[source_id].start, source_first), source_end)
        if start > source_first:
            return start
    return start


def _renew(case: Case, stream: Stream) -> None:
    """Written down at most once in a while, and well before the lifetime would end."""
    if stream.created.ttl_s is not None:
        rest_ms = min(case.limits.touch_ms, 100 * stream.created.ttl_s)
        if case.now_ms - stream.touched_ms >= rest_ms:
            case.facts.append(f.StreamTouched(stream.log_id, case.now_ms))


def read_partition(case: Case, command: c.ReadPartition) -> Reply:
    topic = case.state.topics.get(command.topic)
    if topic is None or not 0 <= command.partition < len(topic.log_ids):
        return Rejected(Code.NOT_FOUND, f"there is no partition {command.partition} of a topic {command.topic}")
    log = case.state.logs[topic.log_ids[command.partition]]
    return StreamView(log.log_id, log.start, log.end, False, JSON_TYPE)


def read_producer(case: Case, command: c.ReadProducer) -> Reply:
    stream = find(case, command.path)
    if isinstance(stream, Rejected):
        return stream
    state = case.state.logs[stream.log_id].producers.states.get(command.producer)
    if state is None:
        return Rejected(Code.NOT_FOUND, f"the stream knows no producer {command.producer!r}")
    last = state.window[-1] if state.window else None
    first, end = (last.first_offset, last.end_offset) if last is not None else (-1, -1)
    return ProducerView(command.producer, state.epoch, state.seq, first, end, state.at_ms)


def list_streams(case: Case, command: c.ListStreams) -> Reply:
    streams, logs = case.state.streams, case.state.logs
    alive = (
        stream
        for path in streams.paths_from(command.prefix, command.after)
        if not (stream := streams.by_path[path]).soft_deleted and not stream.is_over(case.now_ms)
    )
    found = list(islice(alive, command.limit + 1))
    entries = tuple(
        StreamEntry(
            stream.path,
            stream.created.content_type,
            logs[stream.log_id].end,
            stream.closed,
            stream.created.at_ms,
        )
        for stream in found[: command.limit]
    )
    return StreamsListed(entries, len(found) > command.limit)
