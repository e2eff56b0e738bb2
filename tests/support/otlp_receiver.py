"""A collector for tests: receives spans by OTLP over HTTP and decodes them with the classes of the protocol."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.wait import until_now


class SeenSpan(NamedTuple):
    """One span as it arrived."""

    service: str
    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    tracestate: str
    attributes: dict[str, Any]
    links: list[str]  # ids of spans
    status: int  # 2 is an error
    start_ns: int
    end_ns: int


class Receiver:
    """What was received so far."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/v1/traces"
        self.spans: list[SeenSpan] = []
        self.headers: list[dict[str, str]] = []

    def named(self, name: str) -> list[SeenSpan]:
        return [span for span in self.spans if span.name == name]

    def wait_for(self, name: str, count: int = 1) -> list[SeenSpan]:
        until_now(lambda: len(self.named(name)) >= count, 20.0)
        return self.named(name)


def _value(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))


def _decoded(body: bytes) -> Iterator[SeenSpan]:
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        service = {pair.key: _value(pair.value) for pair in resource.resource.attributes}["service.name"]
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield SeenSpan(
                    service, span.name, span.kind, span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex(),
                    span.trace_state, {pair.key: _value(pair.value) for pair in span.attributes},
                    [link.span_id.hex() for link in span.links], span.status.code,
                    span.start_time_unix_nano, span.end_time_unix_nano,
                )  # fmt: skip


@contextmanager
def otlp_receiver() -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.headers.append({name.lower(): value for name, value in self.headers.items()})
            receiver.spans.extend(_decoded(body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver = Receiver(server.server_port)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()
