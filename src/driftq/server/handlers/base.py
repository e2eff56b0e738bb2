"""Refusals as HTTP: one table from the broker's codes to status and wire code. Every error has the same shape."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
from msgspec import json

from driftq.core.model.replies import Rejected, Reply
from driftq.server.access.rates import Rates
from driftq.server.http import BadRequest, Deferred, Request, Response
from driftq.server.outbound import Outbound
from driftq.wire.errors import Code

if TYPE_CHECKING:
    from driftq.core.model.commands import Command
    from driftq.core.state.logs import Log
    from driftq.engine.engine import Engine
    from driftq.engine.queries import StateView
    from driftq.server.metrics.registry import Metrics
    from driftq.server.router.caller import RouterCaller
    from driftq.server.settings import Settings
    from driftq.wire.message import Envelope
    from driftq.wire.queue import ProduceItem
import random
from typing import Literal

from driftq.core.state.backlog import Backlog, backlog_of
from driftq.wire.admin import BacklogInfo


class Problem(NamedTuple):
    """How a code is shown: existing clients know some words under other names."""

    status: int
    error: str


QUEUE_PROBLEMS = {
    Code.INVALID_ARGUMENT: Problem(400, "INVALID_ARGUMENT"),
    Code.NOT_FOUND: Problem(404, "NOT_FOUND"),
    Code.ALREADY_EXISTS: Problem(409, "ALREADY_EXISTS"),
    Code.CONFLICT: Problem(409, "CONFLICT"),
    Code.CLOSED: Problem(409, "CLOSED"),
    Code.GONE: Problem(410, "GONE"),
    Code.NOT_OWNER: Problem(409, "FAILED_PRECONDITION"),
    Code.NOT_DELIVERED: Problem(400, "INVALID_ARGUMENT"),
    Code.STALE_EPOCH: Problem(409, "STALE_EPOCH"),
    Code.SEQUENCE_GAP: Problem(409, "SEQUENCE_GAP"),
    Code.SEQUENCE_MISMATCH: Problem(409, "SEQUENCE_MISMATCH"),
    Code.SEQUENCE_REGRESSION: Problem(409, "SEQUENCE_REGRESSION"),
    Code.TAIL_MOVED: Problem(412, "TAIL_MOVED"),
    Code.KEY_CONFLICT: Problem(409, "KEY_CONFLICT"),
    Code.BUSY: Problem(409, "BUSY"),
    Code.OVERLOADED: Problem(429, "RESOURCE_EXHAUSTED"),
    Code.DISK_FULL: Problem(507, "DISK_FULL"),
    Code.TOO_LARGE: Problem(413, "TOO_LARGE"),
    Code.DEADLINE_EXCEEDED: Problem(400, "DEADLINE_EXCEEDED"),
    Code.UNAVAILABLE: Problem(503, "UNAVAILABLE"),
    Code.DATA_CORRUPT: Problem(500, "DATA_CORRUPT"),
}

_BY_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "METHOD_NOT_ALLOWED",
    408: "REQUEST_TIMEOUT",
    413: "TOO_LARGE",
    414: "TOO_LARGE",
    415: "UNSUPPORTED_MEDIA_TYPE",
    417: "INVALID_ARGUMENT",
    431: "TOO_LARGE",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    505: "INVALID_ARGUMENT",
}


def refusal(rejected: Rejected) -> Response:
    """The response that belongs to a refusal; anything that may be tried again says when."""
    problem = QUEUE_PROBLEMS[rejected.code]
    headers: list[tuple[str, str]] = []
    retry_after_ms = rejected.details.get("retry_after_ms")
    if retry_after_ms is not None:
        headers.append(("Retry-After", str(max(1, -(-int(retry_after_ms) // 1_000)))))
    return error_response(problem.status, problem.error, rejected.message, rejected.details, headers)


def error_response(
    status: int,
    error: str,
    message: str,
    details: dict[str, Any] | None = None,
    headers: list[tuple[str, str]] | None = None,
) -> Response:
    body = {"error": error, "message": message, **(details or {})}
    return Response(status, json.encode(body) + b"\n", headers=headers or ())


def bad_request(status: int, message: str) -> Response:
    """For the connection layer: requests that never reached a route, and those a route could not understand."""
    return error_response(status, _BY_STATUS.get(status, "INVALID_ARGUMENT"), message)


def internal_error(request: Request, error: BaseException) -> Response:
    """A bug. The details are in the log, not in the answer."""
    return error_response(500, "INTERNAL", "the server failed on this request; its log says why")


# --- Reads a request's parameters: a JSON body if there is one, else the query string, into the same typed values ---


T = TypeVar("T")

_DIGITS = re.compile(r"[0-9]{1,16}", re.ASCII)
_FLAGS = {"true": True, "false": False}
_decoders: dict[type, msgspec.json.Decoder[Any]] = {}


def read(
    request: Request,
    kind: type[T],
    numbers: frozenset[str],
    aliases: Mapping[str, str] | None = None,
    flags: frozenset[str] = frozenset(),
) -> T:
    """The parameters of a request as `kind`. `numbers` and `flags` name the query parameters that are no texts."""
    if request.body:
        return read_json(request.body, kind)
    values: dict[str, Any] = {}
    fields = kind.__struct_encode_fields__  # type: ignore[attr-defined]
    for name, text in request.query.items():
        name = (aliases or {}).get(name, name)
        if name in fields and name not in values:
            values[name] = number(name, text) if name in numbers else _FLAGS.get(text, text) if name in flags else text
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise BadRequest(f"invalid parameters: {error}") from None


def read_json(body: bytes, kind: type[T]) -> T:
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    try:
        decoded: T = decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"invalid json body: {error}") from None
    except RecursionError:
        raise BadRequest("invalid json body: nested too deeply") from None
    return decoded


def number(name: str, text: str) -> int:
    if not text:
        raise BadRequest(f"{name} is missing")
    if not _DIGITS.fullmatch(text):
        raise BadRequest(f"invalid {name}")
    return int(text)


def page_limit(request: Request, default: int = 100, most: int = 1_000) -> int:
    """How many entries a page of a list has."""
    limit = number("limit", request.query["limit"]) if "limit" in request.query else default
    if not 1 <= limit <= most:
        raise BadRequest(f"limit must be 1 to {most}")
    return limit


# --- What every face shares: the engine, the settings, and the way from a command to a response ---


_encode = json.Encoder().encode


class Context:
    """The engine and the settings of one server; the router and the metrics, if there are any."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        router: RouterCaller | None = None,
        metrics: Metrics | None = None,
        outbound: Outbound | None = None,
    ) -> None:
        self.engine = engine
        self.settings = settings
        self.router = router
        self.metrics = metrics
        self.outbound = outbound or Outbound(settings)
        self.rates = Rates(settings.tenants)
        self.spread = PartitionSpread()

    def any_partition(self, requested: str, item: ProduceItem, sticky: dict[str, int] | None = None) -> int | None:
        """The partition of a message that has no key and asks for any; None leaves it to the rule of the key. With
        `sticky` the messages of one request share a partition, also those that do not ask themselves."""
        if item.key or (sticky is None and item.partition != ANY):
            return None
        envelope = item.envelope
        target = (envelope.target_topic if envelope is not None else "") or requested
        if sticky is not None and target in sticky:
            return sticky[target]
        topic = self.engine.latest_state.topics.get(target)
        if topic is None:
            return None  # the broker refuses it
        partition = self.spread.next(target, len(topic.log_ids))
        if sticky is not None:
            sticky[target] = partition
        return partition

    def charge(self, envelope: Envelope | None, messages: int, size_bytes: int) -> Rejected | None:
        """Count a produce against its tenant's rates."""
        if not self.rates.active:
            return None
        tenant = envelope.tenant_id if envelope is not None else ""
        refused = self.rates.take(tenant, messages, size_bytes, self.engine.now_ms())
        if refused is not None and self.metrics is not None:
            self.metrics.counts.refusals[refused.code] += 1
            self.metrics.counts.produce_refused(refused)
        return refused

    def ask(self, command: Command, respond: Callable[[Any], Response]) -> Deferred:
        """Submit; a refusal becomes its problem, everything else goes through `respond`."""
        answer = Deferred()

        def on_reply(reply: Reply) -> None:
            try:
                response = refusal(reply) if type(reply) is Rejected else respond(reply)
            except Exception as error:
                answer.fail(error)
            else:
                answer.resolve(response)

        self.engine.submit_to(command, on_reply)
        return answer

    def query(self, look: Callable[[StateView], Response]) -> Deferred:
        """Answer from the state as it is now, once that is durable."""
        answer = Deferred()
        self.engine.queries.run(look, answer.resolve)
        return answer

    def hold(self, response: Response) -> Deferred:
        """A refusal that was read from the latest state: it leaves once that is durable."""
        return self.query(lambda _: response)


def json_response(value: object, status: int = 200) -> Response:
    return Response(status, _encode(value) + b"\n")


def no_content(_: object = None) -> Response:
    return Response(204)


# --- Which partition a message without a key gets when its producer asks for any: each topic's partitions in turn ---


ANY: Literal["any"] = "any"
TOPICS_MAX = 10_000  # remembered; beyond that the turns begin anew


class PartitionSpread:
    """The turns of all topics. Each begins at random, so that servers that restart often still spread."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def next(self, topic: str, partitions: int) -> int:
        last = self._last.get(topic)
        if last is None:
            if len(self._last) >= TOPICS_MAX:
                self._last.clear()
            last = random.randrange(partitions)
        partition = self._last[topic] = (last + 1) % partitions
        return partition


# --- A partition's backlog as the API shows it ---


NEARLY_FULL = 0.8  # from here on an operator should know


def backlog_in(view: StateView, log: Log) -> Backlog | None:
    """None if nothing holds producers up: no group counts, or only the broker writes here."""
    return None if view.state.topics[log.topic].dead_of else backlog_of(view.state, view.limits, log)


def backlog_info(backlog: Backlog | None) -> BacklogInfo | None:
    if backlog is None:
        return None
    return BacklogInfo(
        group=backlog.group.name,
        messages=backlog.messages,
        messages_max=backlog.messages_max,
        payload_bytes=backlog.payload_bytes,
        bytes_max=backlog.bytes_max,
        lag=backlog.lag,
        used=round(backlog.used, 4),
        commands=backlog.remedies() if backlog.used >= NEARLY_FULL else [],
    )
