"""Calls that show how a broker is and what is in it, as pure functions."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from driftq.client.calls.admin import pages
from driftq.client.calls.filters import time_text
from driftq.client.calls.queue import get, json_reader, no_body, post, segment
from driftq.client.endpoint import Page, Pages
from driftq.wire.audit import AuditEntry, AuditReply
from driftq.wire.dead_letters import DeadLetterCount, DeadLetterCounts
from driftq.wire.groups import GroupInfo, GroupsReply
from driftq.wire.job_lists import (
    JobCounts,
    JobsReply,
    ListedJob,
    MessageSearchReply,
)
from driftq.wire.overview import OverviewReply, SeriesReply
from driftq.wire.pipelines import ConfigReply, PipelinesReply
from driftq.wire.runs import CancelRunReply, RunInfo, RunsReply, RunSummary
from driftq.wire.subscriptions import ListedProducer, ListedSubscription, ProducersReply, SubscriptionsReply
from driftq.wire.topics import TopicFigures, TopicsReply

if TYPE_CHECKING:
    from driftq.client.transport.sansio import Call
    from driftq.wire.message import StoredMessage
    from driftq.wire.pipelines import PipelineReport


def overview() -> Call[OverviewReply]:
    """How the broker is now: counts, rates, latency, lag, disk, and what needs attention."""
    return get("/v1/overview", OverviewReply)


def series(
    *, topic: str = "", group: str = "", names: str = "", window_ms: int = 3_600_000, points: int = 360
) -> Call[SeriesReply]:
    """How it was, in the last `window_ms`: the whole broker, or a topic, or a group of it.

    Parameters:
        topic: The series of this topic.
        group: The series of this group of the topic.
        names: Only these series, separated by commas.
        window_ms: How far back, a day at most.
        points: At most so many values; steps of time are averaged.
    """
    query = {"topic": topic, "group": group, "names": names, "window_ms": window_ms, "points": points}
    return get("/v1/series", SeriesReply, query)


def config() -> Call[ConfigReply]:
    """Every setting of the broker, and where its value comes from."""
    return get("/v1/config", ConfigReply)


def list_pipelines() -> Call[PipelinesReply]:
    """The Spark pipelines that reported in the last day."""
    return get("/v1/pipelines", PipelinesReply)


def report_pipeline(name: str, report: PipelineReport) -> Call[None]:
    """Report what a pipeline did."""
    return post(f"/v1/pipelines/{segment(name)}/report", report, no_body, idempotent=True)


def list_audit(
    *,
    who: str = "",
    action: str = "",
    name: str = "",
    result: str = "",
    tenant: str = "",
    since: datetime | str | None = None,
    until: datetime | str | None = None,
    limit: int | None = 100,
) -> Pages[AuditEntry]:
    """Who changed what and who was refused, the newest first; all of it with `limit=None`.

    Parameters:
        who: Only what this caller did: the name of its credential, or the id of its token.
        action: Only this action, such as `topic.delete`; `access` for refusals.
        name: Only changes of this topic, token or other thing.
        result: One of changed, unchanged, done, denied, refused.
        tenant: Only callers of this tenant.
    """
    query = _audit_query(who, action, name, result, tenant) | {"since": time_text(since), "until": time_text(until)}
    return pages("/v1/audit", AuditReply, lambda reply: Page(reply.records, reply.after), query, limit)


def audit_from(
    first: int, *, who: str = "", action: str = "", name: str = "", result: str = "", tenant: str = ""
) -> Call[AuditReply]:
    """A page of records from an offset on, the oldest first. The next page begins at its `after`, or at `end`."""
    query = _audit_query(who, action, name, result, tenant)
    return get("/v1/audit", AuditReply, {**query, "from": first, "limit": 1_000})


def _audit_query(who: str, action: str, name: str, result: str, tenant: str) -> dict[str, str | None]:
    return {"who": who, "action": action, "name": name, "result": result, "tenant": tenant}


# --- lists ---


def topic_figures(
    *, sort: str = "name", order: str = "", search: str = "", limit: int | None = None
) -> Pages[TopicFigures]:
    """Topics with sizes, rates and lag, sorted by one of these; all of them with `limit=None`."""
    query = {"details": "true", "sort": sort, "order": order or None, "search": search}
    return pages("/v1/topics", TopicsReply, lambda reply: Page(reply.figures, reply.after), query, limit)


def sorted_groups(
    *, sort: str = "lag", order: str = "", search: str = "", topic: str = "", limit: int | None = None
) -> Pages[GroupInfo]:
    """Groups sorted by lag or another figure; all of them with `limit=None`."""
    query = {"details": "true", "sort": sort, "order": order or None, "search": search, "topic": topic}
    return pages("/v1/groups", GroupsReply, lambda reply: Page(reply.groups, reply.after), query, limit)


def letter_counts() -> Pages[DeadLetterCount]:
    """How many dead letters each topic has, the most first."""
    return pages("/v1/dlq", DeadLetterCounts, lambda reply: Page(reply.topics, reply.after), {})


def list_subscriptions() -> Pages[ListedSubscription]:
    """The subscriptions to streams."""
    return pages("/v1/subscriptions", SubscriptionsReply, lambda reply: Page(reply.subscriptions, reply.after), {})


def list_producers(*, topic: str = "", stream: str = "") -> Pages[ListedProducer]:
    """The idempotent producers of all topics and streams, or of one."""
    query = {"topic": topic, "stream": stream}
    return pages("/v1/producers", ProducersReply, lambda reply: Page(reply.producers, reply.after), query)


def search_messages(
    topic: str,
    *,
    text: str = "",
    key: str | None = None,
    partition: int | None = None,
    since: datetime | str | None = None,
    until: datetime | str | None = None,
    limit: int | None = 20,
) -> Pages[StoredMessage]:
    """Messages of a topic, the newest first, whose value, key or envelope contains a text."""
    query = {
        "text": text, "key": key, "partition": partition, "since": time_text(since), "until": time_text(until),
    }  # fmt: skip
    path = f"/v1/topics/{segment(topic)}/messages"
    return pages(path, MessageSearchReply, lambda reply: Page(reply.messages, reply.after), query, limit)


# --- jobs and runs ---


def list_jobs(
    topic: str = "",
    *,
    state: str = "",
    task: str = "",
    tenant: str = "",
    since: datetime | str | None = None,
    until: datetime | str | None = None,
    limit: int | None = 100,
) -> Pages[ListedJob]:
    """Jobs by state (several separated by commas), task, tenant and time, the newest of each partition first; all of
    them with `limit=None`."""
    query = {
        "topic": topic, "state": state, "task": task, "tenant_id": tenant, "since": time_text(since),
        "until": time_text(until),
    }  # fmt: skip
    return pages("/v1/jobs", JobsReply, lambda reply: Page(reply.jobs, reply.after), query, limit)


def count_jobs(topic: str = "", *, task: str = "", tenant: str = "") -> Call[JobCounts]:
    """How many jobs are in each state, in all and for each task."""
    return get("/v1/jobs/counts", JobCounts, {"topic": topic, "task": task, "tenant_id": tenant})


def list_runs(*, state: str = "", limit: int | None = 100) -> Pages[RunSummary]:
    """Runs of the last day, the newest first."""
    return pages("/v1/runs", RunsReply, lambda reply: Page(reply.runs, reply.after), {"state": state}, limit)


def describe_run(run_id: str) -> Call[RunInfo]:
    """The steps of a run in the order of their tree, and its streams."""
    return get(f"/v1/runs/{segment(run_id)}", RunInfo)


def cancel_run(run_id: str) -> Call[CancelRunReply]:
    """Cancel the messages of a run that have not ended."""
    return post(f"/v1/runs/{segment(run_id)}/cancel", {}, json_reader(CancelRunReply), idempotent=True)
