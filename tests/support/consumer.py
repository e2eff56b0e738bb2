"""Consumers of `/v1/consume`: they read lines on one connection and settle on another, as real clients do."""

from __future__ import annotations

import json
import threading
from collections import Counter
from typing import Any

from tests.support.server import Server


class Consumption:
    """An open `/v1/consume`."""

    def __init__(self, server: Server, topic: str, group: str, owner: str, **more: object) -> None:
        query = "&".join(f"{name}={value}" for name, value in more.items())
        timeout_s = 20.0
        self.names = {"topic": topic, "group": group, "owner": owner}
        self._connection = server.connect(timeout_s)
        self._settling = server.connect(timeout_s)
        self._connection.request("GET", f"/v1/consume?topic={topic}&group={group}&owner={owner}&{query}")
        self.response = self._connection.getresponse()
        assert self.response.status == 200, self.response.read()

    def next(self) -> dict[str, Any] | None:
        """The next message; None for a bare newline."""
        line = self.response.readline()
        assert line, "the stream ended"
        return json.loads(line) if line.strip() else None

    def until_idle(self) -> list[dict[str, Any]]:
        """All messages before a bare newline."""
        messages: list[dict[str, Any]] = []
        while (message := self.next()) is not None:
            messages.append(message)
        return messages

    def settle(self, verb: str, message: dict[str, Any]) -> int:
        """Settle without a token, as the first clients did."""
        body = {**self.names, "partition": message["partition"], "offset": message["offset"]}
        self._settling.request("POST", f"/v1/{verb}", json.dumps(body))
        reply = self._settling.getresponse()
        reply.read()
        return reply.status

    def close(self) -> None:
        self.response.close()
        self._connection.close()
        self._settling.close()


def handle_serially(stream: Consumption, count: int, work_s: float) -> Counter[str]:
    """Read, work and ack one by one, until `count` messages and an idle newline have arrived."""
    handled: Counter[str] = Counter()
    working = threading.Event()
    while True:
        message = stream.next()
        if message is None:
            if len(handled) >= count:
                return handled
            continue
        working.wait(work_s)
        handled[message["value"]] += 1
        status = stream.settle("ack", message)
        assert status == 204, (status, message)
