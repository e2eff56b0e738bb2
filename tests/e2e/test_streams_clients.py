"""The published clients of the protocol, in TypeScript and in Python, drive the server as users would."""

from __future__ import annotations

import json
import threading

import pytest

from tests.support import node
from tests.support.server import running

NODE_SCRIPT = """
import { DurableStream, IdempotentProducer, stream } from "@durable-streams/client"
const url = process.env.DRIFTQ_URL + "/v1/stream/node"
const handle = await DurableStream.create({ url, contentType: "application/json" })
const errors = []
const onError = (error) => errors.push(String(error))
const options = { autoClaim: true, maxInFlight: 5, maxBatchBytes: 2000, lingerMs: 1, onError }
const producer = new IdempotentProducer(handle, "writer", options)
for (let n = 0; n < 1000; n++) producer.append(JSON.stringify({ n, text: "x".repeat(50) }))
await producer.flush()
const early = await (await stream({ url, offset: "-1", live: false })).json()
const seen = []
const live = await stream({ url, offset: "-1", live: "sse" })
const whole = new Promise((resolve) => live.subscribeJson(async (batch) => {
  seen.push(...batch.items.map((item) => item.n))
  if (batch.streamClosed || seen.length > 1000) resolve()
}))
producer.append(JSON.stringify({ n: 1000, text: "" }))
await producer.flush()
await whole
await producer.close()
const head = await DurableStream.head({ url })
console.log(JSON.stringify({ errors, early: early.map((item) => item.n), seen, closed: head.streamClosed }))
process.exit(0)
"""


@pytest.fixture
def server(tmp_path):
    with running(str(tmp_path / "data"), "streams.long_poll_ms=500") as process:
        yield process


def test_the_typescript_client_writes_exactly_once_follows_and_closes(server, profile):
    folder = node.packages(profile)
    out = node.run(folder, NODE_SCRIPT, DRIFTQ_URL=f"http://127.0.0.1:{server.port}")
    report = json.loads(out.splitlines()[-1])
    assert report["errors"] == []
    assert report["early"] == list(range(1_000))
    assert report["seen"] == list(range(1_001))
    assert report["closed"] is True


def test_the_python_client_creates_appends_reads_and_follows(server):
    durable_streams = pytest.importorskip("durable_streams")
    url = f"http://127.0.0.1:{server.port}/v1/stream/python"
    with durable_streams.DurableStream.create(url, content_type="application/json") as stream:
        for number in range(20):
            stream.append({"n": number})
        with stream.stream(live=False) as whole:
            assert [item["n"] for item in whole.read_json()] == list(range(20))
        later = threading.Timer(
            0.05, lambda: server.call("POST", "/v1/stream/python", {"n": 20}, {"Content-Type": "application/json"})
        )
        later.start()
        seen = []
        with stream.stream(offset="-1", live="sse") as live:
            for item in live.iter_json():
                seen.append(item["n"])
                if len(seen) == 21:
                    break
        later.join()
        assert seen == list(range(21))
        with pytest.raises(durable_streams.StreamExistsError):
            durable_streams.DurableStream.create(url, content_type="text/plain")
        stream.delete()
    with pytest.raises(durable_streams.StreamNotFoundError):
        durable_streams.DurableStream.head_static(url)
