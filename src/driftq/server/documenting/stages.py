"""The documentation of staged appends."""

from __future__ import annotations

from driftq.server.documenting.operation import BATCH, Operation, Query, Reply, as_json
from driftq.wire import admin as a
from driftq.wire import queue as q

OPERATIONS: dict[tuple[str, str], Operation] = {
    ("POST", "/v1/stages"): Operation(
        "Keep a packed batch durable and unseen until its writer publishes it",
        "stages",
        {201: Reply("Staged.", a.StagedInfo), 200: Reply("Staged before.", a.StagedInfo)},
        {BATCH: bytes},
        query=(
            Query("writer", q.Name, "Who publishes it.", True),
            Query("handle", q.Name, "The name to publish it by.", True),
            Query("topic", q.Name, "The topic it is for (or `path`)."),
            Query("partition", q.Natural, "The partition."),
            Query("key", str, "Names the partition by its hash."),
            Query("path", str, "The stream it is for."),
            Query("ttl_ms", q.Natural, "How long it is kept."),
            Query("chunk", q.Natural, "Its number under the handle, from 0: makes a repeat harmless."),
        ),
        errors=(400, 404, 409, 410, 413, 429),
    ),
    ("POST", "/v1/stages/publish"): Operation(
        "Show staged batches together, once for each batch number of a writer",
        "stages",
        {200: Reply("Where each went; the first result if it was published before.", a.PublishedInfo)},
        as_json(a.PublishRequest),
        errors=(400, 404, 409),
    ),
    ("POST", "/v1/stages/forget"): Operation(
        "Give up staged batches",
        "stages",
        {200: Reply("Whether there were any.", a.ForgottenInfo)},
        as_json(a.ForgetRequest),
        errors=(400,),
    ),
}
