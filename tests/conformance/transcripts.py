"""Golden HTTP: text files of requests and the exact answers, against a real server.

    @set queue.in_flight_max=2          a setting of the server (before the first request)
    # a comment
    > POST /v1/ack                      a request line, then its headers and, after `>` alone, its body
    < 409                               the status, then the headers worth pinning, then the body

`@read N` before a consume reads N lines and disconnects. `@keep name path.in.reply` keeps a value for `{name}` in later
requests. Times, tokens and new ids are replaced by words, because they differ from run to run.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.support.server import Reply, Server, running

PINNED_HEADERS = (
    "allow",
    "content-type",
    "retry-after",
    "driftq-next-offset",
    "driftq-start-offset",
    "driftq-end-offset",
)
_WORDS = (
    (re.compile(r"dq_[0-9a-f]{16}_[0-9a-f]{64}"), "ACCESS_TOKEN"),
    (re.compile(r"\b[0-9a-f]{16}\b"), "TOKEN_ID"),
    (re.compile(r'"token":"[A-Za-z0-9_-]{22}"'), '"token":"TOKEN"'),
    (re.compile(r'"(\w+_ms)":1\d{12}'), r'"\1":TIME'),
    (re.compile(r'"(oldest_ms)":\d+'), r'"\1":AGE'),
    (re.compile(r'"(\w+_per_s)":\d+\.\d+'), r'"\1":RATE'),
    (re.compile(r'"request_id":"[^"]+"'), '"request_id":"REQUEST_ID"'),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00"), "TIME"),
    (re.compile(r'"ahead_ms":-?\d{1,3},'), '"ahead_ms":SMALL,'),
    (re.compile(r'"lag_ms":\d+'), '"lag_ms":AGE'),
    (re.compile(r"for up to \d+ ms more"), "for up to N ms more"),
    (re.compile(r'"retry_after_ms":(?:29\d{3}|30000)'), '"retry_after_ms":ABOUT_30000'),
)


class Request:
    """One request of a transcript, with the lines it was written as."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.method = self.path = ""
        self.headers: dict[str, str] = {}
        self.body: bytes | None = None
        self.read_lines: int | None = None
        self.keep: list[tuple[str, str]] = []


def replay(path: Path) -> str:
    """The transcript with the answers that a server gives now."""
    text = path.read_text(encoding="utf-8")
    settings = [line.split(None, 1)[1] for line in text.splitlines() if line.startswith("@set ")]
    kept: dict[str, str] = {}
    with running(None, *settings) as server:
        return "\n".join(_answered(part, server, kept) for part in text.rstrip("\n").split("\n\n")) + "\n"


def _answered(part: str, server: Server, kept: dict[str, str]) -> str:
    asked = [line for line in part.split("\n") if not line.startswith("<")]
    request = _parse(asked)
    if not request.method:
        return "\n".join(asked) + "\n"
    for name, value in kept.items():
        request.path = request.path.replace("{" + name + "}", value)
        if request.body is not None:
            request.body = request.body.replace(b"{" + name.encode() + b"}", value.encode())
    reply = _stream(server, request) if request.read_lines is not None else _call(server, request)
    for name, where in request.keep:
        kept[name] = str(_at(json.loads(reply.body.split(b"\n")[0]), where))
    return "\n".join([*asked, *_shown(reply)]) + "\n"


def _parse(lines: list[str]) -> Request:
    request = Request()
    in_body = False
    for line in lines:
        if line.startswith("@read "):
            request.read_lines = int(line.split()[1])
        elif line.startswith("@keep "):
            _, name, where = line.split()
            request.keep.append((name, where))
        elif line.startswith("> ") and not request.method:
            request.method, request.path = line[2:].split(" ", 1)
        elif line == ">":
            in_body = True
        elif line.startswith("> ") and in_body:
            request.body = (request.body + b"\n" if request.body else b"") + line[2:].encode()
        elif line.startswith("> "):
            name, value = line[2:].split(": ", 1)
            request.headers[name] = value
    return request


def _call(server: Server, request: Request) -> Reply:
    return server.call(request.method, request.path, request.body, request.headers)


def _stream(server: Server, request: Request) -> Reply:
    connection = server.connect()
    try:
        connection.request(request.method, request.path, request.body, request.headers)
        response = connection.getresponse()
        headers = {name.lower(): value for name, value in response.getheaders()}
        lines = b"".join(response.readline() for _ in range(request.read_lines or 0))
        return Reply(response.status, headers, lines)
    finally:
        connection.close()


def _at(value: Any, where: str) -> Any:
    for step in where.split("."):
        value = value[int(step)] if isinstance(value, list) else value[step]
    return value


def _shown(reply: Reply) -> list[str]:
    shown = [f"< {reply.status}"]
    shown += [f"< {name}: {reply.headers[name]}" for name in PINNED_HEADERS if name in reply.headers]
    try:
        text = reply.body.decode().rstrip("\n")
    except UnicodeDecodeError:
        text = f"({len(reply.body)} bytes)"
    for pattern, word in _WORDS:
        text = pattern.sub(word, text)
    return shown + [f"< {line}" for line in text.split("\n") if line]
