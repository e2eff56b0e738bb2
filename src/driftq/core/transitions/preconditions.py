"""The preconditions of an append to a stream: If-Match and Stream-Seq.

They are checked last, after closure, content type and the producer's sequence: a repeat of an append that was stored is
a duplicate, although the tail has moved on since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from driftq.core.model.replies import Rejected
from driftq.wire.errors import Code

if TYPE_CHECKING:
    from driftq.core.model.commands import AppendStream
    from driftq.core.state.logs import Log
    from driftq.core.state.streams import StreamRecord


def check_preconditions(stream: StreamRecord, log: Log, command: AppendStream) -> Rejected | None:
    """The refusal if the tail is not where the caller expects it, or Stream-Seq does not grow."""
    if command.if_match is not None and command.if_match != log.end:
        return Rejected(Code.TAIL_MOVED, f"the stream ends at {log.end}", {"end_offset": log.end})
    if command.stream_seq and stream.stream_seq and command.stream_seq.encode() <= stream.stream_seq.encode():
        message = f"Stream-Seq {command.stream_seq!r} does not come after {stream.stream_seq!r}"
        return Rejected(Code.SEQUENCE_REGRESSION, message, {"end_offset": log.end})
    return None
