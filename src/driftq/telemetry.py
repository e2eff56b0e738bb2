"""Traces of messages with OpenTelemetry, from the program that sends them to the worker that handles them.

    import driftq.telemetry

    driftq.telemetry.enable()                  # spans go to the program's own tracer provider
    driftq.telemetry.export("my-service")      # or: make one that exports by OTLP (OTEL_EXPORTER_OTLP_ENDPOINT, …)

From then on each message carries `traceparent`, `tracestate` and `baggage` in its envelope:

    send orders      PRODUCER   broker.send, send_many, jobs.enqueue, task.enqueue: until the broker has replied
    create orders    PRODUCER   a message of a producer or an outcome, which is sent later with others
    process orders   CONSUMER   one attempt of a worker: child of the span that sent the message, linked to it and to
                                the attempt before, if that was in this process; with the baggage of the sender

Names and attributes follow the semantic conventions for messaging. Log records that are written inside a span carry
`otelTraceID` and `otelSpanID`; the log lines of `driftq worker` show them as `trace_id` and `span_id`.

Needs the extra `otel`. Nothing of the client imports this module.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from driftq.extras import require

require("driftq.telemetry", "otel")

from msgspec.structs import replace  # noqa: E402
from opentelemetry import baggage, context, trace  # noqa: E402
from opentelemetry.baggage.propagation import W3CBaggagePropagator  # noqa: E402
from opentelemetry.trace import Link, SpanKind, StatusCode  # noqa: E402
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: E402

from driftq import __version__  # noqa: E402
from driftq.client import trace as client_trace  # noqa: E402
from driftq.client.worker.hooks import Middleware, is_failure  # noqa: E402
from driftq.settings.trace_export import TraceSettings, close_provider, new_provider  # noqa: E402
from driftq.wire.message import BAGGAGE_BYTES_MAX, TRACESTATE_BYTES_MAX, Envelope  # noqa: E402

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider as SdkProvider
    from opentelemetry.trace import Span, SpanContext, Tracer, TracerProvider

    from driftq.client.trace import OnEnd
    from driftq.wire.produce import ProduceItem

ATTEMPTS_MAX = 4_096  # attempts that are remembered for the link of the next one
_trace_context = TraceContextTextMapPropagator()
_baggage = W3CBaggagePropagator()


def enable(provider: TracerProvider | None = None, *, logs: bool = True) -> None:
    """Trace what this process sends and handles.

    Parameters:
        provider: Where spans go; by default the global one of OpenTelemetry, also if it is set later.
        logs: Whether log records carry the ids of the current span.
    """
    tracer = trace.get_tracer("driftq.client", __version__, provider)
    client_trace.use(MessageTracer(tracer))
    if logs:
        _log_ids.install()


def export(service: str = "driftq-client", url: str = "", **options: Any) -> SdkProvider:
    """Trace, and export spans by OTLP over HTTP.

    Parameters:
        service: The name of this program in traces; OTEL_SERVICE_NAME wins over it.
        url: The collector, like `http://127.0.0.1:4318/v1/traces`. By default that of OTEL_EXPORTER_OTLP_ENDPOINT.
        options: `headers` (as `name=value`), `sample_ratio`, `queue_max`, `timeout_ms`, as the broker's settings.

    Spans wait in a bounded queue; a collector that is away costs spans and nothing else. Call `close` with what this
    returns before the program ends, so that the last ones are sent.
    """
    settings = TraceSettings(url, **options)
    settings.check()
    provider = new_provider(settings, service, __version__)
    enable(provider)
    return provider


def disable() -> None:
    """Make no more spans, and leave log records alone."""
    client_trace.use(None)
    _log_ids.remove()


def close(provider: SdkProvider) -> None:
    """End tracing and send the spans that are left, for at most three seconds."""
    disable()
    close_provider(provider)


# --- sending ---


class MessageTracer:
    """Makes spans for messages: the tracer of the client."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._middleware = TraceMiddleware(tracer)

    def sent(self, topic: str, items: Sequence[ProduceItem]) -> tuple[list[ProduceItem], OnEnd]:
        attributes = _attributes(topic, "send", "send")
        if len(items) != 1:
            attributes["messaging.batch.message_count"] = len(items)
        elif items[0].id:
            attributes["messaging.message.id"] = items[0].id
        span = self._tracer.start_span(f"send {topic}", kind=SpanKind.PRODUCER, attributes=attributes)
        fields = _injected(span)
        messages = [_with_trace(item, fields) for item in items]

        def on_end(error: BaseException | None) -> None:
            if error is not None:
                _fail(span, error)
            span.end()

        return messages, on_end

    def created(self, topic: str, envelope: Envelope | None) -> Envelope:
        if envelope is not None and envelope.traceparent:
            return envelope
        attributes = _attributes(topic, "create", "create")
        span = self._tracer.start_span(f"create {topic}", kind=SpanKind.PRODUCER, attributes=attributes)
        fields = _injected(span)
        span.end()
        return replace(envelope or Envelope(), **fields)

    def middleware(self) -> Middleware:
        return self._middleware


def _attributes(topic: str, operation: str, kind: str) -> dict[str, Any]:
    return {
        "messaging.system": "driftq",
        "messaging.destination.name": topic,
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
    }


def _injected(span: Span) -> dict[str, str]:
    """The fields of an envelope for messages of this span. What is too large for an envelope is left out."""
    inside = trace.set_span_in_context(span)
    carrier: dict[str, str] = {}
    _trace_context.inject(carrier, inside)
    _baggage.inject(carrier, inside)
    limits = (("tracestate", TRACESTATE_BYTES_MAX), ("baggage", BAGGAGE_BYTES_MAX))
    for name, bytes_max in limits:
        text = carrier.get(name, "")
        if len(text) > bytes_max or not (text.isascii() and text.isprintable()):
            del carrier[name]
    return {name: carrier[name] for name in ("traceparent", "tracestate", "baggage") if name in carrier}


def _with_trace(item: ProduceItem, fields: dict[str, str]) -> ProduceItem:
    if not fields or (item.envelope is not None and item.envelope.traceparent):
        return item
    return replace(item, envelope=replace(item.envelope or Envelope(), **fields))


def _fail(span: Span, error: BaseException) -> None:
    span.set_attribute("error.type", type(error).__qualname__)
    span.record_exception(error)
    span.set_status(StatusCode.ERROR, str(error)[:256])


# --- handling ---


class TraceMiddleware(Middleware):
    """A span for each attempt of a worker. `enable` adds it to every worker, as the outermost."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        # The last attempt at a message, by its group and name.
        self._attempts: OrderedDict[tuple[str, str], SpanContext] = OrderedDict()

    @contextmanager
    def around(self, message: Any) -> Iterator[None]:
        parent = extract(message.envelope)
        span = self._start(message, parent)
        # The sender's baggage is the handler's, and its span is the parent of what the handler sends.
        token = context.attach(trace.set_span_in_context(span, parent))
        try:
            yield
        except BaseException as error:
            if not isinstance(error, Exception) or is_failure(error):
                _fail(span, error)
                self._remember(message, span)
            raise
        finally:
            context.detach(token)
            span.end()

    def _start(self, message: Any, parent: Context) -> Span:
        key = (message.group, message.name)
        links = []
        creation = trace.get_current_span(parent).get_span_context()
        if creation.is_valid:
            links.append(Link(creation))
        previous = self._attempts.pop(key, None)
        if previous is not None:
            links.append(Link(previous, {"messaging.driftq.attempt": message.attempts - 1}))
        return self._tracer.start_span(
            f"process {message.topic}", parent, SpanKind.CONSUMER, _attributes_of(message), links
        )

    def _remember(self, message: Any, span: Span) -> None:
        self._attempts[message.group, message.name] = span.get_span_context()
        if len(self._attempts) > ATTEMPTS_MAX:
            self._attempts.popitem(last=False)


def _attributes_of(message: Any) -> dict[str, Any]:
    attributes = _attributes(message.topic, "process", "process")
    attributes |= {
        "messaging.consumer.group.name": message.group,
        "messaging.destination.partition.id": str(message.partition),
        "messaging.message.id": message.job_id or message.name,
        "messaging.message.body.size": len(message.value),
        "messaging.driftq.offset": message.offset,
        "messaging.driftq.attempt": message.attempts,
    }
    if message.task:
        attributes["messaging.driftq.task"] = message.task
    return attributes


def extract(envelope: Envelope) -> Context:
    """The context of the program that sent a message: its span and its baggage."""
    carrier = {"traceparent": envelope.traceparent, "tracestate": envelope.tracestate, "baggage": envelope.baggage}
    carrier = {name: text for name, text in carrier.items() if text}
    current = context.get_current()
    if not carrier:
        return current
    return _baggage.extract(carrier, _trace_context.extract(carrier, baggage.clear(current)))


# --- log records ---


class _LogIds:
    """Adds the ids of the current span to log records, through the factory of records."""

    def __init__(self) -> None:
        self._inner: Any = None

    def install(self) -> None:
        if self._inner is None:
            self._inner = logging.getLogRecordFactory()
            logging.setLogRecordFactory(self._record)

    def remove(self) -> None:
        if self._inner is not None and logging.getLogRecordFactory() == self._record:
            logging.setLogRecordFactory(self._inner)
            self._inner = None

    def _record(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record: logging.LogRecord = self._inner(*args, **kwargs)
        current = trace.get_current_span().get_span_context()
        if current.is_valid:
            record.otelTraceID = trace.format_trace_id(current.trace_id)
            record.otelSpanID = trace.format_span_id(current.span_id)
        return record


_log_ids = _LogIds()
