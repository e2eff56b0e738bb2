"""Where a fork begins. Its anchor is an offset of the source; a sub-offset goes on into the append that starts there:
so many records, or, if that append is one piece of bytes, so many bytes, which the fork then keeps as a record of its
own."""

from __future__ import annotations

from typing import NamedTuple

from driftq.core.case import Case
from driftq.core.commands import CreateStream
from driftq.core.replies import Rejected
from driftq.core.streams import Stream
from driftq.wire.errors import Code
from driftq.wire.records import pack_one


class Fork(NamedTuple):
    """The source, where it was anchored, the first offset that is the fork's own, and a cut piece that opens it."""

    source: Stream
    anchor: int
    start_offset: int
    prefix: bytes = b""
    prefix_bytes: int = 0


def _is_json(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower() == "application/json"


def fork_of(case: Case, source: Stream, command: CreateStream) -> Fork | Rejected:
    wanted = command.content_type.partition(";")[0].strip().lower()
    if wanted and wanted != source.created.content_type.partition(";")[0].strip().lower():
        return Rejected(Code.CONFLICT, f"the source holds {source.created.content_type}, not {command.content_type}")
    end = case.state.logs[source.log_id].end
    anchor = command.fork_offset if command.fork_offset is not None else end
    if not 0 <= anchor <= end:
        return Rejected(Code.INVALID_ARGUMENT, f"the source ends at {end}; it cannot be forked at {anchor}")
    sub = command.fork_sub_offset or 0
    if sub == 0:
        return Fork(source, anchor, anchor)
    if anchor == end:
        return Rejected(Code.INVALID_ARGUMENT, "there is no append behind the fork offset to go into")
    return _into(case, source, anchor, sub)


def _into(case: Case, source: Stream, anchor: int, sub: int) -> Fork | Rejected:
    log_id, _, end = case.state.streams.resolve(source, anchor, case.state.logs[source.log_id].end)[0]
    if anchor >= case.reader.end(log_id):
        return Rejected(Code.INVALID_ARGUMENT, "the append behind the fork offset is not durable yet")
    if _is_json(source.created.content_type):
        inside = min(end, case.reader.batch_end(log_id, anchor)) - anchor  # a fork may end in the middle of an append
        if sub > inside:
            return Rejected(Code.INVALID_ARGUMENT, f"the append at the fork offset has {inside} messages, not {sub}")
        return Fork(source, anchor, anchor + sub)
    value = case.reader.record(log_id, anchor).value
    if sub > len(value):
        return Rejected(Code.INVALID_ARGUMENT, f"the append at the fork offset has {len(value)} bytes, not {sub}")
    if sub == len(value):
        return Fork(source, anchor, anchor + 1)
    return Fork(source, anchor, anchor, pack_one(value[:sub]), sub)
