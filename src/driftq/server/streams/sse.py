"""Server-sent events as bytes: data in as many lines as it has, and the control event that follows it.

Pure. Text and JSON stand as they are; other bytes go as base64, each event for itself.
"""

from __future__ import annotations

import base64
import re

from msgspec import json

from driftq.wire.streams import token

_LINE_END = re.compile(rb"\r\n|\r|\n")


def data_event(payload: bytes, *, as_base64: bool) -> bytes:
    if as_base64:
        return b"event: data\ndata:%b\n\n" % base64.b64encode(payload)
    if b"\n" not in payload and b"\r" not in payload:
        return b"event: data\n%b\n" % _line(payload)
    # Whatever could end a line ends one here, so that no payload can speak for the server.
    lines = [_line(line) for line in _LINE_END.split(payload)]
    return b"event: data\n%b\n" % b"".join(lines)


def _line(text: bytes) -> bytes:
    """A reader drops one blank behind the colon, so a line that begins with one gets another."""
    return b"data: %b\n" % text if text[:1] == b" " else b"data:%b\n" % text


def control_event(next_offset: int, cursor: str, *, up_to_date: bool, closed: bool) -> bytes:
    fields: dict[str, object] = {"streamNextOffset": token(next_offset)}
    if closed:
        fields["streamClosed"] = True
    else:
        fields["streamCursor"] = cursor
        if up_to_date:
            fields["upToDate"] = True
    return b"event: control\ndata:%b\n\n" % json.encode(fields)
