"""Calls of an operator as pure functions: retry jobs now, purge and move topics, delete and export dead letters.

Calls in bulk work through a part and return a cursor, `after`, while there is more. They are safe to repeat.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from driftq.client.calls.queue import json_reader, post, refusal, segment, time_text
from driftq.client.transport.http import HttpReply
from driftq.client.transport.sansio import Call, Flow, Open, ReadMore, Yield
from driftq.wire.dead_letters import DeleteLettersReply, DeleteLettersRequest
from driftq.wire.job_lists import RetryJobsReply, RetryJobsRequest
from driftq.wire.jobs import RetryReply
from driftq.wire.topics import MoveReply, MoveRequest, PurgeReply, PurgeRequest

BULK_MS = 60_000  # the broker may work on one call for so long
EXPORT_S = 60.0  # for the first byte of an export, and then for each that follows
ERROR_LINE = b'{"error":'


def retry_job(topic: str, id: str, *, tenant: str = "") -> Call[RetryReply]:
    """A job that waits in backoff or for its delay is due now. A dead one is sent back from the dead letters."""
    path = f"/v1/jobs/{segment(topic)}/{segment(id)}/retry" + (f"?tenant_id={segment(tenant)}" if tenant else "")
    return post(path, {}, json_reader(RetryReply), idempotent=True)


def retry_jobs(
    topic: str,
    *,
    ids: Sequence[str] | None = None,
    state: str = "",
    task: str = "",
    tenant: str = "",
    since: datetime | str | None = None,
    until: datetime | str | None = None,
    dry_run: bool = False,
    limit: int = 1_000,
    after: str = "",
) -> Call[RetryJobsReply]:
    """Retry jobs with these ids, or those that fit, if they wait (`retrying`, `scheduled`) or are `dead`. `dry_run`
    only counts."""
    body = RetryJobsRequest(
        topic, list(ids) if ids is not None else None, state, task, tenant, time_text(since), time_text(until),
        dry_run, limit, after,
    )  # fmt: skip
    return post("/v1/jobs/retry", body, json_reader(RetryJobsReply), idempotent=True, wait_ms=BULK_MS)


def purge_topic(name: str, *, dry_run: bool = False) -> Call[PurgeReply]:
    """Drop every message of a topic for every group, also those that a worker holds. Dead letters stay: they are the
    topic `dlq.<name>`. `dry_run` only counts."""
    body = PurgeRequest(dry_run)
    return post(f"/v1/topics/{segment(name)}/purge", body, json_reader(PurgeReply), idempotent=True, wait_ms=BULK_MS)


def move_messages(
    topic: str,
    to: str,
    *,
    partition: int | None = None,
    task: str = "",
    since: datetime | str | None = None,
    until: datetime | str | None = None,
    dry_run: bool = False,
    limit: int = 1_000,
    after: str = "",
) -> Call[MoveReply]:
    """Move messages that are not finished to another topic: each is produced there and settled here in one write. Those
    that a worker holds stay. `dry_run` only counts."""
    body = MoveRequest(to, partition, task, time_text(since), time_text(until), dry_run, limit, after)
    return post(f"/v1/topics/{segment(topic)}/move", body, json_reader(MoveReply), idempotent=True, wait_ms=BULK_MS)


def delete_letters(
    topic: str,
    *,
    group: str = "",
    error: str = "",
    reason: str = "",
    since: datetime | str | None = None,
    until: datetime | str | None = None,
    offsets: Sequence[tuple[int, int]] | None = None,
    dry_run: bool = False,
    limit: int = 1_000,
    after: str = "",
) -> Call[DeleteLettersReply]:
    """Delete dead letters: they are neither listed nor redriven any more. `dry_run` only counts."""
    body = DeleteLettersRequest(
        group, error, reason, time_text(since), time_text(until), list(offsets) if offsets is not None else None,
        dry_run, limit, after,
    )  # fmt: skip
    path = f"/v1/dlq/{segment(topic)}/delete"
    return post(path, body, json_reader(DeleteLettersReply), idempotent=True, wait_ms=BULK_MS)


def export_letters(
    topic: str,
    *,
    group: str = "",
    error: str = "",
    reason: str = "",
    since: datetime | str | None = None,
    until: datetime | str | None = None,
) -> Flow[None]:
    """Yields lines of JSON, each with its line end: the dead letters of a topic that were not redriven. `driftq produce
    --ndjson` reads them."""
    query: dict[str, Any] = {
        "group": group, "error": error, "reason": reason, "since": time_text(since), "until": time_text(until),
    }  # fmt: skip
    given = urlencode({name: value for name, value in query.items() if value})
    path = f"/v1/dlq/{segment(topic)}/export" + (f"?{given}" if given else "")
    call = Call("GET", path, lambda reply: reply, refusal=refusal, idempotent=True)
    reply = yield Open(call, EXPORT_S)
    if isinstance(reply, HttpReply):
        raise refusal(reply)
    begun = b""
    while data := (yield ReadMore(reply, EXPORT_S)):
        *lines, begun = (begun + data).split(b"\n")
        for line in lines:
            if line.startswith(ERROR_LINE):
                raise refusal(HttpReply(500, {}, line))
            yield Yield(line + b"\n")
