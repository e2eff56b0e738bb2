"""Clients that are generated from the OpenAPI document alone, in Python and in TypeScript: they can be made, they pass
their type checker, and they do the work of a queue and a stream against a real broker."""

from __future__ import annotations

import importlib
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import node
from tests.support.server import Server, running

HERE = Path(__file__).parent / "clients"
# Our own media types, which the generator does not know: bytes and text.
OVERRIDES = """
content_type_overrides:
  application/x-driftq-batch: application/octet-stream
  application/x-driftq-batches: application/octet-stream
  application/x-ndjson: text/plain
  application/jwk-set+json: application/json
  "*/*": application/octet-stream
"""


@pytest.fixture(scope="module")
def server():
    with running(None) as started:
        yield started


def saved_document(server: Server, folder: Path) -> Path:
    path = folder / "openapi.json"
    path.write_bytes(server.call("GET", "/v1/openapi.json").body)
    return path


def call(command: list[str], folder: Path, **env: str) -> str:
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PATH": programs, **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-4_000:]
    return done.stdout


def test_the_document_names_its_server_and_version(server, tmp_path):
    document = json.loads(saved_document(server, tmp_path).read_text())
    assert document["servers"] == [{"url": "/", "description": "The server that this document came from."}]
    assert document["security"] == [{"token": []}, {}]
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    assert any(path.startswith("/v1/stream/__ds/subscriptions/") for path in document["paths"])
    assert '"items":false' not in json.dumps(document, separators=(",", ":"))


@pytest.fixture(scope="module")
def generated(server, tmp_path_factory):
    """The generated Python package."""
    pytest.importorskip("openapi_python_client")
    folder = tmp_path_factory.mktemp("generated")
    (folder / "config.yml").write_text(OVERRIDES)
    path = saved_document(server, folder)
    command = ["openapi-python-client", "generate", "--meta", "none", "--output-path", "driftq_generated"]
    output = call([*command, "--path", str(path), "--config", "config.yml"], folder)
    operations = sum(len(methods) for methods in json.loads(path.read_text())["paths"].values())
    modules = [path for path in (folder / "driftq_generated" / "api").glob("*/*.py") if path.stem != "__init__"]
    assert len(modules) == operations, f"every operation becomes a function:\n{output}"
    sys.path.insert(0, str(folder))
    yield lambda name: importlib.import_module(f"driftq_generated.{name}")
    sys.path.remove(str(folder))


@pytest.fixture
def client(server, generated):
    with generated("client").Client(base_url=server.url) as client:
        yield client


def test_a_generated_python_client_produces_claims_acks_and_is_refused(client, generated):
    models = generated("models")
    topic = generated("api.topics.post_topics").sync(
        client=client, body=models.TopicRequest(name="orders", partitions=2)
    )
    assert (topic.name, topic.partitions) == ("orders", 2)
    produce = generated("api.produce.post_produce")
    sent = produce.sync(client=client, body=models.ProduceRequest(topic="orders", value="hello", key="ann"))
    nowhere = produce.sync_detailed(client=client, body=models.ProduceRequest(topic="nowhere", value="hello"))
    assert (int(nowhere.status_code), nowhere.parsed.error) == (404, "NOT_FOUND")

    claim = models.ClaimRequest(topic="orders", group="billing", owner="py", max_=1)
    (message,) = generated("api.consume.post_claim").sync(client=client, body=claim).messages
    assert (message.value, message.partition, message.offset) == ("hello", sent.partition, sent.offset)
    ack = models.AckRequest(
        topic="orders", group="billing", partition=message.partition, offset=message.offset, token=message.token
    )
    assert generated("api.settle.post_ack").sync_detailed(client=client, body=ack).status_code == 204
    group = generated("api.groups.get_topics_topic_groups_group").sync("orders", "billing", client=client)
    assert group.lag == 0


def test_a_generated_python_client_appends_reads_and_follows_a_stream(client, generated):
    file = generated("types").File
    created = generated("api.streams.put_stream_path").sync_detailed("log", client=client)
    assert created.status_code == 201
    append = generated("api.streams.post_stream_path").sync_detailed
    assert append("log", client=client, body=file(payload=io.BytesIO(b"one two"))).status_code == 204
    read = generated("api.streams.get_stream_path").sync("log", client=client, offset="-1")
    assert read.payload.read() == b"one two"
    wanted = {"type": "pull-wake", "streams": ["log"], "wake_stream": "wakes"}
    body = generated("models").SubscriptionRequest.from_dict(wanted)
    followed = generated("api.subscriptions.put_stream_ds_subscriptions_id").sync("w", client=client, body=body)
    assert [stream.path for stream in followed.streams] == ["log"]


@pytest.mark.timeout(300)
def test_a_generated_typescript_client_passes_its_checker_and_works(server, tmp_path, profile):
    folder = node.packages(profile, HERE)
    source = folder / "src"
    source.mkdir(exist_ok=True)
    shutil.copy(HERE / "client.ts", source)
    document = saved_document(server, tmp_path)
    # By default the generator requires fields that have a default.
    types = ["--default-non-nullable", "false", "--output", "src/schema.d.ts"]
    call(["npx", "openapi-typescript", str(document), *types], folder)
    strict = ["--strict", "--target", "es2022", "--module", "nodenext", "--skipLibCheck", "--outDir", "out"]
    call(["npx", "tsc", *strict, "src/client.ts"], folder)
    report = json.loads(call(["node", "out/client.js"], folder, DRIFTQ_URL=server.url))
    assert (report["value"], report["acked"], report["lag"]) == ("hello", 204, 0)
    assert report["stale"] == [409, "FAILED_PRECONDITION"] or report["stale"][0] >= 400
    assert report["stream"] == [{"n": 1}, {"n": 2}]
    assert report["followed"] == ["lines"]
