"""Log lines on standard error: text for people, or one JSON object per line for machines.

The broker and the processes that run workers log in the same form. More fields of a record are passed as
`extra={"fields": {…}}`.
"""

from __future__ import annotations

import logging
import sys
import threading
from datetime import UTC, datetime
from typing import Any, Protocol, TextIO

import msgspec

_NOT_PRINTED = {code: f"\\x{code:02x}" for code in (*range(0x20), 0x7F, 0x85, 0x2028, 0x2029)}


class TextLines(logging.Formatter):
    """`time LEVEL name: message key=value …`; control characters cannot fake a second line."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {key}={value}" for key, value in _fields(record).items())
        at = _time_of(record)
        line = f"{at} {record.levelname} {record.name}: {record.getMessage()}{fields}".translate(_NOT_PRINTED)
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonLines(logging.Formatter):
    """One JSON object per line: at, level, logger, message, then the record's fields; `error` holds a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "at": _time_of(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(fields, enc_hook=str).decode()


def _time_of(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = getattr(record, "fields", {})
    trace_id = getattr(record, "otelTraceID", "")  # inside a span of OpenTelemetry
    return {**fields, "trace_id": trace_id, "span_id": getattr(record, "otelSpanID", "")} if trace_id else fields


class LogOptions(Protocol):
    """The settings of a log: the lowest level, and "text" or "json"."""

    @property
    def level(self) -> str: ...
    @property
    def format(self) -> str: ...


def configure(settings: LogOptions, stream: TextIO | None = None) -> None:
    """Log everything to one stream, in one format."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if settings.format == "json" else TextLines())
    logging.basicConfig(level=settings.level.upper(), handlers=[handler], force=True)


def capture_all() -> None:
    """Log what Python would print: warnings, and tracebacks of what ends the program or a thread."""
    logger = logging.getLogger("driftq")
    logging.captureWarnings(True)
    sys.excepthook = lambda _, error, __: logger.critical("stopped by an unexpected error", exc_info=error)
    threading.excepthook = lambda thread: logger.error(
        "a thread was stopped by an unexpected error", exc_info=thread.exc_value
    )
