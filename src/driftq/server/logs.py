"""How log lines look: text for people or one JSON object a line for machines, on standard error.

A record's further fields come as `extra={"fields": {…}}`. What is logged is decided where it happens; payloads, tokens
and credentials are never among it. `RateLimited` keeps a repeated complaint from filling the disk.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

from driftq.wire.fields import to_rfc3339

if TYPE_CHECKING:
    from driftq.server.http import Request
    from driftq.server.settings import LogSettings

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


def configure(settings: LogSettings, stream: TextIO | None = None) -> None:
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


class RateLimited:
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


# --- what all answers share: a request id, a count, a line in the access log ---


logger = logging.getLogger("driftq.access")

_FIELD = b"X-Request-Id: "
_LOW = tuple(b"%02x\r\n" % number for number in range(256))
_DECENT = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")


class AccessLog:
    """`answered` is for the connection layer: called once for each answer."""

    def __init__(self, *, access_log: bool = False) -> None:
        self.by_status: defaultdict[int, int] = defaultdict(int)
        self.access_log = access_log
        self._start = os.urandom(4).hex().encode()
        self._block = 0  # ids are made in blocks, so that one costs an addition of bytes
        self._block_line = b""
        self._in_block = len(_LOW)

    def answered(self, request: Request, status: int, size_bytes: int | None) -> bytes:
        """The header line of an answer that is about to be written."""
        self.by_status[status] += 1
        head = request.head
        if not (self.access_log or request.id or head.cross_origin or b"x-request-id" in head.fields):
            return self._new_line()  # what nearly every answer gets
        name = self.name(request)
        if self.access_log:
            _log(request, status, size_bytes)
        return b"%b%b\r\n%b" % (_FIELD, name, head.cross_origin)

    def name(self, request: Request) -> bytes:
        """The id of a request; from the first call on it has one."""
        if not request.id:
            given = request.head.fields.get(b"x-request-id")
            if given is not None and _DECENT.fullmatch(given := given.strip(b" \t")):
                request.id = given
            else:
                request.id = self._new_line()[len(_FIELD) : -2]
        return request.id

    def _new_line(self) -> bytes:
        number = self._in_block
        if number == len(_LOW):
            self._block_line = b"%b%b-%08x" % (_FIELD, self._start, self._block)
            self._block += 1
            number = 0
        self._in_block = number + 1
        return self._block_line + _LOW[number]

    def began(self, request: Request) -> None:
        """For the access log: when a request reached its route."""
        request.started_s = time.monotonic()


def _log(request: Request, status: int, size_bytes: int | None) -> None:
    method, path = request.method or "-", request.raw_path.decode("latin-1") or "-"
    took_ms = round((time.monotonic() - request.started_s) * 1_000, 3) if request.started_s else 0.0
    fields = {
        "request_id": request.id.decode(),
        "peer": request.peer,
        "method": method,
        "path": path,
        "status": status,
        "size_bytes": size_bytes,
        "took_ms": took_ms,
    }
    logger.info("%s %s %d", method, path, status, extra={"fields": fields})
