"""Notices that a log is not the one that was read before: its broker was restored from an older copy.

    checkpoint: read up to 900; the log ended at 1000, with batch X          "seen": {"orders": {"0": [1000, "X"]}}
    the broker is restored from a copy with 600 records, and grows to 1200
    resume at 900: the batch that ends at 1000 is not X                      records 600 to 900 were replaced: fail

The copy has the same topics with the same times of creation, and the log is longer than the checkpoint, so nothing else
shows it. One call for each log reads the batch that was the last one. It is made when a query resumes from a
checkpoint, and when the broker was started again under a running query. Knows nothing of Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from driftq.client.errors import InvalidCall, Refused
from driftq.spark.source.discovery import planner_transport
from driftq.spark.source.fetch import fetch_call, records_path
from driftq.wire.records import read_header
from driftq.wire.topics import batch_identity

if TYPE_CHECKING:
    from driftq.client.transport.sync_transport import Transport
    from driftq.spark.source.offsets import LogName, ReadProgress, SeenBatch
    from driftq.spark.source.options import ReadOptions


def replaced_logs(options: ReadOptions, progress: ReadProgress) -> dict[LogName, str]:
    """The logs whose last batch at the time of `progress` is not there any more, each with a sentence that says so. A
    batch that retention has removed, or that cannot be read, is not compared."""
    transport = planner_transport(options)
    replaced: dict[LogName, str] = {}
    for log, batch in progress.seen.items():
        identity = _identity_at(transport, log, batch, stream=bool(options.streams))
        if identity is None or identity == batch.identity:
            continue
        name = log[0] if options.streams else f"{log[0]}/{log[1]}"
        read_to = progress.offsets.get(log, batch.end)
        now = "it ends before that now" if not identity else "it holds another batch there now"
        replaced[log] = (
            f"{name} was read up to offset {read_to} when it ended at {batch.end}, and {now}: the broker was restored "
            "from an older copy, and records that were written after the copy were lost or replaced"
        )
    return replaced


def _identity_at(transport: Transport, log: LogName, batch: SeenBatch, *, stream: bool) -> str | None:
    """What identifies the batch that holds the last record before `batch.end`; empty if the log ends before it, None if
    that is not known."""
    path = records_path(*log, stream=stream)
    try:
        batches = transport.execute(fetch_call(path, batch.end - 1, batch.end, 1))
    except InvalidCall:
        return ""  # past the end
    except Refused:
        return None
    return batch_identity(read_header(batches.data)) if batches.data else ""
