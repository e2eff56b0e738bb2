"""The published clients of the protocol, in TypeScript and in Python, drive the server as users would."""

from __future__ import annotations

import json
import threading

import pytest

from tests.support import node
from tests.support.access import TEXT, TOKENS, Operator, bearer, first_token, id_of
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


# The client asks the function for the header of each request, so a token may be renewed on the way.
GUARDED_SCRIPT = """
import { DurableStream, IdempotentProducer, stream } from "@durable-streams/client"
const broker = process.env.DRIFTQ_URL
const url = broker + "/v1/stream/node"
let token = process.env.FIRST
const headers = { Authorization: () => `Bearer ${token}` }
const backoffOptions = { maxRetries: 0 }
const failure = async (act) => { try { await act(); return 0 } catch (error) { return error.status ?? String(error) } }
const numbers = async (options) =>
  (await (await stream({ live: false, offset: "-1", ...options })).json()).map((item) => item.n)
const handle = await DurableStream.create({ url, headers, contentType: "application/json" })
const producer = new IdempotentProducer(handle, "writer", { autoClaim: true, lingerMs: 1 })
producer.append(JSON.stringify({ n: 0 }))
await producer.flush()
const live = await stream({ url, headers, offset: "-1", live: "sse" })
const seen = []
const whole = new Promise((resolve) => live.subscribeJson(async (batch) => {
  seen.push(...batch.items.map((item) => item.n))
  if (seen.length > 1) resolve()
}))
token = process.env.SECOND
await fetch(broker + "/v1/tokens/" + process.env.FIRST.split("_")[1], {
  method: "DELETE", headers: { Authorization: `Bearer ${process.env.OPERATOR}` },
})
const answer = await fetch(broker + "/v1/tokens/derive", {
  method: "POST", headers: { Authorization: `Bearer ${token}` },
  body: JSON.stringify({ grants: ["read:node"], ttl_ms: 600000 }),
})
const params = { access_token: (await answer.json()).token }
producer.append(JSON.stringify({ n: 1 }))
await producer.flush()
await whole
console.log(JSON.stringify({
  seen,
  derived: await numbers({ url, params }),
  other: await failure(() => numbers({ url: broker + "/v1/stream/other", params, backoffOptions })),
  write: await failure(() => new DurableStream({ url, params, backoffOptions }).append('{"n":2}')),
  access: await failure(() => numbers({ url, params: { access_token: token }, backoffOptions })),
  wrong: await failure(() => numbers({ url, headers: { Authorization: "Bearer dq_x" }, backoffOptions })),
  none: await failure(() => numbers({ url, backoffOptions })),
}))
process.exit(0)
"""


@pytest.fixture
def operator(tmp_path):
    folder = str(tmp_path / "data")
    token = first_token(folder)
    with running(folder, TOKENS, "streams.long_poll_ms=500", "log.access=true") as process:
        yield Operator(process, token)


def test_the_typescript_client_works_with_a_token_in_a_header_and_a_derived_one_in_a_url(operator, profile):
    folder = node.packages(profile)
    first, second = (operator.new("read:node", "append:node") for _ in range(2))
    operator.done("PUT", "/v1/stream/other", b"secret", TEXT)
    tokens = {"OPERATOR": operator.token, "FIRST": first, "SECOND": second}
    out = node.run(folder, GUARDED_SCRIPT, DRIFTQ_URL=operator.server.url, **tokens)
    report = json.loads(out.splitlines()[-1])
    assert report == {
        "seen": [0, 1], "derived": [0, 1], "other": 403, "write": 401, "access": 401, "wrong": 401, "none": 401,
    }  # fmt: skip
    operator.server.stop()
    printed = "".join(operator.server.lines)
    assert "/v1/stream/node" in printed
    assert "access_token" not in printed


def test_the_python_client_works_with_a_token_in_a_header(operator):
    durable_streams = pytest.importorskip("durable_streams")
    token = operator.new("read:python", "append:python")
    url = f"{operator.server.url}/v1/stream/python"
    with durable_streams.DurableStream.create(url, content_type="application/json", headers=bearer(token)) as stream:
        stream.append({"n": 0})
        with stream.stream(live=False) as whole:
            assert whole.read_json() == [{"n": 0}]
        with pytest.raises(durable_streams.DurableStreamError) as refused:
            stream.delete()
        assert refused.value.status == 403
        operator.done("DELETE", f"/v1/tokens/{id_of(token)}")
        with pytest.raises(durable_streams.DurableStreamError) as refused:
            stream.append({"n": 1})
        assert refused.value.status == 401


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
