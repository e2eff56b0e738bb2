"""What every answer has in common, whatever it says: a request id, a place in the counts, a line in the access log.

The id is the client's own if it sent a decent one, else a new one; both sides can then speak of the same request. The
access log holds method, path, status, size and time: never a query, a header or a body, which may hold secrets.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections import defaultdict

from driftq.server.http import Request

logger = logging.getLogger("driftq.access")

_FIELD = b"X-Request-Id: "
_LOW = tuple(b"%02x\r\n" % number for number in range(256))
_DECENT = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")


class Answers:
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
