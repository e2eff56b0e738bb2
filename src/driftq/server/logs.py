"""How log lines look: text for people or one JSON object a line for machines, on standard error.

A record's further fields come as `extra={"fields": {…}}`. What is logged is decided where it happens; payloads, tokens
and credentials are never among it. `Seldom` keeps a repeated complaint from filling the disk.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TextIO

import msgspec

from driftq.server.settings import Log
from driftq.wire.times import to_rfc3339

SELDOM_S = 10.0
SELDOM_KEYS_MAX = 256

_NOT_PRINTED = {code: f"\\x{code:02x}" for code in (*range(0x20), 0x7F, 0x85, 0x2028, 0x2029)}


class TextLines(logging.Formatter):
    """`time LEVEL name: message key=value …`; control characters cannot fake a second line."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {key}={value}" for key, value in _fields(record).items())
        at = to_rfc3339(int(record.created * 1_000))
        line = f"{at} {record.levelname} {record.name}: {record.getMessage()}{fields}".translate(_NOT_PRINTED)
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonLines(logging.Formatter):
    """One JSON object a line: at, level, logger, message, then the record's fields; `error` holds a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        shown: dict[str, Any] = {
            "at": to_rfc3339(int(record.created * 1_000)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            shown["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(shown, enc_hook=str).decode()


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = getattr(record, "fields", {})
    return fields


def configure(settings: Log, stream: TextIO | None = None) -> None:
    """Send everything that is logged to one place, in one form."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if settings.format == "json" else TextLines())
    logging.basicConfig(level=settings.level.upper(), handlers=[handler], force=True)


def capture_all() -> None:
    """Log what Python prints by itself: warnings, and tracebacks of what ends the program or a thread."""
    logger = logging.getLogger("driftq")
    logging.captureWarnings(True)
    sys.excepthook = lambda _, error, __: logger.critical("ended by a bug", exc_info=error)
    threading.excepthook = lambda ended: logger.error("a thread was ended by a bug", exc_info=ended.exc_value)


class Seldom:
    """Logs a kind of complaint at most once in a while, and then says how often it was held back."""

    def __init__(
        self, logger: logging.Logger, every_s: float = SELDOM_S, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._logger = logger
        self._every_s = every_s
        self._now_s = now_s
        self._last: dict[str, tuple[float, int]] = {}  # kind -> (when logged, held back since)

    def warn(self, kind: str, message: str, *values: object) -> None:
        now_s = self._now_s()
        last_s, held_back = self._last.get(kind, (-self._every_s, 0))
        if now_s - last_s < self._every_s:
            self._last[kind] = last_s, held_back + 1
            return
        if len(self._last) >= SELDOM_KEYS_MAX:
            self._last.clear()
        self._last[kind] = now_s, 0
        more = f" ({held_back} more of this kind since the last line)" if held_back else ""
        self._logger.warning(message + more, *values)
