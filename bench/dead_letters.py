"""What it costs to count the kinds of errors of many dead letters: for the first time after a start, again, and after a
redrive.

    python -m bench.dead_letters --letters 1000000

The letters are of three kinds, with 50 letters for each text. They are made through the API, which takes most of the
time, and the broker is started again before they are counted.
"""

from __future__ import annotations

import argparse
import tempfile
import time

from bench.report import emit
from tests.support.server import Server, running

TOPIC, GROUP = "jobs", "g"
PART = 1_000  # messages that are produced together
REJECTED = 50  # letters with the same text
KINDS = ("charge ch_%06d failed after 30 s: no answer", "KeyError: 'order %d'", "card of customer %d was declined")
REDRIVEN = 1_000
WAIT_MS = 200


def make(server: Server, count: int) -> None:
    """Produce messages, and reject them."""
    server.call("POST", "/v1/topics", {"name": TOPIC, "partitions": 2})
    messages = [{"value": '{"order": 7}', "task": "t", "envelope": {"tenant_id": "acme"}}] * PART
    for first in range(0, count, PART):
        assert server.call("POST", "/v1/produce/batch", {"topic": TOPIC, "messages": messages}).status == 200
        claim = {"topic": TOPIC, "group": GROUP, "owner": "o", "max": PART, "lease_ms": 600_000}
        held = server.call("POST", "/v1/claim", claim).json()["messages"]
        assert len(held) == PART
        for at in range(0, PART, REJECTED):
            letters = [{key: row[key] for key in ("partition", "offset", "token")} for row in held[at : at + REJECTED]]
            number = first + at
            reason = KINDS[number // REJECTED % len(KINDS)] % number
            body = {"topic": TOPIC, "group": GROUP, "owner": "o", "reason": reason, "messages": letters}
            assert server.call("POST", "/v1/reject", body).status == 200


def count_ms(server: Server, expected: int) -> float:
    began_s = time.perf_counter()
    reply = server.call("GET", f"/v1/dlq/{TOPIC}/errors").json()
    assert reply["counted"] == expected, reply
    return 1_000 * (time.perf_counter() - began_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--letters", type=int, default=100_000)
    letters = parser.parse_args().letters
    settings = (f"limits.partition_messages={2 * letters}",)
    with tempfile.TemporaryDirectory() as folder:
        with running(folder, *settings) as server:
            make(server, letters)
        with running(folder, *settings) as server:
            emit("dead_letters", "first count after a start", count_ms(server, letters), "ms", letters=letters)
            emit("dead_letters", "count again", count_ms(server, letters), "ms", letters=letters)
            redrive = {"kind": "KeyError: …", "limit": REDRIVEN}
            assert server.call("POST", f"/v1/dlq/{TOPIC}/redrive", redrive).json()["redriven"] == REDRIVEN
            left = letters - REDRIVEN
            emit("dead_letters", f"count after {REDRIVEN} were redriven", count_ms(server, left), "ms", letters=letters)
        with running(folder, *settings) as server:
            reply = server.call("GET", f"/v1/dlq/{TOPIC}/errors?wait_ms={WAIT_MS}").json()
            emit("dead_letters", f"counted in {WAIT_MS} ms after a start", reply["counted"], "letters", letters=letters)


if __name__ == "__main__":
    main()
