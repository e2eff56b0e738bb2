"""Spans of the broker: one message or batch from its request to the disk.

    receive orders      SERVER, child of the message's own trace: the whole request
      route orders      the router, if there is one
      commit orders     from the decision until the write is durable

A span is made when its request has ended, from three times. Handlers call `received` when they have read the request;
a broker without `trace.otlp_url` has no tracer, and its handlers branch once. Requests without a trace start one, as
far as `trace.sample_ratio` says; the messages are stored as they came. A packed batch is not opened, so it has no
spans.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from opentelemetry.trace import Link, SpanContext, SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation import get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from driftq import __version__
from driftq.server.http import Answer, BadRequest, Deferred, Reply
from driftq.server.http.response import REPLIES, Response
from driftq.settings.trace_export import close_provider, new_provider

if TYPE_CHECKING:
    from opentelemetry.context import Context as TraceContext

    from driftq.server.http import Request
    from driftq.settings.trace_export import TraceSettings
    from driftq.wire.produce import ProduceItem

LINKS_MAX = 32  # of a batch, to the traces of its messages
_propagator = TraceContextTextMapPropagator()
T = TypeVar("T")


class ReceivedTrace:
    """The times of one request."""

    __slots__ = ("began_ns", "items", "routed_ns", "topic")

    def __init__(self, topic: str, items: Sequence[ProduceItem]) -> None:
        self.topic = topic
        self.items = items
        self.began_ns = time.time_ns()
        self.routed_ns = 0  # 0: there is no router

    def after_route(self, finish: Callable[[T], Answer]) -> Callable[[T], Answer]:
        """`finish`, which the router calls with its decisions, so that the time is noted."""

        def routed(decisions: T) -> Answer:
            self.routed_ns = time.time_ns()
            return finish(decisions)

        return routed


class BrokerTracer:
    """Makes and exports the spans of one broker."""

    def __init__(self, settings: TraceSettings) -> None:
        self._provider = new_provider(settings, "driftq", __version__)
        self._tracer = self._provider.get_tracer("driftq.server", __version__)

    def received(
        self, request: Request, topic: str, items: Sequence[ProduceItem], accept: Callable[[ReceivedTrace], Answer]
    ) -> Answer:
        """The answer of `accept`, whose spans are made when it is known. The access log shows the trace."""
        trace = ReceivedTrace(topic, items)
        parent = _context_of(items[0]) if items else None
        if parent is not None:
            request.trace_id = get_current_span(parent).get_span_context().trace_id
        try:
            inner = accept(trace)
        except BadRequest as error:
            self._record(trace, parent, error.status)
            raise
        if isinstance(inner, REPLIES):
            self._record(trace, parent, inner.status if isinstance(inner, Response) else 200)
            return inner
        assert isinstance(inner, Deferred), "the answer of a produce needs no task"
        answer = Deferred()
        inner.bind(_TracedReply(answer, lambda status: self._record(trace, parent, status)))
        return answer

    def _record(self, trace: ReceivedTrace, parent: TraceContext | None, status: int) -> None:
        end_ns = time.time_ns()
        attributes: dict[str, str | int] = {
            "messaging.system": "driftq",
            "messaging.destination.name": trace.topic,
            "http.response.status_code": status,
        }
        if len(trace.items) > 1:
            attributes["messaging.batch.message_count"] = len(trace.items)
        links = [Link(context) for item in trace.items[1:LINKS_MAX] if (context := _span_context_of(item)) is not None]
        whole = self._tracer.start_span(
            f"receive {trace.topic}", parent, SpanKind.SERVER,
            {**attributes, "messaging.operation.name": "receive"}, links, trace.began_ns,
        )  # fmt: skip
        if whole.is_recording():
            inside = set_span_in_context(whole)
            if trace.routed_ns:
                self._part("route", trace.topic, inside, trace.began_ns, trace.routed_ns)
            if status < 400:
                self._part("commit", trace.topic, inside, trace.routed_ns or trace.began_ns, end_ns)
            else:
                whole.set_status(StatusCode.ERROR, f"refused with {status}")
        whole.end(end_ns)

    def _part(self, name: str, topic: str, inside: TraceContext, began_ns: int, end_ns: int) -> None:
        attributes = {"messaging.system": "driftq", "messaging.operation.name": name}
        part = self._tracer.start_span(f"{name} {topic}", inside, SpanKind.INTERNAL, attributes, None, began_ns)
        part.end(end_ns)

    def close(self) -> None:
        """Blocks for a bounded time; call it on a thread."""
        close_provider(self._provider)


def _context_of(item: ProduceItem) -> TraceContext | None:
    """The trace that a message belongs to, if it has one that is valid."""
    envelope = item.envelope
    if envelope is None or not envelope.traceparent:
        return None
    carrier = {"traceparent": envelope.traceparent, "tracestate": envelope.tracestate}
    context = _propagator.extract(carrier)
    return context if get_current_span(context).get_span_context().is_valid else None


def _span_context_of(item: ProduceItem) -> SpanContext | None:
    context = _context_of(item)
    return get_current_span(context).get_span_context() if context is not None else None


class _TracedReply:
    """Passes a reply on, and reports its status."""

    def __init__(self, answer: Deferred, on_end: Callable[[int], None]) -> None:
        self._answer = answer
        self._on_end = on_end

    def set_reply(self, reply: Reply) -> None:
        self._on_end(reply.status if isinstance(reply, Response) else 200)
        self._answer.resolve(reply)

    def set_error(self, error: BaseException) -> None:
        self._on_end(500)
        self._answer.fail(error)
