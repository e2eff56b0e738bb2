"""Server-sent events of a stream: bytes in, chunks out. Pure; knows nothing of connections.

    bytes ──▶ SseParser ──▶ SseEvent(name, data) ──▶ SseFollower ──▶ ReadChunk

The broker sends a chunk as any number of `data` events and one `control` event. Only the control event names the offset
after the chunk, so a chunk is complete when it has arrived. On a new connection the broker repeats an incomplete chunk.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from driftq.client.calls.streams import ReadChunk
from driftq.wire import streams as w

_LINE_END = re.compile(rb"\r\n|\n|\r")


class SseEvent(NamedTuple):
    name: str
    data: bytes


class SseParser:
    """Takes bytes as they arrive and returns the events that are complete."""

    def __init__(self) -> None:
        self._rest = b""
        self._name = "message"
        self._lines: list[bytes] = []

    def feed(self, data: bytes) -> list[SseEvent]:
        events: list[SseEvent] = []
        text = self._rest + data
        held = text[-1:] if text.endswith(b"\r") else b""  # the second half of a line end may follow
        *lines, self._rest = _LINE_END.split(text.removesuffix(held) if held else text)
        self._rest += held
        for line in lines:
            self._take_line(line, events)
        return events

    def _take_line(self, line: bytes, events: list[SseEvent]) -> None:
        if not line:
            if self._lines:
                events.append(SseEvent(self._name, b"\n".join(self._lines)))
            self._name, self._lines = "message", []
            return
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._lines.append(value)
        elif field == b"event":
            self._name = value.decode()


class SseFollower:
    """How far a follower has read: `offset` is where the next connection begins."""

    def __init__(self, offset: str, content_type: str) -> None:
        self.offset = offset
        self.closed = False
        self._is_base64 = False
        self._content_type = content_type
        self._parser = SseParser()
        self._parts: list[bytes] = []

    def connected(self, headers: dict[str, str]) -> None:
        """On a new connection: forget the incomplete chunk, the broker repeats it."""
        self._parser = SseParser()
        self._parts = []
        self._is_base64 = headers.get(w.SSE_ENCODING.lower()) == "base64"

    def feed(self, data: bytes) -> Iterator[ReadChunk]:
        """The chunks that these bytes complete."""
        for event in self._parser.feed(data):
            if event.name == "data":
                self._parts.append(base64.b64decode(event.data) if self._is_base64 else event.data)
            elif event.name == "control":
                control = msgspec.json.decode(event.data, type=dict[str, Any])
                self.offset = control["streamNextOffset"]
                self.closed = bool(control.get("streamClosed"))
                if self._parts:
                    body = join_parts(self._content_type, self._parts)
                    yield ReadChunk(body, self._content_type, self.offset, bool(control.get("upToDate")), self.closed)
                self._parts = []


def join_parts(content_type: str, parts: list[bytes]) -> bytes:
    """Consecutive pieces of a stream as one: JSON arrays become one array."""
    if not w.is_json(content_type):
        return b"".join(parts)
    items = [part.strip()[1:-1] for part in parts]
    return b"[%b]" % b",".join(item for item in items if item.strip())
