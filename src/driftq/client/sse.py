"""Server-sent events, read: bytes in, events out. Pure; knows nothing of streams or connections."""

from __future__ import annotations

import re
from typing import NamedTuple

_LINE_END = re.compile(rb"\r\n|\n|\r")


class Event(NamedTuple):
    name: str
    data: bytes


class Events:
    """Takes bytes as they come and gives the events that are whole."""

    def __init__(self) -> None:
        self._rest = b""
        self._name = "message"
        self._lines: list[bytes] = []

    def feed(self, data: bytes) -> list[Event]:
        found: list[Event] = []
        text = self._rest + data
        held = text[-1:] if text.endswith(b"\r") else b""  # the other half of a line end may follow
        *lines, self._rest = _LINE_END.split(text.removesuffix(held) if held else text)
        self._rest += held
        for line in lines:
            self._take(line, found)
        return found

    def _take(self, line: bytes, found: list[Event]) -> None:
        if not line:
            if self._lines:
                found.append(Event(self._name, b"\n".join(self._lines)))
            self._name, self._lines = "message", []
            return
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._lines.append(value)
        elif field == b"event":
            self._name = value.decode()
