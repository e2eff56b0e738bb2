"""The route table: every path of the server with the right it needs, and how a request finds its handler."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from driftq.server.access.identity import (
    ANY,
    BODY,
    OWN,
    PUBLIC,
    Right,
    require,
    require_any_group,
    require_any_topic,
    require_topic,
)
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
from driftq.server.handlers.tokens import TokensHandlers
from driftq.server.handlers.topics import TopicsHandlers
from driftq.server.handlers.workers import WorkersHandlers
from driftq.server.http import Answer, Request, Response
from driftq.server.http.request import percent_decoded
from driftq.wire.grants import ADMIN, CONSUME, MANAGE, OBSERVE, PRODUCE, READ, UNNAMED_VERBS

if TYPE_CHECKING:
    from driftq.server.access.authenticator import Authenticator
    from driftq.server.handlers.context import Context

Handler = Callable[[Request], Answer]
ParameterHandler = Callable[..., Answer]
RightOf = Callable[[str, bytes], Right]

_TOPIC, _GROUP = "topic", "group"  # names of path parameters
_PRODUCE, _CONSUME, _READ = Right(PRODUCE, BODY), Right(CONSUME, BODY), Right(READ, BODY)
_SEE_TOPIC, _SEE_GROUP = Right(ANY.verb, _TOPIC), Right(ANY.verb, _GROUP)  # some right on it
_READ_TOPIC, _MANAGE_TOPIC = Right(READ, _TOPIC), Right(MANAGE, _TOPIC)
_ADMIN, _OBSERVE = Right(ADMIN), Right(OBSERVE)


class RouteSpec(NamedTuple):
    """One method of one path. `{name}` stands for one segment, handed to the handler percent-decoded. A path that ends
    in `/*` stands for everything below it, with any method: the handler gets the rest as raw bytes."""

    method: str
    path: str
    handler: ParameterHandler
    right: Right | RightOf  # what a caller needs; of a path that ends in `/*`: by method and the rest of the path
    head: bool = False  # HEAD is served too: like GET, without the body


def routes(context: Context) -> list[RouteSpec]:
    """The route table."""
    table = [
        *_about_the_server(context),
        *_queue(context),
        *_topics_and_groups(context),
        *_work(context),
        *_streams(context),
        *_access(context),
    ]
    openapi = OpenapiHandlers(lambda: ((route.method, route.path) for route in table))
    table.append(RouteSpec("GET", "/v1/openapi.json", openapi.document, PUBLIC))
    table.append(RouteSpec("GET", "/v1/docs", openapi.page, PUBLIC))
    return table


def _about_the_server(context: Context) -> list[RouteSpec]:
    server = ServerHandlers(context)
    clock = ClockHandlers(context)
    backup = BackupHandlers(context)
    return [
        RouteSpec("GET", "/v1/healthz", server.healthz, PUBLIC, head=True),
        RouteSpec("GET", "/v1/readyz", server.readyz, PUBLIC, head=True),
        RouteSpec("GET", "/v1/version", server.version, ANY),
        RouteSpec("GET", "/v1/clock", clock.show, _OBSERVE),
        RouteSpec("POST", "/v1/clock/accept", clock.accept, _ADMIN),
        RouteSpec("GET", "/v1/backup", backup.download, _ADMIN),
        RouteSpec("GET", "/v1/metrics", MetricsHandlers(context).page, _OBSERVE, head=True),
    ]


def _queue(context: Context) -> list[RouteSpec]:
    batches = ProduceBatchHandlers(context)
    claims = ClaimsHandlers(context)
    return [
        RouteSpec("POST", "/v1/produce", ProduceHandlers(context).produce, _PRODUCE),
        RouteSpec("POST", "/v1/produce/batch", batches.produce, _PRODUCE),
        RouteSpec("POST", "/v1/produce/packed", batches.produce_packed, _PRODUCE),
        RouteSpec("POST", "/v1/route", RouteHandlers(context).route, _PRODUCE),
        RouteSpec("GET", "/v1/consume", claims.consume, _CONSUME),
        RouteSpec("POST", "/v1/claim", claims.claim, _CONSUME),
        RouteSpec("POST", "/v1/ack", claims.ack, _CONSUME),
        RouteSpec("POST", "/v1/nack", claims.nack, _CONSUME),
        RouteSpec("POST", "/v1/ack-cumulative", claims.ack_through, _CONSUME),
        RouteSpec("POST", "/v1/ack/batch", claims.ack_batch, _CONSUME),
        RouteSpec("POST", "/v1/nack/batch", claims.nack_batch, _CONSUME),
        RouteSpec("POST", "/v1/release", claims.release, _CONSUME),
        RouteSpec("POST", "/v1/reject", claims.reject, _CONSUME),
        RouteSpec("POST", "/v1/extend", claims.extend, _CONSUME),
        RouteSpec("GET", "/v1/explain", ExplainHandlers(context).explain, _READ),
    ]


def _topics_and_groups(context: Context) -> list[RouteSpec]:
    topics = TopicsHandlers(context)
    groups = GroupsHandlers(context)
    records = PartitionRecordsHandlers(context)
    return [
        RouteSpec("GET", "/v1/topics", topics.list, ANY),
        RouteSpec("POST", "/v1/topics", topics.create, Right(MANAGE, BODY)),
        RouteSpec("GET", "/v1/topics/{topic}", topics.describe, _SEE_TOPIC),
        RouteSpec("PATCH", "/v1/topics/{topic}", topics.change, _MANAGE_TOPIC),
        RouteSpec("DELETE", "/v1/topics/{topic}", topics.delete, _MANAGE_TOPIC),
        RouteSpec("GET", "/v1/topics/{topic}/offsets", records.offsets, _SEE_TOPIC),
        RouteSpec("POST", "/v1/offsets", records.offsets_of_topics, Right(ANY.verb, BODY)),
        RouteSpec("GET", "/v1/topics/{topic}/partitions/{partition}/records", records.fetch, _READ_TOPIC),
        RouteSpec("GET", "/v1/topics/{topic}/partitions/{partition}/messages", records.peek, _READ_TOPIC),
        RouteSpec("GET", "/v1/groups", groups.list, ANY),
        RouteSpec("POST", "/v1/groups/offsets", groups.commit_offsets, _CONSUME),
        RouteSpec("GET", "/v1/topics/{topic}/groups", groups.list_of_topic, _SEE_TOPIC),
        RouteSpec("GET", "/v1/topics/{topic}/groups/{group}", groups.describe, _SEE_GROUP),
        RouteSpec("DELETE", "/v1/topics/{topic}/groups/{group}", groups.delete, _MANAGE_TOPIC),
        RouteSpec("GET", "/v1/topics/{topic}/groups/{group}/states", groups.states, _SEE_GROUP),
        RouteSpec("POST", "/v1/topics/{topic}/groups/{group}/seek", groups.seek, _MANAGE_TOPIC),
        RouteSpec("POST", "/v1/topics/{topic}/groups/{group}/pause", groups.pause, _MANAGE_TOPIC),
        RouteSpec("POST", "/v1/topics/{topic}/groups/{group}/resume", groups.resume, _MANAGE_TOPIC),
    ]


def _work(context: Context) -> list[RouteSpec]:
    effects = EffectsHandlers(context)
    letters = DeadLettersHandlers(context)
    jobs = JobsHandlers(context)
    stages = StagesHandlers(context)
    workers = WorkersHandlers(context)
    return [
        # effects that happen once
        RouteSpec("GET", "/v1/idempotency", effects.get, _CONSUME),
        RouteSpec("POST", "/v1/idempotency/begin", effects.begin, _CONSUME),
        RouteSpec("POST", "/v1/idempotency/commit", effects.commit, _CONSUME),
        RouteSpec("POST", "/v1/idempotency/fail", effects.fail, _CONSUME),
        RouteSpec("POST", "/v1/outcome", OutcomeHandlers(context).outcome, Right(ANY.verb, BODY)),
        # dead letters and jobs
        RouteSpec("GET", "/v1/dlq/{topic}", letters.list, _READ),
        RouteSpec("GET", "/v1/dlq/{topic}/errors", letters.errors, _READ),
        RouteSpec("POST", "/v1/dlq/{topic}/redrive", letters.redrive, _CONSUME),
        RouteSpec("POST", "/v1/jobs", jobs.enqueue, _PRODUCE),
        RouteSpec("GET", "/v1/jobs/{topic}/{id}", jobs.get, _READ_TOPIC),
        RouteSpec("GET", "/v1/jobs/{topic}/{id}/result", jobs.result, _READ_TOPIC),
        RouteSpec("POST", "/v1/jobs/{topic}/{id}/cancel", jobs.cancel, Right(PRODUCE, _TOPIC)),
        # processes that run workers
        RouteSpec("GET", "/v1/workers", workers.list, ANY),
        RouteSpec("GET", "/v1/workers/{id}", workers.describe, Right(ANY.verb, BODY)),
        RouteSpec("PUT", "/v1/workers/{id}", workers.heartbeat, _CONSUME),
        RouteSpec("DELETE", "/v1/workers/{id}", workers.remove, _CONSUME),
        RouteSpec("POST", "/v1/workers/{id}/drain", workers.drain, Right(MANAGE, BODY)),
        RouteSpec("POST", "/v1/workers/{id}/stop", workers.stop, Right(MANAGE, BODY)),
        # staged appends, for sinks
        RouteSpec("POST", "/v1/stages", stages.stage, Right(ANY.verb, BODY)),
        RouteSpec("POST", "/v1/stages/publish", stages.publish, Right(ANY.verb, BODY)),
        RouteSpec("POST", "/v1/stages/forget", stages.forget, Right(ANY.verb, BODY)),
    ]


def _streams(context: Context) -> list[RouteSpec]:
    streams = StreamHandlers(context, SubscriptionHandlers(context))
    catalog = StreamCatalogHandlers(context)
    return [
        RouteSpec("*", "/v1/stream/*", streams.handle, streams.right_of),
        RouteSpec("GET", "/v1/streams", catalog.list, ANY),
        RouteSpec("POST", "/v1/streams/trim", catalog.trim, Right(MANAGE, BODY)),
        RouteSpec("GET", "/v1/streams/records", StreamRecordsHandlers(context).fetch, _READ),
    ]


def _access(context: Context) -> list[RouteSpec]:
    tokens = TokensHandlers(context)
    return [
        RouteSpec("GET", "/v1/tokens", tokens.list, _ADMIN),
        RouteSpec("POST", "/v1/tokens", tokens.create, _ADMIN),
        RouteSpec("GET", "/v1/tokens/{id}", tokens.show, _ADMIN),
        RouteSpec("PATCH", "/v1/tokens/{id}", tokens.narrow, _ADMIN),
        RouteSpec("DELETE", "/v1/tokens/{id}", tokens.revoke, _ADMIN),
        RouteSpec("POST", "/v1/tokens/{id}/rotate", tokens.rotate, _ADMIN),
    ]


class App:
    """Finds the handler of a request, and checks the right that its route needs."""

    def __init__(self, table: list[RouteSpec], authenticator: Authenticator | None = None) -> None:
        self._authenticator = authenticator  # None: every caller may do everything
        self._exact: dict[bytes, dict[str, RouteSpec]] = {}
        self._patterns: list[tuple[list[str], dict[str, RouteSpec]]] = []
        self._prefixes: list[tuple[bytes, RouteSpec]] = []
        for route in table:
            if route.path.endswith("/*"):
                self._prefixes.append((route.path[:-1].encode(), route))
            elif "{" in route.path:
                self._pattern(route.path.strip("/").split("/"))[route.method] = route
            else:
                methods = self._exact.setdefault(route.path.encode(), {})
                methods[route.method] = route
                if route.head:
                    methods["HEAD"] = route

    def _pattern(self, segments: list[str]) -> dict[str, RouteSpec]:
        for known, known_methods in self._patterns:
            if known == segments:
                return known_methods
        methods: dict[str, RouteSpec] = {}
        self._patterns.append((segments, methods))
        return methods

    def __call__(self, request: Request) -> Answer:
        methods = self._exact.get(request.raw_path)
        if methods is not None:
            return self._call_exact(request, methods)
        for prefix, route in self._prefixes:
            if request.raw_path.startswith(prefix):
                rest = request.raw_path[len(prefix) :]
                right = route.right if isinstance(route.right, Right) else route.right(request.method, rest)
                refused = self._refusal(request, right)
                if refused is not None:
                    return refused
                return self._cached(request, _bound(route.handler, rest), f"{request.method} {prefix.decode()}*")
        return self._refusal(request, ANY) or self._match(request)

    def _call_exact(self, request: Request, methods: dict[str, RouteSpec]) -> Answer:
        route = methods.get(request.method)
        right = ANY if route is None else route.right
        assert isinstance(right, Right)
        refused = self._refusal(request, right)
        if refused is not None:
            return refused
        if route is None:
            return _not_allowed(methods)
        if right.verb in UNNAMED_VERBS:
            require(request, right.verb)
        return self._cached(request, route.handler, f"{request.method} {request.path}")

    def _refusal(self, request: Request, right: Right) -> Response | None:
        """The response to a caller whose credential is missing or wrong."""
        if self._authenticator is None or right is PUBLIC or right is OWN:
            return None
        return self._authenticator.identify(request)

    def _cached(self, request: Request, handler: Handler, name: str) -> Answer:
        """Call a handler. Route, identity and its rights depend on the head alone, and clients repeat their heads:
        cache the handler with it."""
        head = request.head
        head.handler, head.identity, head.route = handler, request.identity, name
        return handler(request)

    def _match(self, request: Request) -> Answer:
        path = request.path
        if not path.startswith("/v1/"):
            return error_response(404, "NOT_FOUND", "use /v1/* endpoints")
        request_segments = [percent_decoded(segment) for segment in request.raw_path.strip(b"/").split(b"/")]
        for segments, methods in self._patterns:
            values = _values(segments, request_segments)
            if values is not None:
                route = methods.get(request.method)
                if route is None:
                    return _not_allowed(methods)
                if request.identity is not None:
                    _check_right(request, route, dict(zip(_names(segments), values)))
                request.head.route = f"{request.method} /{'/'.join(segments)}"
                return route.handler(request, *values)
        return error_response(404, "NOT_FOUND", f"there is no {path}")


def _check_right(request: Request, route: RouteSpec, parameters: dict[str, str]) -> None:
    """The right of a route whose target is a parameter of its path."""
    right = route.right
    assert isinstance(right, Right)
    if right.target == _TOPIC:
        topic = parameters[_TOPIC]
        if right.verb == ANY.verb:
            require_any_topic(request, topic)
        else:
            require_topic(request, right.verb, topic)
    elif right.target == _GROUP:
        require_any_group(request, parameters[_TOPIC], parameters[_GROUP])
    elif right.verb in UNNAMED_VERBS:
        require(request, right.verb)


def _names(segments: list[str]) -> list[str]:
    return [segment.strip("{}") for segment in segments if segment.startswith("{")]


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


def _not_allowed(methods: dict[str, RouteSpec]) -> Response:
    allowed = ", ".join(sorted(methods))
    return error_response(405, "METHOD_NOT_ALLOWED", "method not allowed", headers=[("Allow", allowed)])
