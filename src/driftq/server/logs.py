"""The server's log: warnings that are not repeated too often, and the access log. The form of lines is in `log_lines`.

Payloads, tokens and credentials are never logged. `RateLimited` keeps a repeated warning from filling the disk. The
connection layer calls `AccessLog.on_response` once for each response, when its head is written.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from driftq.server.http.request import Request

REPEAT_S = 10.0  # how often a kind of warning is logged
KINDS_MAX = 256


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


# --- the access log, request ids and the count of responses by status ---

_access_logger = logging.getLogger("driftq.access")

_HEADER = b"X-Request-Id: "
_SUFFIXES = tuple(b"%02x\r\n" % number for number in range(256))
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")


class AccessLog:
    """Names and counts requests; logs them if `enabled`."""

    def __init__(self, *, enabled: bool = False) -> None:
        self.by_status: defaultdict[int, int] = defaultdict(int)
        self.enabled = enabled
        self._start = os.urandom(4).hex().encode()
        self._block = 0  # ids are made in blocks of 256, so that one costs a concatenation of bytes
        self._block_line = b""
        self._in_block = len(_SUFFIXES)

    def on_response(self, request: Request, status: int, size_bytes: int | None) -> bytes:
        """The header lines of a response that is about to be written."""
        self.by_status[status] += 1
        head = request.head
        if not (self.enabled or request.id or head.cross_origin or b"x-request-id" in head.fields):
            return self._new_line()  # nearly every response
        request_id = self.request_id(request)
        if self.enabled:
            _log(request, status, size_bytes)
        return b"%b%b\r\n%b" % (_HEADER, request_id, head.cross_origin)

    def request_id(self, request: Request) -> bytes:
        """The id of a request: the client's, or a new one."""
        if not request.id:
            sent = request.head.fields.get(b"x-request-id")
            if sent is not None and _REQUEST_ID.fullmatch(sent := sent.strip(b" \t")):
                request.id = sent
            else:
                request.id = self._new_line()[len(_HEADER) : -2]
        return request.id

    def _new_line(self) -> bytes:
        number = self._in_block
        if number == len(_SUFFIXES):
            self._block_line = b"%b%b-%08x" % (_HEADER, self._start, self._block)
            self._block += 1
            number = 0
        self._in_block = number + 1
        return self._block_line + _SUFFIXES[number]

    def on_request(self, request: Request) -> None:
        """Note when a request arrived."""
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
    if request.trace_id:
        fields["trace_id"] = f"{request.trace_id:032x}"
    _access_logger.info("%s %s %d", method, path, status, extra={"fields": fields})
