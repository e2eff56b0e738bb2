"""The route table: every path of the server on one page, and how a request finds its handler."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from driftq.server.context import Context
from driftq.server.faces.batches import BatchesFace
from driftq.server.faces.catalogue import CatalogueFace
from driftq.server.faces.claims import ClaimsFace
from driftq.server.faces.clock import ClockFace
from driftq.server.faces.deadletters import DeadLettersFace
from driftq.server.faces.effects import EffectsFace
from driftq.server.faces.explain import ExplainFace
from driftq.server.faces.fetch import FetchFace
from driftq.server.faces.jobs import JobsFace
from driftq.server.faces.metrics import MetricsFace
from driftq.server.faces.openapi import OpenapiFace
from driftq.server.faces.queue import QueueFace
from driftq.server.faces.route import RouteFace
from driftq.server.faces.server import ServerFace
from driftq.server.faces.stages import StagesFace
from driftq.server.faces.states import StatesFace
from driftq.server.faces.streamrecords import StreamRecordsFace
from driftq.server.faces.streams import StreamFace
from driftq.server.faces.topics import TopicsFace
from driftq.server.http import Answer, Request, Response
from driftq.server.http.request import percent_decoded
from driftq.server.problems import error_response

Handler = Callable[[Request], Answer]
ParameterHandler = Callable[..., Answer]


class Route(NamedTuple):
    """One method of one path. `{name}` stands for one segment, handed to the handler percent-decoded. A path that ends
    in `/*` stands for everything below it, with any method: the handler gets the rest as raw bytes."""

    method: str
    path: str
    handler: ParameterHandler
    head: bool = False  # HEAD is answered, too: as GET, without the body


def routes(context: Context) -> list[Route]:
    """Everything that is served."""
    table = [
        *_about_the_server(context),
        *_queue(context),
        *_topics_and_groups(context),
        *_work(context),
        *_streams(context),
    ]
    openapi = OpenapiFace(lambda: ((route.method, route.path) for route in table))
    table.append(Route("GET", "/v1/openapi.json", openapi.document))
    table.append(Route("GET", "/v1/docs", openapi.page))
    return table


def _about_the_server(context: Context) -> list[Route]:
    server = ServerFace(context)
    clock = ClockFace(context)
    return [
        Route("GET", "/v1/healthz", server.healthz, head=True),
        Route("GET", "/v1/readyz", server.readyz, head=True),
        Route("GET", "/v1/version", server.version),
        Route("GET", "/v1/clock", clock.show),
        Route("POST", "/v1/clock/accept", clock.accept),
        Route("GET", "/v1/metrics", MetricsFace(context).page, head=True),
    ]


def _queue(context: Context) -> list[Route]:
    queue = QueueFace(context)
    batches = BatchesFace(context)
    claims = ClaimsFace(context)
    return [
        Route("GET", "/v1/topics", queue.list_topics),
        Route("POST", "/v1/topics", queue.create_topic),
        Route("POST", "/v1/produce", queue.produce),
        Route("GET", "/v1/consume", queue.consume),
        Route("POST", "/v1/ack", queue.ack),
        Route("POST", "/v1/nack", queue.nack),
        # many at once
        Route("POST", "/v1/produce/batch", batches.produce),
        Route("POST", "/v1/produce/packed", batches.produce_packed),
        Route("POST", "/v1/claim", claims.claim),
        Route("POST", "/v1/ack/batch", claims.ack),
        Route("POST", "/v1/nack/batch", claims.nack),
        Route("POST", "/v1/release", claims.release),
        Route("POST", "/v1/reject", claims.reject),
        Route("POST", "/v1/extend", claims.extend),
        Route("POST", "/v1/ack-cumulative", claims.ack_through),
        # what would happen, and why nothing does
        Route("POST", "/v1/route", RouteFace(context).route),
        Route("GET", "/v1/explain", ExplainFace(context).explain),
    ]


def _topics_and_groups(context: Context) -> list[Route]:
    topics = TopicsFace(context)
    fetch = FetchFace(context)
    return [
        Route("GET", "/v1/topics/{topic}", topics.describe),
        Route("PATCH", "/v1/topics/{topic}", topics.change),
        Route("DELETE", "/v1/topics/{topic}", topics.delete),
        Route("GET", "/v1/topics/{topic}/offsets", fetch.offsets),
        Route("GET", "/v1/topics/{topic}/partitions/{partition}/records", fetch.fetch),
        Route("GET", "/v1/topics/{topic}/partitions/{partition}/messages", fetch.peek),
        Route("GET", "/v1/groups", topics.list_groups),
        Route("GET", "/v1/topics/{topic}/groups", topics.list_topic_groups),
        Route("GET", "/v1/topics/{topic}/groups/{group}", topics.describe_group),
        Route("DELETE", "/v1/topics/{topic}/groups/{group}", topics.delete_group),
        Route("GET", "/v1/topics/{topic}/groups/{group}/states", StatesFace(context).read),
        Route("POST", "/v1/topics/{topic}/groups/{group}/seek", topics.seek),
        Route("POST", "/v1/topics/{topic}/groups/{group}/pause", topics.pause),
        Route("POST", "/v1/topics/{topic}/groups/{group}/resume", topics.resume),
    ]


def _work(context: Context) -> list[Route]:
    effects = EffectsFace(context)
    letters = DeadLettersFace(context)
    jobs = JobsFace(context)
    stages = StagesFace(context)
    return [
        # effects that happen once
        Route("GET", "/v1/idempotency", effects.get),
        Route("POST", "/v1/idempotency/begin", effects.begin),
        Route("POST", "/v1/idempotency/commit", effects.commit),
        Route("POST", "/v1/idempotency/fail", effects.fail),
        Route("POST", "/v1/outcome", effects.outcome),
        # dead letters and jobs
        Route("GET", "/v1/dlq/{topic}", letters.list),
        Route("GET", "/v1/dlq/{topic}/errors", letters.errors),
        Route("POST", "/v1/dlq/{topic}/redrive", letters.redrive),
        Route("POST", "/v1/jobs", jobs.enqueue),
        Route("GET", "/v1/jobs/{topic}/{id}", jobs.get),
        Route("POST", "/v1/jobs/{topic}/{id}/cancel", jobs.cancel),
        # staged appends, for sinks
        Route("POST", "/v1/stages", stages.stage),
        Route("POST", "/v1/stages/publish", stages.publish),
        Route("POST", "/v1/stages/forget", stages.forget),
    ]


def _streams(context: Context) -> list[Route]:
    catalogue = CatalogueFace(context)
    return [
        Route("*", "/v1/stream/*", StreamFace(context).handle),
        Route("GET", "/v1/streams", catalogue.list),
        Route("POST", "/v1/streams/trim", catalogue.trim),
        Route("GET", "/v1/streams/records", StreamRecordsFace(context).read),
    ]


class App:
    """Finds the handler of a request."""

    def __init__(self, table: list[Route]) -> None:
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
