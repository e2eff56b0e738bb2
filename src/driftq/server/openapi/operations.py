"""What each route takes and gives, in the order of the route table. A route without an entry here fails a test.

Types come from `wire` and `documenting.shapes`; sentences are for people who have never seen the API. How this becomes
an OpenAPI document is `documenting.openapi`'s business.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from driftq.server.handlers.explain import Explanation
from driftq.server.handlers.route import RouteReply
from driftq.server.handlers.streams import StreamsReply, TrimRequest
from driftq.server.openapi import shapes as s
from driftq.server.openapi.operation import (
    BATCHES,
    NDJSON,
    READ_ERRORS,
    WRITE_ERRORS,
    Operation,
    Query,
    ReplyDoc,
    Text,
    as_json,
)
from driftq.wire import admin as a
from driftq.wire import queue as q

_NO_CONTENT = {204: ReplyDoc("It is so now, or was before.")}
_SETTLED = {200: ReplyDoc("Each message is judged for itself; `refused` names those that took no part.", q.SettleReply)}
_TENANT = Query("tenant_id", str, "The tenant whose job it is.")
_LIMIT = Query("limit", Annotated[int, Meta(ge=1, le=1_000)], "Entries of a page.")
_AFTER = "The `after` of the page before."
_PAGE = (Query("after", str, _AFTER), _LIMIT)
_NUMBERED_PAGE = (Query("after", Annotated[str, Meta(pattern="^[0-9]{1,16}$")], _AFTER), _LIMIT)
_PLACED_PAGE = (Query("after", Annotated[str, Meta(pattern="^[0-9]{1,9}:[0-9]{1,18}$")], _AFTER), _LIMIT)
_FILTER_QUERY = (
    Query("group", str, "Letters of this group."),
    Query("error", str, "Letters whose last error contains this."),
    Query("reason", str, "Letters with this reason."),
    Query("since", str, "RFC 3339."),
    Query("until", str, "RFC 3339."),
)

OPERATIONS: dict[tuple[str, str], Operation] = {
    # --- server ---
    ("GET", "/v1/healthz"): Operation("Whether the process lives", "server", {200: ReplyDoc("It does.", s.Status)}),
    ("GET", "/v1/readyz"): Operation("Whether it should get work", "server", {200: ReplyDoc("Yes.", s.Readiness)}),
    ("GET", "/v1/version"): Operation(
        "What runs here, and how durable it is", "server", {200: ReplyDoc("So.", s.Version)}
    ),
    ("GET", "/v1/metrics"): Operation(
        "Numbers for Prometheus", "server", {200: ReplyDoc("The text format.", str, "text/plain")}
    ),
    ("GET", "/v1/openapi.json"): Operation("This document", "server", {200: ReplyDoc("OpenAPI 3.1.", dict[str, Any])}),
    ("GET", "/v1/docs"): Operation("This document, for people", "server", {200: ReplyDoc("A page.", str, "text/html")}),
    ("GET", "/v1/explain"): Operation(
        "Why a message is not being delivered, and until when",
        "server",
        {200: ReplyDoc("Every gate that is shut, and when it opens.", Explanation)},
        query=(
            Query("topic", q.Name, "The topic.", True),
            Query("partition", q.Natural, "The partition.", True),
            Query("offset", q.Natural, "The offset.", True),
            Query("group", str, "One group; all if absent."),
            Query("task", str, "As a claim would ask."),
            Query("label", str, "As a claim would ask."),
        ),
        errors=READ_ERRORS,
    ),
    ("POST", "/v1/route"): Operation(
        "What would happen to a message, without producing it",
        "produce",
        {200: ReplyDoc("Which rule, which topic and partition, whether it is a duplicate or refused.", RouteReply)},
        as_json(q.ProduceRequest),
        errors=(400,),
    ),
    # --- the specification ---
    ("GET", "/v1/topics"): Operation(
        "Topics",
        "topics",
        {200: ReplyDoc("Their names: all, or a page if `limit` or `after` is given.", q.TopicsReply)},
        query=_PAGE,
        errors=(400,),
    ),
    ("POST", "/v1/topics"): Operation(
        "Create a topic",
        "topics",
        {201: ReplyDoc("It is there now.", q.TopicReply), 200: ReplyDoc("It was there, just so.", q.TopicReply)},
        as_json(q.TopicRequest),
        either=True,
        query=(
            Query("name", str, "Its name."),
            Query("partitions", Annotated[int, Meta(ge=0, le=1_024)], "How many; 1 if absent."),
        ),
        errors=(400, 409, 429),
    ),
    ("GET", "/v1/consume"): Operation(
        "Stream messages as NDJSON; idle streams carry bare newlines",
        "consume",
        {200: ReplyDoc("One `DeliveredMessage` a line, as long as the connection lives.", str, NDJSON)},
        query=(
            Query("topic", q.Name, "The topic.", True),
            Query("group", q.Name, "The group; it exists from now on.", True),
            Query("owner", Text, "Who holds what is delivered.", True),
            Query("lease_ms", q.Natural, "How long; 100 ms to 12 h."),
            Query("start", str, "Where a new group begins: earliest, latest or an RFC 3339 time."),
            Query("task", str, "Only messages with this task."),
            Query("label", str, "Only messages with this label."),
            Query("prefetch", q.Prefetch, "The most this connection holds unsettled; it adapts if absent."),
        ),
        errors=(400, 404, 409, 429),
    ),
    ("POST", "/v1/ack"): Operation(
        "Acknowledge a message", "settle", _NO_CONTENT, as_json(q.AckRequest), either=True, errors=(400, 404, 409)
    ),
    ("POST", "/v1/nack"): Operation(
        "Say that an attempt failed", "settle", _NO_CONTENT, as_json(q.NackRequest), either=True, errors=(400, 404, 409)
    ),
    # --- many at once ---
    ("POST", "/v1/claim"): Operation(
        "Take messages under a lease",
        "consume",
        {200: ReplyDoc("What was claimed; perhaps nothing.", s.ClaimReply)},
        as_json(q.ClaimRequest),
        either=True,
        errors=(400, 404, 429),
    ),
    ("POST", "/v1/ack/batch"): Operation(
        "Acknowledge many", "settle", _SETTLED, as_json(q.SettleRequest), errors=READ_ERRORS
    ),
    ("POST", "/v1/nack/batch"): Operation(
        "Say that many attempts failed", "settle", _SETTLED, as_json(q.SettleRequest), errors=READ_ERRORS
    ),
    ("POST", "/v1/release"): Operation(
        "Give back without counting an attempt", "settle", _SETTLED, as_json(q.SettleRequest), errors=READ_ERRORS
    ),
    ("POST", "/v1/reject"): Operation(
        "Send straight to the dead letters", "settle", _SETTLED, as_json(q.SettleRequest), errors=READ_ERRORS
    ),
    ("POST", "/v1/extend"): Operation(
        "Hold longer; says which are lost", "settle", _SETTLED, as_json(q.SettleRequest), errors=READ_ERRORS
    ),
    ("POST", "/v1/ack-cumulative"): Operation(
        "Acknowledge everything up to an offset",
        "settle",
        _NO_CONTENT,
        as_json(q.AckRequest),
        either=True,
        errors=(400, 404, 409),
    ),
    # --- topics, groups, records ---
    ("GET", "/v1/topics/{topic}"): Operation(
        "A topic: its partitions, groups and settings", "topics", {200: ReplyDoc("So.", a.TopicInfo)}, errors=(404,)
    ),
    ("PATCH", "/v1/topics/{topic}"): Operation(
        "Change a topic's settings",
        "topics",
        {200: ReplyDoc("The topic as it is now.", a.TopicInfo)},
        as_json(a.TopicChange),
        errors=WRITE_ERRORS,
    ),
    ("DELETE", "/v1/topics/{topic}"): Operation(
        "Delete a topic with its messages, groups and dead letters", "topics", _NO_CONTENT, errors=(400, 404, 409)
    ),
    ("GET", "/v1/topics/{topic}/offsets"): Operation(
        "Where each partition begins and ends",
        "records",
        {200: ReplyDoc("`at` is there if a time was asked for.", s.OffsetsReply)},
        query=(Query("at", str, "RFC 3339: the first offset at or after it."),),
        errors=READ_ERRORS,
    ),
    ("GET", "/v1/topics/{topic}/partitions/{partition}/records"): Operation(
        "A range of packed records, for readers that keep their own offsets",
        "records",
        {
            200: ReplyDoc(
                "Whole batches; the first may begin before the offset.",
                bytes,
                BATCHES,
                ("Driftq-Next-Offset", "Driftq-Start-Offset", "Driftq-End-Offset"),
            )
        },
        query=(
            Query("offset", q.Natural, "From here; 0 if absent."),
            Query("end", q.Natural, "Up to here."),
            Query("max_bytes", q.Natural, "About so many; 4 MiB if absent, 16 MiB at most."),
            Query("wait_ms", q.Natural, "Wait for something new; a minute at most."),
        ),
        errors=(400, 404, 410),
    ),
    ("GET", "/v1/topics/{topic}/partitions/{partition}/messages"): Operation(
        "A look at messages, without claiming them",
        "records",
        {200: ReplyDoc("The last ones, or those from an offset on.", s.MessagesReply)},
        query=(
            Query("offset", q.Natural, "From here; the last ones if absent."),
            Query("limit", Annotated[int, Meta(ge=1, le=1_000)], "10 if absent."),
        ),
        errors=(400, 404, 410),
    ),
    ("GET", "/v1/groups"): Operation(
        "Groups with their lag",
        "groups",
        {200: ReplyDoc("All, or those of one topic.", s.GroupsReply)},
        query=(Query("topic", str, "One topic."), *_NUMBERED_PAGE),
        errors=(400,),
    ),
    ("GET", "/v1/topics/{topic}/groups"): Operation(
        "The groups of a topic",
        "groups",
        {200: ReplyDoc("With their lag.", s.GroupsReply)},
        query=_NUMBERED_PAGE,
        errors=READ_ERRORS,
    ),
    ("GET", "/v1/topics/{topic}/groups/{group}"): Operation(
        "A group: lag in messages and time, in flight, resting",
        "groups",
        {200: ReplyDoc("So.", a.GroupInfo)},
        errors=(404,),
    ),
    ("DELETE", "/v1/topics/{topic}/groups/{group}"): Operation(
        "Forget a group and its progress", "groups", _NO_CONTENT, errors=READ_ERRORS
    ),
    ("GET", "/v1/topics/{topic}/groups/{group}/states"): Operation(
        "Where a group stands in a range of a partition, as columns",
        "groups",
        {200: ReplyDoc("A page; the next begins at `next_offset`, unless that is `end`.", a.StatesInfo)},
        query=(
            Query("partition", q.Natural, "The partition; 0 if absent."),
            Query("offset", q.Natural, "From here; the group's floor if absent."),
            Query("end", q.Natural, "Up to here; the end of the partition if absent."),
            Query(
                "limit", Annotated[int, Meta(ge=1, le=10_000)], "Settled ranges and pending messages; 1,000 if absent."
            ),
        ),
        errors=READ_ERRORS,
    ),
    ("POST", "/v1/topics/{topic}/groups/{group}/seek"): Operation(
        "Start over", "groups", _NO_CONTENT, as_json(a.SeekRequest), errors=READ_ERRORS
    ),
    ("POST", "/v1/topics/{topic}/groups/{group}/pause"): Operation(
        "Hand out nothing", "groups", _NO_CONTENT, errors=READ_ERRORS
    ),
    ("POST", "/v1/topics/{topic}/groups/{group}/resume"): Operation(
        "Hand out again", "groups", _NO_CONTENT, errors=READ_ERRORS
    ),
    # --- effects ---
    ("GET", "/v1/idempotency"): Operation(
        "What is known of an effect's key",
        "effects",
        {200: ReplyDoc("Pending, committed or failed.", s.EffectReply)},
        query=(
            Query("topic", q.Name, "The topic.", True),
            Query("group", q.Name, "The group.", True),
            Query("key", Annotated[str, Meta(min_length=1, max_length=256)], "The key.", True),
            Query("tenant_id", str, "The tenant."),
        ),
        errors=READ_ERRORS,
    ),
    ("POST", "/v1/idempotency/begin"): Operation(
        "Begin an effect, or hear that it happened",
        "effects",
        {200: ReplyDoc("A fence to commit with, or the stored result.", s.BeginReply)},
        as_json(a.BeginRequest),
        errors=WRITE_ERRORS,
    ),
    ("POST", "/v1/idempotency/commit"): Operation(
        "The effect happened", "effects", _NO_CONTENT, as_json(a.CommitRequest), errors=(400, 404, 409, 413)
    ),
    ("POST", "/v1/idempotency/fail"): Operation(
        "The effect failed", "effects", _NO_CONTENT, as_json(a.FailRequest), errors=(400, 404, 409)
    ),
    ("POST", "/v1/outcome"): Operation(
        "Acks, messages, stream appends and commits, all or nothing",
        "effects",
        {200: ReplyDoc("All of it.", s.OutcomeDone)},
        as_json(a.OutcomeRequest),
        errors=(400, 403, 404, 409, 410, 412, 429),
        headers=("traceparent",),
    ),
    # --- dead letters and jobs ---
    ("GET", "/v1/dlq/{topic}"): Operation(
        "The dead letters of a topic",
        "dead letters",
        {200: ReplyDoc("Those that were not sent back.", s.LettersReply)},
        query=(*_FILTER_QUERY, *_PLACED_PAGE),
        errors=READ_ERRORS,
    ),
    ("GET", "/v1/dlq/{topic}/errors"): Operation(
        "Dead letters by kind of error",
        "dead letters",
        {200: ReplyDoc("Most frequent first.", s.ErrorKinds)},
        query=_NUMBERED_PAGE,
        errors=READ_ERRORS,
    ),
    ("POST", "/v1/dlq/{topic}/redrive"): Operation(
        "Send dead letters back",
        "dead letters",
        {200: ReplyDoc("How many; failures by place.", s.RedriveReply)},
        as_json(a.RedriveRequest),
        body_optional=True,
        errors=READ_ERRORS,
    ),
    ("POST", "/v1/jobs"): Operation(
        "Enqueue a job",
        "jobs",
        {201: ReplyDoc("It waits for a worker.", s.JobAccepted), 200: ReplyDoc("Its id was known.", s.JobAccepted)},
        as_json(a.JobRequest),
        errors=WRITE_ERRORS,
        headers=("traceparent",),
    ),
    ("GET", "/v1/jobs/{topic}/{id}"): Operation(
        "A job's state in each group",
        "jobs",
        {200: ReplyDoc("So.", s.JobReply)},
        query=(_TENANT,),
        errors=READ_ERRORS,
    ),
    ("POST", "/v1/jobs/{topic}/{id}/cancel"): Operation(
        "Cancel a job",
        "jobs",
        {200: ReplyDoc("Nobody gets it any more.", s.JobCancelled)},
        query=(_TENANT,),
        errors=READ_ERRORS,
    ),
    # --- streams ---
    ("GET", "/v1/streams"): Operation(
        "Durable streams by prefix",
        "streams",
        {200: ReplyDoc("A page; `after` begins the next.", StreamsReply)},
        query=(
            Query("prefix", str, "Paths that begin so."),
            *_PAGE,
        ),
        errors=(400,),
    ),
    ("POST", "/v1/streams/trim"): Operation(
        "Forget the beginning of a stream",
        "streams",
        {200: ReplyDoc("Where it begins now.", s.TrimReply)},
        as_json(TrimRequest),
        errors=(400, 404, 409, 410),
    ),
    ("GET", "/v1/streams/records"): Operation(
        "A range of a stream's packed records, for readers that keep their own offsets",
        "streams",
        {
            200: ReplyDoc(
                "Whole batches; the first may begin before the offset, the last reach beyond the next.",
                bytes,
                BATCHES,
                ("Driftq-Next-Offset", "Driftq-Start-Offset", "Driftq-End-Offset", "Driftq-Created-At"),
            )
        },
        query=(
            Query("stream", str, "Its path.", required=True),
            Query("offset", q.Natural, "From here; the start if absent."),
            Query("end", q.Natural, "Up to here; 0 only asks where the stream begins and ends."),
            Query("max_bytes", q.Natural, "About so many; 4 MiB if absent, 16 MiB at most."),
        ),
        errors=(400, 404, 410),
    ),
}
