"""The route table: every path of the server, its handler, the right that a caller needs, and what its calls are in the
audit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driftq.server.access.identity import ANY, BODY, PUBLIC, Right
from driftq.server.app import DATA, GROUP_PARAMETER, TOPIC_PARAMETER, RouteSpec
from driftq.server.handlers.audit import AuditHandlers
from driftq.server.handlers.backup import BackupHandlers
from driftq.server.handlers.claims import ClaimsHandlers
from driftq.server.handlers.console import ConsoleHandlers
from driftq.server.handlers.dead_letters import DeadLettersHandlers
from driftq.server.handlers.effects import EffectsHandlers, OutcomeHandlers
from driftq.server.handlers.events import EventsHandlers
from driftq.server.handlers.explain import ExplainHandlers
from driftq.server.handlers.groups import GroupsHandlers
from driftq.server.handlers.job_batches import JobBatchHandlers
from driftq.server.handlers.job_changes import JobChangeHandlers
from driftq.server.handlers.job_lists import JobListHandlers
from driftq.server.handlers.jobs import JobsHandlers
from driftq.server.handlers.message_search import MessageSearchHandlers
from driftq.server.handlers.overview import OverviewHandlers
from driftq.server.handlers.pipelines import ConfigHandlers, PipelinesHandlers
from driftq.server.handlers.produce import ProduceHandlers
from driftq.server.handlers.produce_batch import ProduceBatchHandlers
from driftq.server.handlers.records import PartitionRecordsHandlers, StreamRecordsHandlers
from driftq.server.handlers.route import RouteHandlers
from driftq.server.handlers.runs import RunsHandlers
from driftq.server.handlers.schedules import SchedulesHandlers
from driftq.server.handlers.server import ClockHandlers, MetricsHandlers, OpenapiHandlers, ServerHandlers
from driftq.server.handlers.stages import StagesHandlers
from driftq.server.handlers.stream_catalog import StreamCatalogHandlers
from driftq.server.handlers.streams import StreamHandlers
from driftq.server.handlers.subscriptions import SubscriptionHandlers
from driftq.server.handlers.tenants import TenantsHandlers
from driftq.server.handlers.tokens import TokensHandlers
from driftq.server.handlers.topic_changes import TopicChangeHandlers
from driftq.server.handlers.topics import TopicsHandlers
from driftq.server.handlers.workers import WorkersHandlers
from driftq.server.metrics.registry import Metrics
from driftq.server.observation.observers import Observers
from driftq.wire.grants import ADMIN, CONSUME, MANAGE, OBSERVE, PRODUCE, READ

if TYPE_CHECKING:
    from driftq.server.handlers.context import Context

_TOPIC, _GROUP = TOPIC_PARAMETER, GROUP_PARAMETER
_PRODUCE, _CONSUME, _READ = Right(PRODUCE, BODY), Right(CONSUME, BODY), Right(READ, BODY)
_SEE_TOPIC, _SEE_GROUP = Right(ANY.verb, _TOPIC), Right(ANY.verb, _GROUP)  # some right on it
_READ_TOPIC, _MANAGE_TOPIC = Right(READ, _TOPIC), Right(MANAGE, _TOPIC)
_ADMIN, _ADMIN_WITHIN = Right(ADMIN, operators=True), Right(ADMIN)  # of the server; of a tenant, too
_STREAM_CHANGES = (
    "stream.delete", "subscription.create", "subscription.delete", "subscription.link", "subscription.unlink",
)  # fmt: skip
_OBSERVE, _OBSERVE_ALL = Right(OBSERVE), Right(OBSERVE, operators=True)


def routes(context: Context) -> list[RouteSpec]:
    """The route table."""
    engine = context.engine
    if not context.tenant:
        context.complete(lambda: Observers(engine, context.metrics or Metrics(engine)))
    table = [
        *_about_the_server(context),
        *_queue(context),
        *_topics_and_groups(context),
        *_work(context),
        *_schedules(context),
        *_jobs(context),
        *_streams(context),
        *_access(context),
    ]
    openapi = OpenapiHandlers(lambda: ((route.method, route.path) for route in table))
    table.append(RouteSpec("GET", "/v1/openapi.json", openapi.document, PUBLIC))
    table.append(RouteSpec("GET", "/v1/docs", openapi.page, PUBLIC))
    console = ConsoleHandlers()  # pages and files without data, for browsers: no part of the API's document
    pages = [RouteSpec("GET", path, console.redirect, PUBLIC) for path in ("/", "/console")]
    return [*table, *pages, RouteSpec("*", "/console/*", console.handle, PUBLIC)]


def _about_the_server(context: Context) -> list[RouteSpec]:
    server = ServerHandlers(context)
    clock = ClockHandlers(context)
    backup = BackupHandlers(context)
    overview = OverviewHandlers(context)
    return [
        RouteSpec("GET", "/v1/healthz", server.healthz, PUBLIC, head=True),
        RouteSpec("GET", "/v1/readyz", server.readyz, PUBLIC, head=True),
        RouteSpec("GET", "/v1/version", server.version, ANY),
        RouteSpec("GET", "/v1/clock", clock.show, _OBSERVE),
        RouteSpec("POST", "/v1/clock/accept", clock.accept, _ADMIN, audit="clock.accept"),
        RouteSpec("GET", "/v1/backup", backup.download, _ADMIN, audit="backup.download"),
        RouteSpec("GET", "/v1/metrics", MetricsHandlers(context).page, _OBSERVE, head=True),
        RouteSpec("GET", "/v1/overview", overview.overview, _OBSERVE_ALL),
        RouteSpec("GET", "/v1/series", overview.series, _OBSERVE_ALL),
        RouteSpec("GET", "/v1/series/names", overview.names, _OBSERVE_ALL),
        RouteSpec("GET", "/v1/events", EventsHandlers(context).follow, _OBSERVE_ALL),
        RouteSpec("GET", "/v1/config", ConfigHandlers(context).show, _OBSERVE_ALL),
    ]


def _queue(context: Context) -> list[RouteSpec]:
    batches = ProduceBatchHandlers(context)
    claims = ClaimsHandlers(context)
    return [
        RouteSpec("POST", "/v1/produce", ProduceHandlers(context).produce, _PRODUCE, audit=DATA),
        RouteSpec("POST", "/v1/produce/batch", batches.produce, _PRODUCE, audit=DATA),
        RouteSpec("POST", "/v1/produce/packed", batches.produce_packed, _PRODUCE, audit=DATA),
        RouteSpec("POST", "/v1/route", RouteHandlers(context).route, _PRODUCE, audit=DATA),
        RouteSpec("GET", "/v1/consume", claims.consume, _CONSUME),
        RouteSpec("POST", "/v1/claim", claims.claim, _CONSUME, audit=DATA),
        RouteSpec("POST", "/v1/ack", claims.ack, _CONSUME, audit=DATA),
        RouteSpec("POST", "/v1/nack", claims.nack, _CONSUME, audit=DATA),
        RouteSpec("POST", "/v1/ack-cumulative", claims.ack_through, _CONSUME, audit=DATA),
        RouteSpec("POST", "/v1/ack/batch", claims.ack_batch, _CONSUME, audit=DATA),
        RouteSpec("POST", "/v1/nack/batch", claims.nack_batch, _CONSUME, audit=DATA),
        RouteSpec("POST", "/v1/release", claims.release, _CONSUME, audit=DATA),
        RouteSpec("POST", "/v1/reject", claims.reject, _CONSUME, audit=DATA),
        RouteSpec("POST", "/v1/extend", claims.extend, _CONSUME, audit=DATA),
        RouteSpec("GET", "/v1/explain", ExplainHandlers(context).explain, _READ),
    ]


def _topics_and_groups(context: Context) -> list[RouteSpec]:
    topics = TopicsHandlers(context)
    changes = TopicChangeHandlers(context)
    groups = GroupsHandlers(context)
    records = PartitionRecordsHandlers(context)
    return [
        RouteSpec("GET", "/v1/topics", topics.list, ANY),
        RouteSpec("POST", "/v1/topics", topics.create, Right(MANAGE, BODY), audit="topic.create"),
        RouteSpec("GET", "/v1/topics/{topic}", topics.describe, _SEE_TOPIC),
        RouteSpec("PATCH", "/v1/topics/{topic}", topics.change, _MANAGE_TOPIC, audit="topic.configure"),
        RouteSpec("DELETE", "/v1/topics/{topic}", topics.delete, _MANAGE_TOPIC, audit="topic.delete"),
        RouteSpec("POST", "/v1/topics/{topic}/purge", changes.purge, _MANAGE_TOPIC, audit="topic.purge"),
        RouteSpec("POST", "/v1/topics/{topic}/move", changes.move, _MANAGE_TOPIC, audit="topic.move"),
        RouteSpec("GET", "/v1/topics/{topic}/offsets", records.offsets, _SEE_TOPIC),
        RouteSpec("POST", "/v1/offsets", records.offsets_of_topics, Right(ANY.verb, BODY), audit=DATA),
        RouteSpec("GET", "/v1/topics/{topic}/partitions/{partition}/records", records.fetch, _READ_TOPIC),
        RouteSpec("GET", "/v1/topics/{topic}/partitions/{partition}/messages", records.peek, _READ_TOPIC),
        RouteSpec("GET", "/v1/topics/{topic}/messages", MessageSearchHandlers(context).search, _READ_TOPIC),
        RouteSpec("GET", "/v1/groups", groups.list, ANY),
        RouteSpec("POST", "/v1/groups/offsets", groups.commit_offsets, _CONSUME, audit=DATA),
        RouteSpec("GET", "/v1/topics/{topic}/groups", groups.list_of_topic, _SEE_TOPIC),
        RouteSpec("GET", "/v1/topics/{topic}/groups/{group}", groups.describe, _SEE_GROUP),
        RouteSpec("DELETE", "/v1/topics/{topic}/groups/{group}", groups.delete, _MANAGE_TOPIC, audit="group.delete"),
        RouteSpec("GET", "/v1/topics/{topic}/groups/{group}/states", groups.states, _SEE_GROUP),
        RouteSpec("GET", "/v1/topics/{topic}/groups/{group}/lanes", groups.lanes, _SEE_GROUP),
        RouteSpec("POST", "/v1/topics/{topic}/groups/{group}/seek", groups.seek, _MANAGE_TOPIC, audit="group.seek"),
        RouteSpec("POST", "/v1/topics/{topic}/groups/{group}/pause", groups.pause, _MANAGE_TOPIC, audit="group.pause"),
        RouteSpec(
            "POST", "/v1/topics/{topic}/groups/{group}/resume", groups.resume, _MANAGE_TOPIC, audit="group.resume"
        ),
    ]


def _work(context: Context) -> list[RouteSpec]:
    effects = EffectsHandlers(context)
    stages = StagesHandlers(context)
    workers = WorkersHandlers(context)
    runs = RunsHandlers(context)
    pipelines = PipelinesHandlers(context)
    return [
        # pipelines
        RouteSpec("GET", "/v1/pipelines", pipelines.list, _OBSERVE_ALL),
        RouteSpec(
            "POST", "/v1/pipelines/{name}/report", pipelines.report, Right(ANY.verb, BODY, operators=True), audit=DATA
        ),
        # runs
        RouteSpec("GET", "/v1/runs", runs.list, _OBSERVE_ALL),
        RouteSpec("GET", "/v1/runs/{id}", runs.describe, Right(OBSERVE, BODY, operators=True)),
        RouteSpec("POST", "/v1/runs/{id}/cancel", runs.cancel, Right(PRODUCE, BODY, operators=True), audit=DATA),
        # effects that happen once
        RouteSpec("GET", "/v1/idempotency", effects.get, _CONSUME),
        RouteSpec("POST", "/v1/idempotency/begin", effects.begin, _CONSUME, audit=DATA),
        RouteSpec("POST", "/v1/idempotency/commit", effects.commit, _CONSUME, audit=DATA),
        RouteSpec("POST", "/v1/idempotency/fail", effects.fail, _CONSUME, audit=DATA),
        RouteSpec("POST", "/v1/outcome", OutcomeHandlers(context).outcome, Right(ANY.verb, BODY), audit=DATA),
        # processes that run workers
        RouteSpec("GET", "/v1/workers", workers.list, ANY),
        RouteSpec("GET", "/v1/workers/{id}", workers.describe, Right(ANY.verb, BODY)),
        RouteSpec("PUT", "/v1/workers/{id}", workers.heartbeat, _CONSUME, audit=DATA),
        RouteSpec("DELETE", "/v1/workers/{id}", workers.remove, _CONSUME, audit=DATA),
        RouteSpec("POST", "/v1/workers/{id}/drain", workers.drain, Right(MANAGE, BODY), audit="worker.drain"),
        RouteSpec("POST", "/v1/workers/{id}/stop", workers.stop, Right(MANAGE, BODY), audit="worker.stop"),
        # staged appends, for sinks
        RouteSpec("POST", "/v1/stages", stages.stage, Right(ANY.verb, BODY), audit=DATA),
        RouteSpec("POST", "/v1/stages/publish", stages.publish, Right(ANY.verb, BODY), audit=DATA),
        RouteSpec("POST", "/v1/stages/forget", stages.forget, Right(ANY.verb, BODY), audit=DATA),
    ]


def _schedules(context: Context) -> list[RouteSpec]:
    schedules = SchedulesHandlers(context)
    return [
        RouteSpec("GET", "/v1/schedules", schedules.list, ANY),
        RouteSpec("POST", "/v1/schedules", schedules.create, _PRODUCE, audit="schedule.create"),
        RouteSpec("GET", "/v1/schedules/{name}", schedules.show, Right(ANY.verb, BODY)),
        RouteSpec("DELETE", "/v1/schedules/{name}", schedules.delete, _PRODUCE, audit="schedule.delete"),
        RouteSpec("POST", "/v1/schedules/{name}/pause", schedules.pause, _PRODUCE, audit="schedule.pause"),
        RouteSpec("POST", "/v1/schedules/{name}/resume", schedules.resume, _PRODUCE, audit="schedule.resume"),
        RouteSpec("POST", "/v1/schedules/{name}/run", schedules.run, _PRODUCE, audit=DATA),
    ]


def _jobs(context: Context) -> list[RouteSpec]:
    letters = DeadLettersHandlers(context)
    jobs = JobsHandlers(context)
    job_lists = JobListHandlers(context)
    job_batches = JobBatchHandlers(context)
    job_changes = JobChangeHandlers(context)
    return [
        RouteSpec("GET", "/v1/dlq", letters.counts, ANY),
        RouteSpec("GET", "/v1/dlq/{topic}", letters.list, _READ),
        RouteSpec("GET", "/v1/dlq/{topic}/errors", letters.errors, _READ),
        RouteSpec("POST", "/v1/dlq/{topic}/redrive", letters.redrive, _CONSUME, audit="dead_letters.redrive"),
        RouteSpec("POST", "/v1/dlq/{topic}/delete", letters.delete, _CONSUME, audit="dead_letters.delete"),
        RouteSpec("GET", "/v1/dlq/{topic}/export", letters.export, _READ),
        RouteSpec("POST", "/v1/jobs", jobs.enqueue, _PRODUCE, audit=DATA),
        RouteSpec("GET", "/v1/jobs", job_lists.list, _READ),
        RouteSpec("GET", "/v1/jobs/counts", job_lists.counts, _READ),
        RouteSpec("POST", "/v1/jobs/cancel", job_changes.cancel_many, _PRODUCE, audit="jobs.cancel"),
        RouteSpec("POST", "/v1/jobs/retry", job_changes.retry_many, _PRODUCE, audit="jobs.retry"),
        RouteSpec("GET", "/v1/jobs/{topic}/{id}", jobs.get, _READ_TOPIC),
        RouteSpec("GET", "/v1/jobs/{topic}/{id}/result", jobs.result, _READ_TOPIC),
        RouteSpec("POST", "/v1/jobs/{topic}/{id}/cancel", jobs.cancel, Right(PRODUCE, _TOPIC), audit=DATA),
        RouteSpec("POST", "/v1/jobs/{topic}/{id}/retry", job_changes.retry, Right(PRODUCE, _TOPIC), audit="jobs.retry"),
        # job batches
        RouteSpec("POST", "/v1/job-batches", job_batches.create, _PRODUCE, audit=DATA),
        RouteSpec("GET", "/v1/job-batches", job_batches.list, _READ),
        RouteSpec("GET", "/v1/job-batches/{id}", job_batches.get, _READ),
        RouteSpec("POST", "/v1/job-batches/{id}/jobs", job_batches.add, _PRODUCE, audit=DATA),
        RouteSpec("GET", "/v1/job-batches/{id}/jobs", job_batches.jobs, _READ),
        RouteSpec("GET", "/v1/job-batches/{id}/results", job_batches.results, _READ),
        RouteSpec("POST", "/v1/job-batches/{id}/cancel", job_batches.cancel, _PRODUCE, audit="job_batch.cancel"),
    ]


def _streams(context: Context) -> list[RouteSpec]:
    subscriptions = SubscriptionHandlers(context)
    streams = StreamHandlers(context, subscriptions)
    catalog = StreamCatalogHandlers(context, streams, subscriptions)
    return [
        RouteSpec("*", "/v1/stream/*", streams.handle, streams.right_of, audit=_STREAM_CHANGES),
        RouteSpec("GET", "/v1/streams", catalog.list, ANY),
        RouteSpec("GET", "/v1/subscriptions", catalog.subscriptions, ANY),
        RouteSpec("GET", "/v1/producers", catalog.producers, ANY),
        RouteSpec("POST", "/v1/streams/trim", catalog.trim, Right(MANAGE, BODY), audit="stream.trim"),
        RouteSpec("GET", "/v1/streams/records", StreamRecordsHandlers(context).fetch, _READ),
    ]


def _access(context: Context) -> list[RouteSpec]:
    tokens = TokensHandlers(context)
    tenants = TenantsHandlers(context)
    return [
        RouteSpec("GET", "/v1/identity", tokens.identity, ANY),
        RouteSpec("GET", "/v1/tokens", tokens.list, _ADMIN_WITHIN),
        RouteSpec("POST", "/v1/tokens", tokens.create, _ADMIN_WITHIN, audit="token.create"),
        RouteSpec("POST", "/v1/tokens/derive", tokens.derive, ANY, audit=DATA),
        RouteSpec("GET", "/v1/tokens/{id}", tokens.show, _ADMIN_WITHIN),
        RouteSpec("PATCH", "/v1/tokens/{id}", tokens.narrow, _ADMIN_WITHIN, audit="token.narrow"),
        RouteSpec("DELETE", "/v1/tokens/{id}", tokens.revoke, _ADMIN_WITHIN, audit="token.revoke"),
        RouteSpec("POST", "/v1/tokens/{id}/rotate", tokens.rotate, _ADMIN_WITHIN, audit="token.rotate"),
        RouteSpec("GET", "/.well-known/jwks.json", tokens.public_keys, PUBLIC),
        RouteSpec("GET", "/v1/audit", AuditHandlers(context).list, _READ),
        RouteSpec("GET", "/v1/tenants", tenants.list, _ADMIN),
        RouteSpec("POST", "/v1/tenants", tenants.create, _ADMIN, audit="tenant.create"),
        RouteSpec("GET", "/v1/tenants/{tenant}", tenants.show, _ADMIN),
        RouteSpec("PATCH", "/v1/tenants/{tenant}", tenants.change, _ADMIN, audit="tenant.configure"),
        RouteSpec("DELETE", "/v1/tenants/{tenant}", tenants.delete, _ADMIN, audit="tenant.delete"),
    ]
