"""The documentation of what the broker observes of itself: the overview and time series."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from driftq.server.openapi.operation import LIMIT, READ_ERRORS, Operation, Operations, Query, ReplyDoc, as_json
from driftq.wire import job_lists, overview, pipelines, runs
from driftq.wire.fields import Natural

_AFTER = "The `after` of the previous page."
_PLACES = "^([0-9]{1,4}:[0-9]{1,16}(,[0-9]{1,4}:[0-9]{1,16}){0,63})?$"
_JOB_FILTER = (
    Query("topic", str, "Only jobs of this topic."),
    Query("state", str, f"Only jobs in these states, separated by commas: {', '.join(job_lists.STATES)}."),
    Query("task", str, "Only jobs of this task."),
    Query("tenant_id", str, "Only jobs of this tenant."),
    Query("since", str, "Only jobs from this RFC 3339 time on."),
    Query("until", str, "Only jobs before this RFC 3339 time."),
)

OPERATIONS: Operations = {
    ("GET", "/v1/overview"): Operation(
        "Overview",
        "How the broker is now, in one cheap call: counts, rates, latency, lag, disk, stalls, the archive, and what "
        "needs attention, in words. Figures are some seconds old at most.",
        "observation",
        {200: ReplyDoc("The overview.", overview.OverviewReply)},
    ),
    ("GET", "/v1/series"): Operation(
        "Time series",
        "Values of the last 24 hours: of the whole broker in steps of 10 s, or of a topic or group in steps of 30 s. "
        "They are kept in memory, and saved every five minutes and at a clean stop. The 200 most active topics and "
        "the 200 most active groups have series.",
        "observation",
        {200: ReplyDoc("The values, one list for each name.", overview.SeriesReply)},
        query=(
            Query("topic", str, "The series of this topic."),
            Query("group", str, "The series of this group of the topic."),
            Query("names", str, "Only these, separated by commas."),
            Query(
                "window_ms",
                Annotated[int, Meta(ge=1, le=86_400_000)],
                "How far back; an hour by default, a day at most.",
            ),
            Query(
                "points",
                Annotated[int, Meta(ge=1, le=2_880)],
                "At most so many values (360); steps are averaged.",
            ),
        ),
        errors=READ_ERRORS,
    ),
    ("GET", "/v1/series/names"): Operation(
        "Names with time series",
        "The topics and groups that have series and that the caller may see.",
        "observation",
        {200: ReplyDoc("The names.", overview.SeriesNames)},
    ),
    ("GET", "/v1/jobs"): Operation(
        "List jobs",
        "Jobs of a topic, or of all topics that the caller may read: the newest of each partition first. One call "
        "looks at up to 20,000 jobs; follow `after` for more.",
        "jobs",
        {200: ReplyDoc("A page of jobs.", job_lists.JobsReply)},
        query=(
            *_JOB_FILTER,
            Query("after", Annotated[str, Meta(pattern="^([0-9]{1,16}:[0-9]{1,16})?$")], _AFTER),
            LIMIT,
        ),
        errors=READ_ERRORS,
    ),
    ("GET", "/v1/jobs/counts"): Operation(
        "Count jobs",
        "How many jobs are in each state, in all and for each task: of the newest 100,000 that fit. A result is kept "
        "for some seconds.",
        "jobs",
        {200: ReplyDoc("The counts.", job_lists.JobCounts)},
        query=_JOB_FILTER,
        errors=READ_ERRORS,
    ),
    ("POST", "/v1/jobs/cancel"): Operation(
        "Cancel many jobs",
        "Cancels the jobs with these ids, or those that fit and have not ended, up to 1,000 in one call. `dry_run` "
        "only counts.",
        "jobs",
        {200: ReplyDoc("How many fit, and how many were cancelled.", job_lists.CancelJobsReply)},
        as_json(job_lists.CancelJobsRequest),
        errors=READ_ERRORS,
    ),
    ("POST", "/v1/jobs/retry"): Operation(
        "Retry many jobs now",
        "Makes the jobs with these ids, or those that fit, due at once if they wait, and sends them back if they are "
        "dead, up to 1,000 in one call. `dry_run` only counts.",
        "jobs",
        {200: ReplyDoc("How many fit, and what was done.", job_lists.RetryJobsReply)},
        as_json(job_lists.RetryJobsRequest),
        errors=READ_ERRORS,
    ),
    ("GET", "/v1/topics/{topic}/messages"): Operation(
        "Search messages",
        "Messages of a topic, the newest first. One call looks at up to 10,000 messages or 16 MiB; follow `after` for "
        "more. Texts are compared as they are, upper and lower case differ.",
        "topics",
        {200: ReplyDoc("A page of messages.", job_lists.MessageSearchReply)},
        query=(
            Query("partition", Natural, "Only this partition; needed if there are more than 64."),
            Query("before", Natural, "Only offsets below this one of the partition."),
            Query("since", str, "Only messages from this RFC 3339 time on."),
            Query("until", str, "Only messages before this RFC 3339 time."),
            Query("key", str, "Only messages with this key."),
            Query("text", str, "Only messages whose value, key or envelope contains this."),
            Query("after", Annotated[str, Meta(pattern=_PLACES)], _AFTER),
            LIMIT,
        ),
        errors=READ_ERRORS,
    ),
    ("GET", "/v1/events"): Operation(
        "Follow events",
        "What changes, as server-sent events: `topic`, `group` and `stream` with counts of what happened, at most "
        "twice a second; only what the caller may see. After `resync` events were missed: read again what is shown.",
        "observation",
        {200: ReplyDoc("Events without an end.", str, "text/event-stream")},
    ),
    ("GET", "/v1/runs"): Operation(
        "List runs",
        "Messages and streams that share a `run_id`: runs of the last day, at most 10,000, the newest first. Shows "
        "what the caller may read.",
        "runs",
        {200: ReplyDoc("A page of runs.", runs.RunsReply)},
        query=(
            Query("state", runs.RunState, "Only runs in this state."),
            Query("after", Annotated[str, Meta(pattern="^([0-9]{1,16}:.*)?$")], _AFTER),
            LIMIT,
        ),
        errors=(400,),
    ),
    ("GET", "/v1/runs/{id}"): Operation(
        "Describe a run",
        "The steps of a run in the order of their tree, with states, attempts, errors and times; and its streams. At "
        "most 1,000 steps of a run are remembered.",
        "runs",
        {200: ReplyDoc("The run.", runs.RunInfo)},
        errors=READ_ERRORS,
    ),
    ("POST", "/v1/runs/{id}/cancel"): Operation(
        "Cancel a run",
        "Cancels every message of the run that has not ended.",
        "runs",
        {200: ReplyDoc("How many were cancelled.", runs.CancelRunReply)},
        errors=READ_ERRORS,
    ),
    ("GET", "/v1/config"): Operation(
        "Settings",
        "Every setting of the server, and where its value comes from. Credentials in addresses are masked.",
        "server",
        {200: ReplyDoc("The settings.", pipelines.ConfigReply)},
    ),
    ("GET", "/v1/pipelines"): Operation(
        "List pipelines",
        "The Spark pipelines that reported in the last day and whose topics the caller may see.",
        "observation",
        {200: ReplyDoc("The pipelines, by name.", pipelines.PipelinesReply)},
    ),
    ("POST", "/v1/pipelines/{name}/report"): Operation(
        "Report a pipeline",
        "Called by a pipeline after each micro-batch, with some right on its topics. The last report is kept in memory "
        "for a day, for at most 1,000 pipelines.",
        "observation",
        {204: ReplyDoc("The report is kept.")},
        as_json(pipelines.PipelineReport),
        errors=READ_ERRORS,
    ),
}
