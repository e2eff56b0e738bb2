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
from itertools import count

from driftq.server.http import Request

logger = logging.getLogger("driftq.access")

_DECENT = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")


class Answers:
    """For the connection layer: called once for each answer."""

    def __init__(self, *, access_log: bool = False) -> None:
        self.by_status: defaultdict[int, int] = defaultdict(int)
        self.access_log = access_log
        self._next = count(1).__next__
        self._start = os.urandom(4).hex().encode()
        self._line = b"X-Request-Id: %b-" % self._start

    def __call__(self, request: Request, status: int, size_bytes: int | None) -> bytes:
        """The header line of an answer that is about to be written."""
        self.by_status[status] += 1
        if not (self.access_log or request.id or b"x-request-id" in request.head.fields):
            return b"%b%010x\r\n" % (self._line, self._next())  # what nearly every answer is
        name = self.name(request)
        if self.access_log:
            _log(request, status, size_bytes)
        return b"X-Request-Id: %b\r\n" % name

    def name(self, request: Request) -> bytes:
        """The id of a request; from the first call on it has one."""
        if not request.id:
            given = request.head.fields.get(b"x-request-id")
            if given is not None and _DECENT.fullmatch(given := given.strip(b" \t")):
                request.id = given
            else:
                request.id = b"%b-%010x" % (self._start, self._next())
        return request.id

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
