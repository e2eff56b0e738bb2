"""Calls of an operator as pure functions: retry and cancel jobs, purge and move topics, redrive, delete and export dead
letters.

Calls in bulk work through a part and return a cursor, `after`, while there is more. They are safe to repeat.
"""

from __future__ import annotations

from typing import Any, Unpack
from urllib.parse import urlencode

from driftq.client.calls.filters import (
    JobFilterOptions,
    LetterBulkOptions,
    LetterFilterOptions,
    MessageFilterOptions,
    body_fields,
    query_of,
)
from driftq.client.calls.queue import json_reader, post, refusal, segment
from driftq.client.transport.http import HttpReply
from driftq.client.transport.sansio import Call, Flow, Open, ReadMore, Yield
from driftq.wire.dead_letters import DeleteLettersReply, DeleteLettersRequest, RedriveRequest
from driftq.wire.job_lists import CancelJobsReply, CancelJobsRequest, RetryJobsReply, RetryJobsRequest
from driftq.wire.jobs import RetryReply
from driftq.wire.topics import MoveReply, MoveRequest, PurgeReply, PurgeRequest

BULK_MS = 60_000  # the broker may work on one call for so long
EXPORT_S = 60.0  # for the first byte of an export, and then for each that follows
ERROR_LINE = b'{"error":'


def retry_job(topic: str, id: str, *, tenant: str = "") -> Call[RetryReply]:
    """A job that waits in backoff or for its delay is due now. A dead one is sent back from the dead letters."""
    path = f"/v1/jobs/{segment(topic)}/{segment(id)}/retry" + (f"?tenant_id={segment(tenant)}" if tenant else "")
    return post(path, {}, json_reader(RetryReply), idempotent=True)


def retry_jobs(topic: str, **jobs: Unpack[JobFilterOptions]) -> Call[RetryJobsReply]:
    """Retry jobs, if they wait (`retrying`, `scheduled`) or are `dead`: those with these ids, or those that fit.

    Parameters:
        topic: The topic of the jobs.
        jobs: `ids`, or `state`, `task`, `tenant`, `since` and `until`; all of them must fit. `limit` jobs at most,
            `after` the cursor of the call before. `dry_run` only counts.
    """
    body = RetryJobsRequest(topic, **body_fields(jobs))
    return post("/v1/jobs/retry", body, json_reader(RetryJobsReply), idempotent=True, wait_ms=BULK_MS)


def cancel_jobs(topic: str, **jobs: Unpack[JobFilterOptions]) -> Call[CancelJobsReply]:
    """Cancel jobs that have not ended: those with these ids, or those that fit.

    Parameters:
        topic: The topic of the jobs.
        jobs: As for `retry_many`.
    """
    body = CancelJobsRequest(topic, **body_fields(jobs))
    return post("/v1/jobs/cancel", body, json_reader(CancelJobsReply), idempotent=True)


def purge_topic(name: str, *, dry_run: bool = False) -> Call[PurgeReply]:
    """Drop every message of a topic for every group, also those that a worker holds. Dead letters stay: they are the
    topic `dlq.<name>`. `dry_run` only counts."""
    body = PurgeRequest(dry_run)
    return post(f"/v1/topics/{segment(name)}/purge", body, json_reader(PurgeReply), idempotent=True, wait_ms=BULK_MS)


def move_messages(topic: str, to: str, **messages: Unpack[MessageFilterOptions]) -> Call[MoveReply]:
    """Move messages that are not finished to another topic: each is produced there and settled here in one write. Those
    that a worker holds stay.

    Parameters:
        topic, to: From where, and to where.
        messages: `partition`, `task`, `since` and `until`; all of them must fit. `limit` messages at most, `after` the
            cursor of the call before. `dry_run` only counts.
    """
    body = MoveRequest(to, **body_fields(messages))
    return post(f"/v1/topics/{segment(topic)}/move", body, json_reader(MoveReply), idempotent=True, wait_ms=BULK_MS)


def redrive(
    topic: str,
    *,
    rate_per_s: int = 0,
    value: str | None = None,
    key: str | None = None,
    all_groups: bool = False,
    keep_deadline: bool = False,
    to_topic: str = "",
    **letters: Unpack[LetterBulkOptions],
) -> Call[dict[str, Any]]:
    """Redrive dead letters, each to the group in which it died, to all groups of its topic, or to another topic. No
    letter is redriven twice.

    Parameters:
        topic: The topic in which they died.
        rate_per_s: At most so many in a second.
        value, key: Replace those of each letter.
        all_groups: Deliver to every group, not only to the one in which it died.
        keep_deadline: A deadline that has passed is removed unless this is set.
        to_topic: Send them to another topic.
        letters: As for `delete`.
    """
    body = RedriveRequest(
        rate_per_s=rate_per_s, value=value, key=key, all_groups=all_groups, keep_deadline=keep_deadline,
        to_topic=to_topic, **body_fields(letters),
    )  # fmt: skip
    wait_ms = 1_000 * body.limit // rate_per_s if rate_per_s else BULK_MS
    path = f"/v1/dlq/{segment(topic)}/redrive"
    return post(path, body, json_reader(dict[str, Any]), idempotent=True, wait_ms=wait_ms)


def delete_letters(topic: str, **letters: Unpack[LetterBulkOptions]) -> Call[DeleteLettersReply]:
    """Delete dead letters: they are neither listed nor redriven any more.

    Parameters:
        topic: The topic in which they died.
        letters: `offsets` (pairs of partition and offset), or `group`, `error`, `reason`, `since` and `until`; all of
            them must fit. `limit` letters at most, `after` the cursor of the call before. `dry_run` only counts.
    """
    body = DeleteLettersRequest(**body_fields(letters))
    path = f"/v1/dlq/{segment(topic)}/delete"
    return post(path, body, json_reader(DeleteLettersReply), idempotent=True, wait_ms=BULK_MS)


def export_letters(topic: str, **letters: Unpack[LetterFilterOptions]) -> Flow[None]:
    """Yields lines of JSON, each with its line end: the dead letters of a topic that were not redriven. `driftq produce
    --ndjson` reads them."""
    given = urlencode({name: value for name, value in query_of(letters).items() if value})
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
