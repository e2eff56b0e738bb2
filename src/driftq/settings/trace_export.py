"""Export of spans by OTLP: its settings, and the provider of the OpenTelemetry SDK that sends them.

    span ends ──▶ queue (bounded, the oldest are dropped) ──▶ one thread ──▶ POST to the collector

The broker and programs that use the client export in the same way. A collector that is away costs the thread its time
and the queue its oldest spans, and nothing else: no caller waits for it. Its errors are logged once in a minute.

OpenTelemetry is imported when a provider is made, and not before.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct

from driftq.extras import require
from driftq.settings.loader import SettingsError, about

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

BATCH_MAX = 512  # spans in one request
DELAY_MS = 500  # how long a span waits for others
CLOSE_S = 3.0  # for the spans that are left at the end
COMPLAINT_S = 60.0
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+=[\x20-\x7e]+", re.ASCII)
_LOGGERS = (
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.exporter.otlp.common.http",
    "opentelemetry.sdk._shared_internal",
)


class TraceSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """`[trace]`: spans, exported by OTLP."""

    otlp_url: Annotated[
        str, about("Where spans are sent by OTLP over HTTP: `http://collector:4318/v1/traces`; empty: no spans.")
    ] = ""
    headers: Annotated[
        tuple[str, ...], about("Headers of these requests, as `name=value`; `driftq config show` hides the values.")
    ] = ()
    sample_ratio: Annotated[
        float, Meta(ge=0, le=1), about("Share of new traces that is kept; a message with a trace follows its decision.")
    ] = 1.0
    queue_max: Annotated[
        int, Meta(ge=1, le=1_000_000), about("Spans that wait for the collector; past this the oldest are dropped.")
    ] = 2_048
    timeout_ms: Annotated[int, Meta(ge=1), about("Time limit of one export, retries included.")] = 5_000

    def check(self) -> None:
        """What the types do not express; raises `SettingsError`."""
        if self.otlp_url and not self.otlp_url.startswith(("http://", "https://")):
            raise SettingsError("trace.otlp_url is an HTTP address, like http://collector:4318/v1/traces")
        for header in self.headers:
            if not _HEADER.fullmatch(header):
                raise SettingsError(f"trace.headers: {header.partition('=')[0]!r} is not a header like name=value")


def shown(name: str, value: object) -> object:
    """The value of a setting without what is secret in it."""
    if name != "trace.headers" or not isinstance(value, tuple):
        return value
    return tuple(f"{header.partition('=')[0]}=…" for header in value)


def new_provider(settings: TraceSettings, service: str, version: str) -> TracerProvider:
    """A provider whose spans are sent to the collector. Without `otlp_url` and `headers` the SDK takes them from
    OTEL_EXPORTER_OTLP_ENDPOINT and its siblings."""
    require("tracing", "otel")
    # Slow to import, and not needed without traces.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased  # noqa: PLC0415

    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_complaints)
    headers = dict(header.split("=", 1) for header in settings.headers)
    exporter = OTLPSpanExporter(settings.otlp_url or None, headers=headers or None, timeout=settings.timeout_ms / 1_000)
    name = os.environ.get("OTEL_SERVICE_NAME") or service
    resource = Resource.create({"service.name": name, "service.version": version})
    sampler = ParentBased(TraceIdRatioBased(settings.sample_ratio)) if settings.sample_ratio < 1 else None
    provider = TracerProvider(sampler=sampler, resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(
        BatchSpanProcessor(exporter, settings.queue_max, DELAY_MS, min(BATCH_MAX, settings.queue_max))
    )
    return provider


def close_provider(provider: TracerProvider, timeout_s: float = CLOSE_S) -> None:
    """Send what is left, for a bounded time: a collector that is away does not hold the end of a process."""
    closing = threading.Thread(target=provider.shutdown, name="driftq-traces-end", daemon=True)
    closing.start()
    closing.join(timeout_s)


class _Complaints(logging.Filter):
    """One line in a minute about a collector that is away or too slow."""

    def __init__(self) -> None:
        super().__init__()
        self._next_s = float("-inf")

    def filter(self, record: logging.LogRecord) -> bool:
        now_s = time.monotonic()
        if now_s < self._next_s:
            return False
        self._next_s = now_s + COMPLAINT_S
        record.exc_info = None
        return True


_complaints: Any = _Complaints()
