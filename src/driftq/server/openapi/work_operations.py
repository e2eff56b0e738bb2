"""The documentation of work: effects and outcomes, dead letters, jobs, workers, staged appends."""

from __future__ import annotations

from typing import Literal

from driftq.server.openapi.operation import (
    DONE,
    NDJSON,
    NUMBERED_PAGE,
    PAGE,
    PLACE_PAGE,
    READ_ERRORS,
    TOPIC,
    WRITE_ERRORS,
    Operation,
    Operations,
    Query,
    ReplyDoc,
    as_json,
)
from driftq.wire import dead_letters, effects, job_batches, jobs, stages, workers
from driftq.wire.fields import Name, Natural
from driftq.wire.produce import PACKED_TYPE

_TENANT = Query("tenant_id", str, "The tenant of the job.")
_FILTER_QUERY = (
    Query("group", str, "Only letters of this group."),
    Query("error", str, "Only letters whose last error contains this text."),
    Query("kind", str, "Only letters of this kind of error, as the list of errors names it."),
    Query("reason", str, "Only letters with this reason."),
    Query("since", str, "Only letters from this RFC 3339 time on."),
    Query("until", str, "Only letters before this RFC 3339 time."),
)

EFFECT_OPERATIONS: Operations = {
    ("GET", "/v1/idempotency"): Operation(
        "Look up an effect",
        "The state of an effect by its key.",
        "effects",
        {200: ReplyDoc("The effect is pending, committed or failed.", effects.EffectReply)},
        query=(
            TOPIC,
            Query("group", Name, "The group.", True),
            Query("key", effects.EffectId, "The key of the effect.", True),
            Query("tenant_id", str, "The tenant."),
        ),
        errors=READ_ERRORS,
    ),
    ("POST", "/v1/idempotency/begin"): Operation(
        "Begin an effect",
        "Grants the effect to one worker at a time, under a fence. If it was committed before, the stored result is "
        "returned instead.",
        "effects",
        {200: ReplyDoc("A fence to commit with, or the stored result.", effects.BeginReply)},
        as_json(effects.BeginRequest),
        errors=WRITE_ERRORS,
    ),
    ("POST", "/v1/idempotency/commit"): Operation(
        "Commit an effect",
        "Stores the result under the key. The fence must be the one of the last begin.",
        "effects",
        DONE,
        as_json(effects.CommitRequest),
        errors=(400, 404, 409, 413),
    ),
    ("POST", "/v1/idempotency/fail"): Operation(
        "Report a failed effect",
        "Another worker may begin the effect.",
        "effects",
        DONE,
        as_json(effects.FailRequest),
        errors=(400, 404, 409),
    ),
    ("POST", "/v1/outcome"): Operation(
        "Commit the outcome of work",
        "Acks, messages, stream appends and committed effects in one write: all of them, or none.",
        "effects",
        {200: ReplyDoc("Everything was carried out, now or by an earlier call (`duplicate`).", effects.OutcomeDone)},
        as_json(effects.OutcomeRequest),
        errors=(400, 403, 404, 409, 410, 412, 429),
        headers=("traceparent", "tracestate", "baggage"),
    ),
}

DEAD_LETTER_OPERATIONS: Operations = {
    ("GET", "/v1/dlq"): Operation(
        "Count dead letters",
        "The topics with dead letters that were not redriven and that the caller may read, the most first.",
        "dead letters",
        {200: ReplyDoc("A page of topics.", dead_letters.DeadLetterCounts)},
        query=NUMBERED_PAGE,
        errors=(400,),
    ),
    ("GET", "/v1/dlq/{topic}"): Operation(
        "List dead letters",
        "The dead letters of a topic that were not redriven, by partition and offset.",
        "dead letters",
        {200: ReplyDoc("A page of dead letters.", dead_letters.LettersReply)},
        query=(*_FILTER_QUERY, *PLACE_PAGE),
        errors=READ_ERRORS,
    ),
    ("GET", "/v1/dlq/{topic}/errors"): Operation(
        "Count dead letters by error",
        "Errors that differ only in numbers, ids and quoted parts are counted together.",
        "dead letters",
        {200: ReplyDoc("A page of errors, the most frequent first.", dead_letters.ErrorKindsReply)},
        query=(
            *NUMBERED_PAGE,
            Query("wait_ms", int, "Answer after this time with what was counted so far. Without it, all are counted."),
        ),
        errors=READ_ERRORS,
    ),
    ("POST", "/v1/dlq/{topic}/redrive"): Operation(
        "Redrive dead letters",
        "Produces dead letters again. Each is produced and settled in one write, so a redrive can be interrupted and "
        "repeated. A body is optional: without one, up to 1,000 letters are redriven.",
        "dead letters",
        {200: ReplyDoc("How many were redriven, and which failed.", dead_letters.RedriveReply)},
        as_json(dead_letters.RedriveRequest),
        body_optional=True,
        errors=READ_ERRORS,
    ),
    ("POST", "/v1/dlq/{topic}/delete"): Operation(
        "Delete dead letters",
        "The letters do not wait any more: they are neither listed nor redriven. Their records stay until retention or "
        "a purge of the dead letters drops them. `dry_run` only counts. A body is optional: without one, up to 1,000 "
        "letters are deleted.",
        "dead letters",
        {200: ReplyDoc("How many fit, and how many were deleted.", dead_letters.DeleteLettersReply)},
        as_json(dead_letters.DeleteLettersRequest),
        body_optional=True,
        errors=READ_ERRORS,
    ),
    ("GET", "/v1/dlq/{topic}/export"): Operation(
        "Export dead letters",
        "The dead letters that were not redriven, one JSON object a line, as `driftq produce --ndjson` reads them. "
        "`dlq` says where a letter came from and why it died.",
        "dead letters",
        {200: ReplyDoc("A line for each letter.", str, NDJSON)},
        query=(*_FILTER_QUERY, PLACE_PAGE[0]),
        errors=READ_ERRORS,
    ),
}

JOB_OPERATIONS: Operations = {
    ("POST", "/v1/jobs"): Operation(
        "Enqueue a job",
        "A job is a message with a task, an id, or both. With an id the call can be repeated: the job is stored once.",
        "jobs",
        {
            201: ReplyDoc("The job was enqueued.", jobs.EnqueueReply),
            200: ReplyDoc("A job with this id existed.", jobs.EnqueueReply),
        },
        as_json(jobs.JobRequest),
        errors=WRITE_ERRORS,
        headers=("traceparent", "tracestate", "baggage"),
    ),
    ("GET", "/v1/jobs/{topic}/{id}"): Operation(
        "Look up a job",
        "Its state in each group, with every attempt. A job without an id is named `topic:partition:offset`.",
        "jobs",
        {200: ReplyDoc("The job's state.", jobs.JobReply)},
        query=(_TENANT,),
        errors=READ_ERRORS,
    ),
    ("GET", "/v1/jobs/{topic}/{id}/result"): Operation(
        "Get the result of a job",
        "What its worker returned, or how it failed. Waits up to `wait_ms` for the end of the job.",
        "jobs",
        {200: ReplyDoc("The result; `done` is false if the job has not ended yet.", jobs.JobResult)},
        query=(
            Query("wait_ms", Natural, "How long to wait for the end of the job, up to 60,000."),
            Query("group", Name, "The group whose result counts; without it, every group that claims the job."),
            _TENANT,
        ),
        errors=READ_ERRORS,
    ),
    ("POST", "/v1/jobs/{topic}/{id}/cancel"): Operation(
        "Cancel a job",
        "The job is not delivered any more. A worker that runs it is notified at its next heartbeat.",
        "jobs",
        {200: ReplyDoc("`cancelled` is false if the job had ended before.", jobs.CancelReply)},
        query=(_TENANT,),
        errors=READ_ERRORS,
    ),
    ("POST", "/v1/jobs/{topic}/{id}/retry"): Operation(
        "Retry a job now",
        "A job that waits in backoff or for its delay is due at once. A dead one is sent back from the dead letters. "
        "Any message can be named, as `topic:partition:offset`.",
        "jobs",
        {200: ReplyDoc("Whether something changed, and the state.", jobs.RetryReply)},
        query=(_TENANT,),
        errors=READ_ERRORS,
    ),
}

_WAIT = "How long to wait for the end of the batch, up to 60,000."
_CHANGED = {
    201: ReplyDoc("It was done.", job_batches.JobBatchChange),
    200: ReplyDoc("The same was done before.", job_batches.JobBatchChange),
}
_MEMBERS_QUERY = (Query("state", str, "Only members in this state."), *NUMBERED_PAGE)
JOB_BATCH_OPERATIONS: Operations = {
    ("POST", "/v1/job-batches"): Operation(
        "Create a job batch",
        "Jobs that belong together, with messages that are produced in the write that ends the last of them. All jobs "
        "of the call are enqueued, or none. Repeating a call with the same id changes nothing.",
        "job batches",
        _CHANGED,
        as_json(job_batches.CreateJobBatchRequest),
        errors=WRITE_ERRORS,
        headers=("traceparent", "tracestate", "baggage"),
    ),
    ("GET", "/v1/job-batches"): Operation(
        "List job batches",
        "Those whose topics the caller may read, the newest first.",
        "job batches",
        {200: ReplyDoc("A page of job batches.", job_batches.JobBatchesReply)},
        query=(Query("state", Literal[job_batches.JOB_BATCH_STATES], "Only batches in this state."), *NUMBERED_PAGE),
        errors=(400,),
    ),
    ("GET", "/v1/job-batches/{id}"): Operation(
        "Describe a job batch",
        "Its state, its counts, and the messages that its end produced. Waits up to `wait_ms` for the end.",
        "job batches",
        {200: ReplyDoc("The job batch.", job_batches.JobBatchInfo)},
        query=(Query("wait_ms", Natural, _WAIT),),
        errors=READ_ERRORS,
    ),
    ("POST", "/v1/job-batches/{id}/jobs"): Operation(
        "Add jobs to an open batch",
        "All of them or none. `first` makes the call idempotent. With `seal` nothing is added after these.",
        "job batches",
        _CHANGED,
        as_json(job_batches.AddJobsRequest),
        errors=WRITE_ERRORS,
        headers=("traceparent", "tracestate", "baggage"),
    ),
    ("GET", "/v1/job-batches/{id}/jobs"): Operation(
        "List the members of a job batch",
        "By index, each with its state.",
        "job batches",
        {200: ReplyDoc("A page of members.", job_batches.JobBatchMembersReply)},
        query=_MEMBERS_QUERY,
        errors=READ_ERRORS,
    ),
    ("GET", "/v1/job-batches/{id}/results"): Operation(
        "Get the results of a job batch",
        "The members by index, with results, errors and tracebacks. They are kept as long as the batch.",
        "job batches",
        {200: ReplyDoc("A page of members.", job_batches.JobBatchMembersReply)},
        query=_MEMBERS_QUERY,
        errors=READ_ERRORS,
    ),
    ("POST", "/v1/job-batches/{id}/cancel"): Operation(
        "Cancel a job batch",
        "Cancels all of its jobs that have not ended, and what is nested in it.",
        "job batches",
        {200: ReplyDoc("`cancelled` is false if it had ended before.", job_batches.CancelJobBatchReply)},
        errors=READ_ERRORS,
    ),
}

_ASKED = {202: ReplyDoc("It is asked to with its next heartbeat.", workers.WorkerInfo)}
WORKER_OPERATIONS: Operations = {
    ("GET", "/v1/workers"): Operation(
        "List workers",
        "The processes that run workers, as they announce themselves. Entries are kept in memory, and end a few "
        "seconds after the last heartbeat.",
        "workers",
        {200: ReplyDoc("A page of workers, by id.", workers.WorkersReply)},
        query=PAGE,
    ),
    ("GET", "/v1/workers/{id}"): Operation(
        "Describe a worker",
        "What a process runs, and how busy it is. Its id is the owner of the leases that it holds.",
        "workers",
        {200: ReplyDoc("The worker.", workers.WorkerInfo)},
        errors=(404,),
    ),
    ("PUT", "/v1/workers/{id}"): Operation(
        "Announce a worker",
        "The heartbeat of a process. The reply says when to call again, and may ask it to drain or to stop.",
        "workers",
        {200: ReplyDoc("The entry was renewed.", workers.HeartbeatReply)},
        as_json(workers.HeartbeatRequest),
        errors=(429,),
    ),
    ("DELETE", "/v1/workers/{id}"): Operation(
        "Remove a worker",
        "For a process that ends: its entry goes at once.",
        "workers",
        DONE,
    ),
    ("POST", "/v1/workers/{id}/drain"): Operation(
        "Drain a worker",
        "The process claims nothing more, finishes what runs, and ends.",
        "workers",
        _ASKED,
        errors=(404,),
    ),
    ("POST", "/v1/workers/{id}/stop"): Operation(
        "Stop a worker",
        "The process releases what it holds, without counting an attempt, and ends at once.",
        "workers",
        _ASKED,
        errors=(404,),
    ),
}

STAGE_OPERATIONS: Operations = {
    ("POST", "/v1/stages"): Operation(
        "Stage a packed batch",
        "The batch is durable, and invisible to readers until its writer publishes it. For exactly-once sinks.",
        "stages",
        {
            201: ReplyDoc("The batch was staged.", stages.StagedInfo),
            200: ReplyDoc("The batch had been staged before.", stages.StagedInfo),
        },
        {PACKED_TYPE: bytes},
        query=(
            Query("writer", Name, "The writer that publishes it.", True),
            Query("handle", Name, "The name to publish it by.", True),
            Query("topic", Name, "The topic it is for; either this or `path`."),
            Query("partition", Natural, "The partition."),
            Query("key", str, "Chooses the partition by its hash."),
            Query("path", str, "The stream it is for; either this or `topic`."),
            Query("ttl_ms", Natural, "How long it is kept if it is not published."),
            Query("chunk", Natural, "Its number under the handle, from 0. Makes the call idempotent."),
        ),
        errors=(400, 404, 409, 410, 413, 429),
    ),
    ("POST", "/v1/stages/publish"): Operation(
        "Publish staged batches",
        "Makes batches visible together, in this order, once for each batch number of a writer. Everything else that "
        "the writer staged is deleted. A number that was published with another `content` is refused "
        "(`CONTENT_MISMATCH`).",
        "stages",
        {200: ReplyDoc("Where each batch was published, now or by an earlier call.", stages.PublishedInfo)},
        as_json(stages.PublishRequest),
        errors=(400, 404, 409),
    ),
    ("POST", "/v1/stages/forget"): Operation(
        "Delete staged batches",
        "For batches that will not be published.",
        "stages",
        {200: ReplyDoc("`forgotten` is false if none of the handles was staged.", stages.ForgottenInfo)},
        as_json(stages.ForgetRequest),
        errors=(400,),
    ),
}

OPERATIONS: Operations = {
    **EFFECT_OPERATIONS,
    **DEAD_LETTER_OPERATIONS,
    **JOB_OPERATIONS,
    **JOB_BATCH_OPERATIONS,
    **WORKER_OPERATIONS,
    **STAGE_OPERATIONS,
}
