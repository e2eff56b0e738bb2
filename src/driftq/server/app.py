"""The route table: every path of the server on one page, and how a request finds its handler."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from driftq.server.handlers.backup import BackupHandlers
from driftq.server.handlers.claims import ClaimsHandlers
from driftq.server.handlers.codec import error_response
from driftq.server.handlers.dead_letters import DeadLettersHandlers
from driftq.server.handlers.effects import EffectsHandlers, OutcomeHandlers
from driftq.server.handlers.explain import ExplainHandlers
from driftq.server.handlers.groups import GroupsHandlers
from driftq.server.handlers.jobs import JobsHandlers
from driftq.server.handlers.produce import ProduceHandlers
from driftq.server.handlers.produce_batch import ProduceBatchHandlers
from driftq.server.handlers.records import PartitionRecordsHandlers, StreamRecordsHandlers
from driftq.server.handlers.route import RouteHandlers
from driftq.server.handlers.server import ClockHandlers, MetricsHandlers, OpenapiHandlers, ServerHandlers
from driftq.server.handlers.stages import StagesHandlers
from driftq.server.handlers.streams import StreamCatalogHandlers, StreamHandlers
from driftq.server.handlers.subscriptions import SubscriptionHandlers
from driftq.server.handlers.topics import TopicsHandlers
from driftq.server.handlers.workers import WorkersHandlers
from driftq.server.http import Answer, Request, Response
from driftq.server.http.request import percent_decoded

if TYPE_CHECKING:
    from driftq.server.handlers.context import Context

Handler = Callable[[Request], Answer]
ParameterHandler = Callable[..., Answer]


class RouteSpec(NamedTuple):
    """One method of one path. `{name}` stands for one segment, handed to the handler percent-decoded. A path that ends
    in `/*` stands for everything below it, with any method: the handler gets the rest as raw bytes."""

    method: str
    path: str
    handler: ParameterHandler
    head: bool = False  # HEAD is served too: like GET, without the body


def routes(context: Context) -> list[RouteSpec]:
    """The route table."""
    table = [
        *_about_the_server(context),
        *_queue(context),
        *_topics_and_groups(context),
        *_work(context),
        *_streams(context),
    ]
    openapi = OpenapiHandlers(lambda: ((route.method, route.path) for route in table))
    table.append(RouteSpec("GET", "/v1/openapi.json", openapi.document))
    table.append(RouteSpec("GET", "/v1/docs", openapi.page))
    return table


def _about_the_server(context: Context) -> list[RouteSpec]:
    server = ServerHandlers(context)
    clock = ClockHandlers(context)
    backup = BackupHandlers(context)
    return [
        RouteSpec("GET", "/v1/healthz", server.healthz, head=True),
        RouteSpec("GET", "/v1/readyz", server.readyz, head=True),
        RouteSpec("GET", "/v1/version", server.version),
        RouteSpec("GET", "/v1/clock", clock.show),
        RouteSpec("POST", "/v1/clock/accept", clock.accept),
        RouteSpec("GET", "/v1/backup", backup.download),
        RouteSpec("GET", "/v1/metrics", MetricsHandlers(context).page, head=True),
    ]


def _queue(context: Context) -> list[RouteSpec]:
    batches = ProduceBatchHandlers(context)
    claims = ClaimsHandlers(context)
    return [
        RouteSpec("POST", "/v1/produce", ProduceHandlers(context).produce),
        RouteSpec("POST", "/v1/produce/batch", batches.produce),
        RouteSpec("POST", "/v1/produce/packed", batches.produce_packed),
        RouteSpec("POST", "/v1/route", RouteHandlers(context).route),
        RouteSpec("GET", "/v1/consume", claims.consume),
        RouteSpec("POST", "/v1/claim", claims.claim),
        RouteSpec("POST", "/v1/ack", claims.ack),
        RouteSpec("POST", "/v1/nack", claims.nack),
        RouteSpec("POST", "/v1/ack-cumulative", claims.ack_through),
        RouteSpec("POST", "/v1/ack/batch", claims.ack_batch),
        RouteSpec("POST", "/v1/nack/batch", claims.nack_batch),
        RouteSpec("POST", "/v1/release", claims.release),
        RouteSpec("POST", "/v1/reject", claims.reject),
        RouteSpec("POST", "/v1/extend", claims.extend),
        RouteSpec("GET", "/v1/explain", ExplainHandlers(context).explain),
    ]


def _topics_and_groups(context: Context) -> list[RouteSpec]:
    topics = TopicsHandlers(context)
    groups = GroupsHandlers(context)
    records = PartitionRecordsHandlers(context)
    return [
        RouteSpec("GET", "/v1/topics", topics.list),
        RouteSpec("POST", "/v1/topics", topics.create),
        RouteSpec("GET", "/v1/topics/{topic}", topics.describe),
        RouteSpec("PATCH", "/v1/topics/{topic}", topics.change),
        RouteSpec("DELETE", "/v1/topics/{topic}", topics.delete),
        RouteSpec("GET", "/v1/topics/{topic}/offsets", records.offsets),
        RouteSpec("POST", "/v1/offsets", records.offsets_of_topics),
        RouteSpec("GET", "/v1/topics/{topic}/partitions/{partition}/records", records.fetch),
        RouteSpec("GET", "/v1/topics/{topic}/partitions/{partition}/messages", records.peek),
        RouteSpec("GET", "/v1/groups", groups.list),
        RouteSpec("POST", "/v1/groups/offsets", groups.commit_offsets),
        RouteSpec("GET", "/v1/topics/{topic}/groups", groups.list_of_topic),
        RouteSpec("GET", "/v1/topics/{topic}/groups/{group}", groups.describe),
        RouteSpec("DELETE", "/v1/topics/{topic}/groups/{group}", groups.delete),
        RouteSpec("GET", "/v1/topics/{topic}/groups/{group}/states", groups.states),
        RouteSpec("POST", "/v1/topics/{topic}/groups/{group}/seek", groups.seek),
        RouteSpec("POST", "/v1/topics/{topic}/groups/{group}/pause", groups.pause),
        RouteSpec("POST", "/v1/topics/{topic}/groups/{group}/resume", groups.resume),
    ]


def _work(context: Context) -> list[RouteSpec]:
    effects = EffectsHandlers(context)
    letters = DeadLettersHandlers(context)
    jobs = JobsHandlers(context)
    stages = StagesHandlers(context)
    workers = WorkersHandlers(context)
    return [
        # effects that happen once
        RouteSpec("GET", "/v1/idempotency", effects.get),
        RouteSpec("POST", "/v1/idempotency/begin", effects.begin),
        RouteSpec("POST", "/v1/idempotency/commit", effects.commit),
        RouteSpec("POST", "/v1/idempotency/fail", effects.fail),
        RouteSpec("POST", "/v1/outcome", OutcomeHandlers(context).outcome),
        # dead letters and jobs
        RouteSpec("GET", "/v1/dlq/{topic}", letters.list),
        RouteSpec("GET", "/v1/dlq/{topic}/errors", letters.errors),
        RouteSpec("POST", "/v1/dlq/{topic}/redrive", letters.redrive),
        RouteSpec("POST", "/v1/jobs", jobs.enqueue),
        RouteSpec("GET", "/v1/jobs/{topic}/{id}", jobs.get),
        RouteSpec("GET", "/v1/jobs/{topic}/{id}/result", jobs.result),
        RouteSpec("POST", "/v1/jobs/{topic}/{id}/cancel", jobs.cancel),
        # processes that run workers
        RouteSpec("GET", "/v1/workers", workers.list),
        RouteSpec("GET", "/v1/workers/{id}", workers.describe),
        RouteSpec("PUT", "/v1/workers/{id}", workers.heartbeat),
        RouteSpec("DELETE", "/v1/workers/{id}", workers.remove),
        RouteSpec("POST", "/v1/workers/{id}/drain", workers.drain),
        RouteSpec("POST", "/v1/workers/{id}/stop", workers.stop),
        # staged appends, for sinks
        RouteSpec("POST", "/v1/stages", stages.stage),
        RouteSpec("POST", "/v1/stages/publish", stages.publish),
        RouteSpec("POST", "/v1/stages/forget", stages.forget),
    ]


def _streams(context: Context) -> list[RouteSpec]:
    streams = StreamHandlers(context, SubscriptionHandlers(context))
    catalog = StreamCatalogHandlers(context)
    return [
        RouteSpec("*", "/v1/stream/*", streams.handle),
        RouteSpec("GET", "/v1/streams", catalog.list),
        RouteSpec("POST", "/v1/streams/trim", catalog.trim),
        RouteSpec("GET", "/v1/streams/records", StreamRecordsHandlers(context).fetch),
    ]


class App:
    """Finds the handler of a request."""

    def __init__(self, table: list[RouteSpec]) -> None:
        self._exact: dict[bytes, dict[str, ParameterHandler]] = {}
        self._patterns: list[tuple[list[str], dict[str, ParameterHandler]]] = []
        self._prefixes: list[tuple[bytes, ParameterHandler]] = []
        for route in table:
            if route.path.endswith("/*"):
                self._prefixes.append((route.path[:-1].encode(), route.handler))
            elif "{" in route.path:
                self._pattern(route.path.strip("/").split("/"))[route.method] = route.handler
            else:
                methods = self._exact.setdefault(route.path.encode(), {})
                methods[route.method] = route.handler
                if route.head:
                    methods["HEAD"] = route.handler

    def _pattern(self, segments: list[str]) -> dict[str, ParameterHandler]:
        for known, known_methods in self._patterns:
            if known == segments:
                return known_methods
        methods: dict[str, ParameterHandler] = {}
        self._patterns.append((segments, methods))
        return methods

    def __call__(self, request: Request) -> Answer:
        methods = self._exact.get(request.raw_path)
        if methods is not None:
            handler = methods.get(request.method)
            if handler is None:
                return _not_allowed(methods)
            # Access and route depend on the head alone, and clients repeat their heads: cache the handler with it.
            request.head.handler = handler
            request.head.route = f"{request.method} {request.path}"
            return handler(request)
        for prefix, below in self._prefixes:
            if request.raw_path.startswith(prefix):
                request.head.handler = _bound(below, request.raw_path[len(prefix) :])
                request.head.route = f"{request.method} {prefix.decode()}*"
                return request.head.handler(request)
        return self._match(request)

    def _match(self, request: Request) -> Answer:
        path = request.path
        if not path.startswith("/v1/"):
            return error_response(404, "NOT_FOUND", "use /v1/* endpoints")
        request_segments = [percent_decoded(segment) for segment in request.raw_path.strip(b"/").split(b"/")]
        for segments, methods in self._patterns:
            values = _values(segments, request_segments)
            if values is not None:
                handler = methods.get(request.method)
                if handler is None:
                    return _not_allowed(methods)
                request.head.route = f"{request.method} /{'/'.join(segments)}"
                return handler(request, *values)
        return error_response(404, "NOT_FOUND", f"there is no {path}")


def _bound(below: ParameterHandler, rest: bytes) -> Handler:
    return lambda request: below(request, rest)


def _values(segments: list[str], request_segments: list[str]) -> list[str] | None:
    """The values of the parameters, or None if the path does not match."""
    if len(segments) != len(request_segments):
        return None
    values: list[str] = []
    for segment, text in zip(segments, request_segments, strict=True):
        if segment.startswith("{"):
            values.append(text)
        elif segment != text:
            return None
    return values


def _not_allowed(methods: dict[str, ParameterHandler]) -> Response:
    allowed = ", ".join(sorted(methods))
    return error_response(405, "METHOD_NOT_ALLOWED", "method not allowed", headers=[("Allow", allowed)])
