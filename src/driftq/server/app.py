"""The route table: every path of the server on one page, and how a request finds its handler."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from driftq.server.handlers.base import Context, error_response
from driftq.server.handlers.claims import ClaimsHandlers
from driftq.server.handlers.dead_letters import DeadLettersHandlers
from driftq.server.handlers.effects import EffectsHandlers
from driftq.server.handlers.explain import ExplainHandlers
from driftq.server.handlers.jobs import JobsHandlers
from driftq.server.handlers.produce_batch import BatchesHandlers
from driftq.server.handlers.queue import QueueHandlers
from driftq.server.handlers.records import FetchHandlers, StatesHandlers, StreamRecordsHandlers
from driftq.server.handlers.route import RouteHandlers
from driftq.server.handlers.server import ClockHandlers, MetricsHandlers, OpenapiHandlers, ServerHandlers
from driftq.server.handlers.stages import StagesHandlers
from driftq.server.handlers.streams import CatalogueHandlers, StreamHandlers
from driftq.server.handlers.topics import TopicsHandlers
from driftq.server.http import Answer, Request, Response
from driftq.server.http.request import percent_decoded

Handler = Callable[[Request], Answer]
ParameterHandler = Callable[..., Answer]


class RouteSpec(NamedTuple):
    """One method of one path. `{name}` stands for one segment, handed to the handler percent-decoded. A path that ends
    in `/*` stands for everything below it, with any method: the handler gets the rest as raw bytes."""

    method: str
    path: str
    handler: ParameterHandler
    head: bool = False  # HEAD is answered, too: as GET, without the body


def routes(context: Context) -> list[RouteSpec]:
    """Everything that is served."""
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
    return [
        RouteSpec("GET", "/v1/healthz", server.healthz, head=True),
        RouteSpec("GET", "/v1/readyz", server.readyz, head=True),
        RouteSpec("GET", "/v1/version", server.version),
        RouteSpec("GET", "/v1/clock", clock.show),
        RouteSpec("POST", "/v1/clock/accept", clock.accept),
        RouteSpec("GET", "/v1/metrics", MetricsHandlers(context).page, head=True),
    ]


def _queue(context: Context) -> list[RouteSpec]:
    queue = QueueHandlers(context)
    batches = BatchesHandlers(context)
    claims = ClaimsHandlers(context)
    return [
        RouteSpec("GET", "/v1/topics", queue.list_topics),
        RouteSpec("POST", "/v1/topics", queue.create_topic),
        RouteSpec("POST", "/v1/produce", queue.produce),
        RouteSpec("GET", "/v1/consume", queue.consume),
        RouteSpec("POST", "/v1/ack", queue.ack),
        RouteSpec("POST", "/v1/nack", queue.nack),
        # many at once
        RouteSpec("POST", "/v1/produce/batch", batches.produce),
        RouteSpec("POST", "/v1/produce/packed", batches.produce_packed),
        RouteSpec("POST", "/v1/claim", claims.claim),
        RouteSpec("POST", "/v1/ack/batch", claims.ack),
        RouteSpec("POST", "/v1/nack/batch", claims.nack),
        RouteSpec("POST", "/v1/release", claims.release),
        RouteSpec("POST", "/v1/reject", claims.reject),
        RouteSpec("POST", "/v1/extend", claims.extend),
        RouteSpec("POST", "/v1/ack-cumulative", claims.ack_through),
        # what would happen, and why nothing does
        RouteSpec("POST", "/v1/route", RouteHandlers(context).route),
        RouteSpec("GET", "/v1/explain", ExplainHandlers(context).explain),
    ]


def _topics_and_groups(context: Context) -> list[RouteSpec]:
    topics = TopicsHandlers(context)
    fetch = FetchHandlers(context)
    return [
        RouteSpec("GET", "/v1/topics/{topic}", topics.describe),
        RouteSpec("PATCH", "/v1/topics/{topic}", topics.change),
        RouteSpec("DELETE", "/v1/topics/{topic}", topics.delete),
        RouteSpec("GET", "/v1/topics/{topic}/offsets", fetch.offsets),
        RouteSpec("GET", "/v1/topics/{topic}/partitions/{partition}/records", fetch.fetch),
        RouteSpec("GET", "/v1/topics/{topic}/partitions/{partition}/messages", fetch.peek),
        RouteSpec("GET", "/v1/groups", topics.list_groups),
        RouteSpec("GET", "/v1/topics/{topic}/groups", topics.list_topic_groups),
        RouteSpec("GET", "/v1/topics/{topic}/groups/{group}", topics.describe_group),
        RouteSpec("DELETE", "/v1/topics/{topic}/groups/{group}", topics.delete_group),
        RouteSpec("GET", "/v1/topics/{topic}/groups/{group}/states", StatesHandlers(context).read),
        RouteSpec("POST", "/v1/topics/{topic}/groups/{group}/seek", topics.seek),
        RouteSpec("POST", "/v1/topics/{topic}/groups/{group}/pause", topics.pause),
        RouteSpec("POST", "/v1/topics/{topic}/groups/{group}/resume", topics.resume),
    ]


def _work(context: Context) -> list[RouteSpec]:
    effects = EffectsHandlers(context)
    letters = DeadLettersHandlers(context)
    jobs = JobsHandlers(context)
    stages = StagesHandlers(context)
    return [
        # effects that happen once
        RouteSpec("GET", "/v1/idempotency", effects.get),
        RouteSpec("POST", "/v1/idempotency/begin", effects.begin),
        RouteSpec("POST", "/v1/idempotency/commit", effects.commit),
        RouteSpec("POST", "/v1/idempotency/fail", effects.fail),
        RouteSpec("POST", "/v1/outcome", effects.outcome),
        # dead letters and jobs
        RouteSpec("GET", "/v1/dlq/{topic}", letters.list),
        RouteSpec("GET", "/v1/dlq/{topic}/errors", letters.errors),
        RouteSpec("POST", "/v1/dlq/{topic}/redrive", letters.redrive),
        RouteSpec("POST", "/v1/jobs", jobs.enqueue),
        RouteSpec("GET", "/v1/jobs/{topic}/{id}", jobs.get),
        RouteSpec("POST", "/v1/jobs/{topic}/{id}/cancel", jobs.cancel),
        # staged appends, for sinks
        RouteSpec("POST", "/v1/stages", stages.stage),
        RouteSpec("POST", "/v1/stages/publish", stages.publish),
        RouteSpec("POST", "/v1/stages/forget", stages.forget),
    ]


def _streams(context: Context) -> list[RouteSpec]:
    catalogue = CatalogueHandlers(context)
    return [
        RouteSpec("*", "/v1/stream/*", StreamHandlers(context).handle),
        RouteSpec("GET", "/v1/streams", catalogue.list),
        RouteSpec("POST", "/v1/streams/trim", catalogue.trim),
        RouteSpec("GET", "/v1/streams/records", StreamRecordsHandlers(context).read),
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
            # Whether a request is let in and who handles it depend on its head alone, and heads come again and again.
            request.head.handler = handler
            return handler(request)
        for prefix, below in self._prefixes:
            if request.raw_path.startswith(prefix):
                request.head.handler = _bound(below, request.raw_path[len(prefix) :])
                return request.head.handler(request)
        return self._match(request)

    def _match(self, request: Request) -> Answer:
        path = request.path
        if not path.startswith("/v1/"):
            return error_response(404, "NOT_FOUND", "use /v1/* endpoints")
        given = [percent_decoded(segment) for segment in request.raw_path.strip(b"/").split(b"/")]
        for segments, methods in self._patterns:
            values = _values(segments, given)
            if values is not None:
                handler = methods.get(request.method)
                return handler(request, *values) if handler is not None else _not_allowed(methods)
        return error_response(404, "NOT_FOUND", f"there is no {path}")


def _bound(below: ParameterHandler, rest: bytes) -> Handler:
    return lambda request: below(request, rest)


def _values(segments: list[str], given: list[str]) -> list[str] | None:
    """What stands for the parameters, or None if the path is another one."""
    if len(segments) != len(given):
        return None
    values: list[str] = []
    for segment, text in zip(segments, given, strict=True):
        if segment.startswith("{"):
            values.append(text)
        elif segment != text:
            return None
    return values


def _not_allowed(methods: dict[str, ParameterHandler]) -> Response:
    allowed = ", ".join(sorted(methods))
    return error_response(405, "METHOD_NOT_ALLOWED", "method not allowed", headers=[("Allow", allowed)])
