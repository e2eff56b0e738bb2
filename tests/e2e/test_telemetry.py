"""Traces from sender to worker: real spans of the SDK, exported by OTLP and decoded by a receiver."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import subprocess
import sys
import time
from io import StringIO

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState

import driftq
from driftq import telemetry
from driftq.settings.log_lines import JsonLines
from tests.support.otlp_receiver import otlp_receiver
from tests.support.server import running

SERVER, PRODUCER, CONSUMER, INTERNAL = 2, 4, 5, 1  # kinds of spans in the protocol
SOON = driftq.RetryPolicy(max_attempts=3, backoff_ms=1, max_backoff_ms=1)


@pytest.fixture(scope="module")
def receiver():
    with otlp_receiver() as received:
        yield received


@pytest.fixture(scope="module")
def server(receiver):
    settings = (f"trace.otlp_url={receiver.url}", 'trace.headers=["x-key=secret"]', "log.access=true")
    with running(None, *settings, "log.format=json", "queue.retry_floor_ms=1") as started:
        started.read_lines()
        yield started


@pytest.fixture
def exported(receiver):
    """The client traces, and its spans are exported when `telemetry.close` is called."""
    provider = telemetry.export("shop", receiver.url)
    yield provider
    telemetry.close(provider)


@pytest.fixture
def broker(server):
    with driftq.connect(server.url) as client:
        yield client


def test_a_message_is_one_trace_from_its_sender_over_the_broker_to_each_attempt(receiver, server, broker, exported):
    broker.topics.create("orders")
    seen = []

    @driftq.worker("orders", group="billing")
    def charge(message):
        seen.append((baggage.get_baggage("user"), message.envelope.tracestate))
        broker.send("receipts", "paid")
        if message.attempts < 3:
            raise ValueError("no")

    broker.topics.create("receipts")
    remote = SpanContext(0xA1, 0xB2, True, TraceFlags(1), TraceState([("vendor", "x")]))
    token = context.attach(baggage.set_baggage("user", "ann", trace.set_span_in_context(NonRecordingSpan(remote))))
    try:
        broker.send("orders", "7", retry=SOON)
    finally:
        context.detach(token)
    while len(seen) < 3:
        charge.run(broker, drain=True)
    telemetry.close(exported)

    (sent,) = receiver.wait_for("send orders")
    assert (sent.service, sent.kind, sent.parent_id, sent.tracestate) == ("shop", PRODUCER, f"{0xB2:016x}", "vendor=x")
    (received,) = receiver.wait_for("receive orders")
    assert (received.service, received.kind, received.parent_id) == ("driftq", SERVER, sent.span_id)
    (commit,) = receiver.wait_for("commit orders")
    assert (commit.kind, commit.parent_id) == (INTERNAL, received.span_id)
    assert received.start_ns <= commit.start_ns <= commit.end_ns <= received.end_ns
    attempts = receiver.wait_for("process orders", 3)
    assert {span.parent_id for span in attempts} == {sent.span_id}
    assert [span.attributes["messaging.driftq.attempt"] for span in attempts] == [1, 2, 3]
    assert [span.status for span in attempts] == [2, 2, 0]
    assert [span.links for span in attempts] == [
        [sent.span_id], [sent.span_id, attempts[0].span_id], [sent.span_id, attempts[1].span_id]
    ]  # fmt: skip
    receipts = receiver.wait_for("send receipts", 3)
    assert {span.parent_id for span in receipts} == {span.span_id for span in attempts}
    every = [sent, received, commit, *attempts, *receipts]
    assert {span.trace_id for span in every} == {f"{0xA1:032x}"}
    assert seen == [("ann", "vendor=x")] * 3
    assert attempts[0].attributes.items() >= {
        "messaging.system": "driftq", "messaging.destination.name": "orders", "messaging.operation.type": "process",
        "messaging.consumer.group.name": "billing", "messaging.message.id": "orders:0:0",
        "messaging.destination.partition.id": "0", "messaging.message.body.size": 1,
    }.items()  # fmt: skip
    assert any(headers.get("x-key") == "secret" for headers in receiver.headers)
    access = [json.loads(line) for line in server.lines if '"POST /v1/produce' in line]
    assert f"{0xA1:032x}" in [line.get("trace_id") for line in access]


def test_jobs_batches_producers_and_outcomes_carry_their_traces(receiver, server, broker, exported):
    broker.topics.create("work")
    broker.topics.create("more")

    @driftq.task("add", topic="work", group="adders")
    async def add(left: int, right: int) -> int:
        driftq.current_message().outcome().send("more", "sum")
        return left + right

    handle = add.enqueue(broker, 1, 2)
    add.run(broker, drain=True)
    assert handle.result(timeout=10) == 3
    broker.send_many("more", ["a", "b"])
    with broker.producer("more") as producer:
        producer.send("c")
        producer.send("d", idempotency_key="d")
    messages = broker.claim("more", "readers", max=10)
    telemetry.close(exported)

    traces = {message.text: message.envelope.traceparent.split("-")[1:3] for message in messages}
    assert traces["a"] == traces["b"] == [(span := receiver.wait_for("send more")[0]).trace_id, span.span_id]
    created = {(span.trace_id, span.span_id) for span in receiver.wait_for("create more", 3)}
    assert {tuple(traces["c"]), tuple(traces["d"])} < created
    (process,) = receiver.wait_for("process work")
    assert process.attributes["messaging.driftq.task"] == "add"
    assert process.parent_id == receiver.wait_for("send work")[0].span_id
    batch = next(span for span in receiver.wait_for("receive more", 2) if span.parent_id == traces["a"][1])
    assert batch.attributes["messaging.batch.message_count"] == 2


def test_an_async_send_that_fails_ends_its_span_with_the_error(receiver, server, exported):
    async def send() -> None:
        async with driftq.connect_async(server.url) as client:
            await client.send("nowhere", "x")

    with pytest.raises(driftq.errors.NotFound):
        asyncio.run(send())
    telemetry.close(exported)
    (span,) = receiver.wait_for("send nowhere")
    assert (span.status, span.attributes["error.type"]) == (2, "NotFound")
    (refused,) = receiver.wait_for("receive nowhere")
    assert (refused.status, refused.attributes["http.response.status_code"]) == (2, 404)
    assert not receiver.named("commit nowhere")


def test_log_records_inside_a_span_carry_its_ids(broker):
    stream = StringIO()
    log = logging.StreamHandler(stream)
    log.setFormatter(JsonLines())
    logger = logging.getLogger("tests.telemetry")
    logger.addHandler(log)
    provider = TracerProvider(shutdown_on_exit=False)
    telemetry.enable(provider)
    try:
        with provider.get_tracer("t").start_as_current_span("s") as span:
            logger.warning("inside")
        logger.warning("outside")
        telemetry.disable()
        with provider.get_tracer("t").start_as_current_span("s"):
            logger.warning("after")
    finally:
        telemetry.disable()
        logger.removeHandler(log)
    inside, outside, after = map(json.loads, stream.getvalue().splitlines())
    ids = span.get_span_context()
    assert (inside["trace_id"], inside["span_id"]) == (f"{ids.trace_id:032x}", f"{ids.span_id:016x}")
    assert "trace_id" not in outside
    assert "trace_id" not in after


def test_a_worker_process_exports_its_spans(receiver, server, broker, tmp_path):
    broker.topics.create("letters")
    broker.send("letters", "hello")
    (tmp_path / "app.py").write_text(
        "import logging, driftq\n"
        "@driftq.worker('letters', group='post')\n"
        "def post(message):\n    logging.getLogger('app').warning('posted')\n"
    )
    command = [sys.executable, "-m", "driftq.cli.main", "worker", "app", "--burst", "--trace", "--json"]
    endpoint = receiver.url.removesuffix("/v1/traces")
    environment = {"DRIFTQ_URL": server.url, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "PATH": "/usr/bin:/bin"}
    ended = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=50, env=environment, cwd=tmp_path
    )
    assert ended.returncode == 0, ended.stderr
    (span,) = receiver.wait_for("process letters")
    assert span.service == "driftq-worker"
    (line,) = [json.loads(text) for text in ended.stderr.splitlines() if '"posted"' in text]
    assert (line["trace_id"], line["span_id"]) == (span.trace_id, span.span_id)


def test_a_collector_that_is_away_costs_nothing_but_its_spans():
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts nothing and never answers
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1/traces"
        with running(None, f"trace.otlp_url={url}", "trace.queue_max=16", "trace.timeout_ms=500") as server:
            with driftq.connect(server.url) as broker:
                broker.topics.create("orders")
                for number in range(200):
                    broker.send("orders", str(number))
                assert len(broker.claim("orders", "all", max=500)) == 200
            began_s = time.monotonic()
            assert server.stop() == 0
            assert time.monotonic() - began_s < 10
        complaints = [line for line in server.lines if "opentelemetry" in line]
        assert len(complaints) <= 1


@pytest.mark.parametrize(
    ("field", "text", "reason"),
    [
        ("tracestate", "a=" + "b" * 511, "envelope.tracestate has 513 bytes; at most 512 are allowed"),
        ("baggage", "a=" + "b" * 8_191, "envelope.baggage has 8193 bytes; at most 8192 are allowed"),
        ("baggage", "name=Jürgen", "envelope.baggage is a header of W3C Trace Context: printable ASCII"),
    ],
)
def test_a_trace_that_is_no_header_is_refused_and_nothing_is_stored(server, broker, field, text, reason):
    topic = f"bad.{field}.{len(text)}"
    broker.topics.create(topic)
    reply = server.call("POST", "/v1/produce", {"topic": topic, "value": "x", "envelope": {field: text}})
    assert reply.status == 400
    assert reason in reply.json()["message"]
    assert broker.claim(topic, "all") == []


def test_the_headers_of_a_request_become_the_trace_of_its_message(server, broker):
    broker.topics.create("plain")
    trace_headers = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-00", "tracestate": "v=1", "baggage": "user=ann"}
    server.call("POST", "/v1/produce", {"topic": "plain", "value": "1"}, trace_headers)
    too_long = trace_headers | {"tracestate": "v=" + "1" * 600, "baggage": "\xff"}
    server.call("POST", "/v1/produce", {"topic": "plain", "value": "2"}, too_long)
    first, second = (message.envelope for message in broker.claim("plain", "all", max=2))
    assert (first.traceparent, first.tracestate, first.baggage) == tuple(trace_headers.values())
    assert (second.traceparent, second.tracestate, second.baggage) == (trace_headers["traceparent"], "", "")


def test_a_repeat_with_another_trace_is_the_same_message(broker, exported):
    broker.topics.create("once")
    first = broker.send("once", "x", idempotency_key="k")
    second = broker.send("once", "x", idempotency_key="k")
    assert (second.duplicate, second.offset) == (True, first.offset)


def test_nothing_imports_opentelemetry_unless_it_is_asked_to():
    program = (
        "import sys, driftq, driftq.client.api, driftq.client.worker.runner, driftq.client.producer.producer\n"
        "import driftq.server.run, driftq.cli.worker_process\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)
