"""Tokens of a language model as a durable stream: a worker dies in the middle, another resumes, no reader notices.

The epoch of the stream's producer is the lease version of the job, so the two cannot mix: from the moment the second
worker writes its first line, whatever the first one still sends is refused. Run it against a broker:

    driftq serve --memory &
    python examples/token_stream.py http://127.0.0.1:8080

Words appear as the workers write them. Run it again: every run has a stream of its own.

Only the standard library is used, to show what goes over the wire.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

SENTENCE = "A stream outlives the process that writes it, so a reader can always come back."
ANSWER = SENTENCE.split()
LEASE_MS = 300
TOKEN_S = 0.1  # what a model takes for a token


class Answer(NamedTuple):
    status: int
    headers: Any
    body: bytes


def call(url: str, method: str = "GET", body: object = None, **headers: str) -> Answer:
    data = None if body is None else json.dumps(body).encode()
    named = {"Content-Type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    request = urllib.request.Request(url, data, named, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return Answer(response.status, response.headers, response.read())
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.headers, error.read())


# --- the worker -------------------------------------------------------------------------------------------------------


class Fenced(Exception):
    """Another worker has the job now."""


class Writer:
    """Writes one attempt's tokens. Every batch has a number, so a repeat after a lost answer is not written twice."""

    def __init__(self, stream: str, epoch: int) -> None:
        self._stream = stream
        self._epoch = epoch
        self._seq = 0

    def write(self, message: dict[str, Any], *, last: bool = False) -> None:
        headers = {"Producer_Id": "worker", "Producer_Epoch": str(self._epoch), "Producer_Seq": str(self._seq)}
        if last:
            headers["Stream_Closed"] = "true"
        heard = call(self._stream, "POST", message, **headers)
        if heard.status == 403:
            raise Fenced(f"epoch {self._epoch} is over, epoch {heard.headers['Producer-Epoch']} writes")
        assert heard.status in (200, 204), heard
        self._seq += 1


def work(server: str, owner: str, dies_after: int | None, after_start: Callable[[], None] | None = None) -> Writer:
    """Claim the prompt and stream its answer; stop silently after `dies_after` tokens. `after_start` is called
    once this attempt has begun."""
    claim = {"topic": "prompts", "group": "models", "owner": owner, "lease_ms": LEASE_MS, "wait_ms": 10_000}
    (job,) = json.loads(call(f"{server}/v1/claim", "POST", claim).body)["messages"]
    stream = f"{server}/v1/stream/{job['value']}"
    writer = Writer(stream, job["lease_version"])
    # First the fence, then the read: an older attempt cannot write in between.
    writer.write({"attempt": job["lease_version"]})
    if after_start is not None:
        after_start()
    done = sum("token" in message for message in json.loads(call(stream).body))
    for number, token in enumerate(ANSWER[done:], done):
        if number == dies_after:
            return writer
        time.sleep(TOKEN_S)
        last = number == len(ANSWER) - 1
        writer.write({"token": token}, last=last)
    held = {"partition": job["partition"], "offset": job["offset"], "token": job["token"]}
    call(f"{server}/v1/ack", "POST", {"topic": "prompts", "group": "models", "owner": owner, **held})
    return writer


# --- the reader -------------------------------------------------------------------------------------------------------


def follow(stream: str, offset: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Messages and the offset after each batch of them, until the connection ends. Any SSE client could do this."""
    kind, messages = "", []
    with urllib.request.urlopen(f"{stream}?live=sse&offset={offset}", timeout=60) as events:
        for raw in events:
            line = raw.decode().rstrip("\n")
            if line.startswith("event: "):
                kind = line[7:]
            elif line.startswith("data:") and kind == "data":
                messages = json.loads(line[5:])
            elif line.startswith("data:"):
                control = json.loads(line[5:])
                for message in messages:
                    yield message, control["streamNextOffset"]
                messages = []


def read(stream: str, tokens: list[str]) -> None:
    """Read to the end, with a page reload after every third token: only the offset is kept."""
    offset = "-1"
    while len(tokens) < len(ANSWER):
        for count, (message, after) in enumerate(follow(stream, offset)):
            if "token" in message:
                tokens.append(message["token"])
                print(message["token"], end=" ", flush=True)
            offset = after
            if count == 2:
                break


def come_back(zombie: Writer) -> None:
    try:
        zombie.write({"token": "NOISE"})
    except Fenced as refused:
        print("\n(the first worker came back and was refused:", f"{refused})", flush=True)


def main(server: str) -> None:
    call(f"{server}/v1/topics", "POST", {"name": "prompts"})
    path = f"answers/{uuid.uuid4().hex[:8]}"
    stream = f"{server}/v1/stream/{path}"
    assert call(stream, "PUT").status == 201
    print(stream, flush=True)
    tokens: list[str] = []
    reader = threading.Thread(target=read, args=(stream, tokens))
    reader.start()
    call(f"{server}/v1/produce", "POST", {"topic": "prompts", "value": path})
    zombie = work(server, "first worker", dies_after=5)
    work(server, "second worker", dies_after=None, after_start=lambda: come_back(zombie))
    reader.join(30)
    print()
    assert tokens == ANSWER, tokens


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("DRIFTQ_URL", "http://127.0.0.1:8080"))
