"""Log lines on standard error: text for people, or one JSON object per line for machines.

More fields of a record are passed as `extra={"fields": {…}}`. Payloads, tokens and credentials are never logged.
`RateLimited` keeps a repeated warning from filling the disk.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

from driftq.wire.fields import to_rfc3339

if TYPE_CHECKING:
    from driftq.server.settings import LogSettings

REPEAT_S = 10.0  # how often a kind of warning is logged
KINDS_MAX = 256

_NOT_PRINTED = {code: f"\\x{code:02x}" for code in (*range(0x20), 0x7F, 0x85, 0x2028, 0x2029)}


class TextLines(logging.Formatter):
    """`time LEVEL name: message key=value …`; control characters cannot fake a second line."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {key}={value}" for key, value in _fields(record).items())
        at = to_rfc3339(int(record.created * 1_000))
        line = f"{at} {record.levelname} {record.name}: {record.getMessage()}{fields}".translate(_NOT_PRINTED)
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonLines(logging.Formatter):
    """One JSON object per line: at, level, logger, message, then the record's fields; `error` holds a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "at": to_rfc3339(int(record.created * 1_000)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(fields, enc_hook=str).decode()


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = getattr(record, "fields", {})
    return fields


def configure(settings: LogSettings, stream: TextIO | None = None) -> None:
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


class RateLimited:
    """Logs a kind of warning at most once per interval, with the number of those that were suppressed."""

    def __init__(
        self, logger: logging.Logger, every_s: float = REPEAT_S, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._logger = logger
        self._every_s = every_s
        self._now_s = now_s
        self._last: dict[str, tuple[float, int]] = {}  # kind -> (when logged, suppressed since)

    def warn(self, kind: str, message: str, *values: object) -> None:
        now_s = self._now_s()
        last_s, suppressed = self._last.get(kind, (-self._every_s, 0))
        if now_s - last_s < self._every_s:
            self._last[kind] = last_s, suppressed + 1
            return
        if len(self._last) >= KINDS_MAX:
            self._last.clear()
        self._last[kind] = now_s, 0
        more = f" ({suppressed} more of this kind since the last line)" if suppressed else ""
        self._logger.warning(message + more, *values)
