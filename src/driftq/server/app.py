"""The app: finds the handler of a request in the route table, and checks the right that its route needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from driftq.server.access.identity import (
    ANY,
    OWN,
    PUBLIC,
    Right,
    require,
    require_any_group,
    require_any_topic,
    require_topic,
)
from driftq.server.element_count import bounded
from driftq.server.handlers.codec import error_response
from driftq.server.http import Answer, Request, Response
from driftq.server.http.request import percent_decoded
from driftq.wire.grants import CONSUME, UNNAMED_VERBS

if TYPE_CHECKING:
    from driftq.server.access.authenticator import Authenticator

Handler = Callable[[Request], Answer]
ParameterHandler = Callable[..., Answer]
RightOf = Callable[[str, bytes], Right]

TOPIC_PARAMETER, GROUP_PARAMETER = "topic", "group"  # names in paths that a right may refer to
DATA: Final = "data"  # of a route whose calls are work, not administration: the audit has no records of them


class RouteSpec(NamedTuple):
    """One method of one path. `{name}` stands for one segment, handed to the handler percent-decoded. A path that ends
    in `/*` stands for everything below it, with any method: the handler gets the rest as raw bytes."""

    method: str
    path: str
    handler: ParameterHandler
    right: Right | RightOf  # what a caller needs; of a path that ends in `/*`: by method and the rest of the path
    head: bool = False  # HEAD is served too: like GET, without the body
    audit: str | tuple[str, ...] = ""  # what its calls are in the audit, or DATA; "" only if it changes nothing

    @property
    def actions(self) -> tuple[str, ...]:
        """What its calls can be in the audit."""
        return self.audit if isinstance(self.audit, tuple) else (self.audit,) if self.audit not in ("", DATA) else ()


class App:
    """Finds the handler of a request, and checks the right that its route needs."""

    def __init__(
        self,
        table: list[RouteSpec],
        authenticator: Authenticator | None = None,
        tenants: Callable[[str], Callable[[Request], Answer]] | None = None,
    ) -> None:
        self.routes = tuple(table)
        table = [_with_bounds(route) for route in table]
        self._authenticator = authenticator  # None: every caller may do everything, or has an identity already
        self._tenants = tenants  # the app of a tenant, for callers that have one
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
                if (app := self._tenant_app(request)) is not None:
                    return app(request)
                request.head.action = ""  # its handler says what it is
                return self._cached(request, _bound(route.handler, rest), f"{request.method} {prefix.decode()}*")
        refused = self._refusal(request, ANY)
        if refused is not None:
            return refused
        app = self._tenant_app(request)
        return app(request) if app is not None else self._match(request)

    def _call_exact(self, request: Request, methods: dict[str, RouteSpec]) -> Answer:
        route = methods.get(request.method)
        right = ANY if route is None else route.right
        assert isinstance(right, Right)
        refused = self._refusal(request, right)
        if refused is not None:
            return refused
        if (app := self._tenant_app(request)) is not None:
            return app(request)
        if route is None:
            return _not_allowed(methods)
        if right.verb in UNNAMED_VERBS:
            require(request, right.verb)
        request.head.action = _action(route)
        return self._cached(request, route.handler, f"{request.method} {request.path}")

    def _refusal(self, request: Request, right: Right) -> Response | None:
        """The response to a caller whose credential is missing or wrong."""
        if self._authenticator is None or right is PUBLIC or right is OWN:
            return None
        reads = request.method in ("GET", "HEAD") and right.verb != CONSUME
        return self._authenticator.identify(request, reads=reads)

    def _tenant_app(self, request: Request) -> Callable[[Request], Answer] | None:
        """Where a caller with a tenant is served."""
        identity = request.identity
        if self._tenants is None or identity is None or not identity.tenant:
            return None
        return self._tenants(identity.tenant)

    def _cached(self, request: Request, handler: Handler, name: str) -> Answer:
        """Call a handler. Route, identity and its rights depend on the head alone, and clients repeat their heads:
        cache the handler with it. Heads are shared by connections, so the identity of a certificate is not cached."""
        head, identity = request.head, request.identity
        head.route = name
        if identity is None or not identity.is_of_connection:
            head.handler, head.identity = handler, identity
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
                request.head.action = _action(route)
                request.head.route = f"{request.method} /{'/'.join(segments)}"
                return route.handler(request, *values)
        return error_response(404, "NOT_FOUND", f"there is no {path}")


def _check_right(request: Request, route: RouteSpec, parameters: dict[str, str]) -> None:
    """The right of a route whose target is a parameter of its path."""
    right = route.right
    assert isinstance(right, Right)
    if right.target == TOPIC_PARAMETER:
        topic = parameters[TOPIC_PARAMETER]
        if right.verb == ANY.verb:
            require_any_topic(request, topic)
        else:
            require_topic(request, right.verb, topic)
    elif right.target == GROUP_PARAMETER:
        require_any_group(request, parameters[TOPIC_PARAMETER], parameters[GROUP_PARAMETER])
    elif right.verb in UNNAMED_VERBS:
        require(request, right.verb)


def _with_bounds(route: RouteSpec) -> RouteSpec:
    """A route whose body is JSON, with the check of its elements. What is below a prefix checks its bodies itself."""
    if route.method not in ("POST", "PUT", "PATCH") or route.path.endswith("/*"):
        return route
    return route._replace(handler=bounded(route.handler))


def _action(route: RouteSpec) -> str:
    return route.audit if isinstance(route.audit, str) else ""


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
