"""The archive on a real S3 server."""

from __future__ import annotations

import itertools
import shutil

import pytest

from driftq.storage.archive.cloud_objects import open_object_store
from driftq.storage.archive.object_store import ObjectStoreError
from tests.e2e.test_archive import archive_of, driftq, wait_shipped
from tests.support.cold_segments import LOCAL, SMALL_FILES, VALUE, fill, move, tiers_of
from tests.support.object_store_suite import CHECKS
from tests.support.s3_server import s3_server
from tests.support.server import Server, running
from tests.support.wait import until_now

_prefixes = itertools.count()


@pytest.fixture(scope="module")
def s3():
    with s3_server() as server:
        server.make_bucket("archive")
        yield server


@pytest.fixture
def use(monkeypatch):
    """Sets the environment of an S3 client."""

    def set_all(environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)

    return set_all


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_a_bucket_keeps_the_contract_of_object_stores(s3, use, check):
    use(s3.environment())
    url = f"s3://archive/conformance/{next(_prefixes)}"
    check(open_object_store(url), open_object_store(url))


def test_wrong_credentials_a_wrong_bucket_and_a_read_only_one_have_reasons_of_their_own(s3, use):
    def reason(call):
        with pytest.raises(ObjectStoreError) as failure:
            call()
        return failure.value.reason

    use(s3.environment("unknown", "wrong"))
    assert reason(lambda: open_object_store("s3://archive/x").get("a")) == "denied"
    use(s3.reader_environment())
    assert reason(lambda: open_object_store("s3://archive/x").put_new("a", b"")) == "denied"
    use(s3.environment())
    assert reason(lambda: open_object_store("s3://no-such-bucket/x").get("a")) == "no_bucket"


def test_a_broker_is_restored_from_a_bucket(s3, tmp_path):
    env = s3.environment()
    url = f"s3://archive/brokers/{next(_prefixes)}"
    server = Server(str(tmp_path / "one"), f"archive.url={url}", "archive.mode=sync", env=env)
    server.call("POST", "/v1/topics", {"name": "t"})
    for number in range(20):
        server.call("POST", "/v1/produce", {"topic": "t", "value": f"v{number}"})
    server.kill()
    done = driftq("restore", url, str(tmp_path / "two"), env=env)
    assert done.returncode == 0, done.stderr
    with running(str(tmp_path / "two")) as restored:
        reply = restored.call("GET", "/v1/topics/t/partitions/0/messages?offset=0&limit=100").json()
    assert [message["value"] for message in reply["messages"]] == [f"v{number}" for number in range(20)]
    assert driftq("archive", "verify", url, env=env).returncode == 0


@pytest.mark.parametrize(
    ("bucket", "environment", "reason"),
    [
        ("archive", lambda s3: s3.environment("unknown", "wrong"), "refused the credentials"),
        ("archive", lambda s3: s3.reader_environment(), "refused the credentials"),
        ("no-such-bucket", lambda s3: s3.environment(), "no such bucket"),
        ("archive", lambda s3: {**s3.environment(), "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "does not answer"),
    ],
)
def test_a_broker_whose_archive_cannot_be_used_serves_and_says_why(s3, tmp_path, bucket, environment, reason):
    env = environment(s3)
    url = f"s3://{bucket}/refused/{next(_prefixes)}"
    server = Server(str(tmp_path / "data"), f"archive.url={url}", env=env)
    assert server.call("POST", "/v1/topics", {"name": "t"}).status in (200, 201)
    until_now(lambda: server.call("GET", "/v1/readyz").json()["archive"]["state"] == "failing", 30)
    reply = server.call("GET", "/v1/readyz")
    assert reply.status == 200
    assert reason in reply.json()["warnings"][0]
    assert 'driftq_archive_up{state="failing"} 1' in server.call("GET", "/v1/metrics").body.decode()
    server.stop(40)
    assert any(reason in line for line in server.lines)
    refused = driftq(
        "serve", "--data", str(tmp_path / "data"), "--archive", url, "--set", "archive.mode=sync", "--set",
        "listen.port=0", env=env,
    )  # fmt: skip
    assert refused.returncode == 69
    assert reason in refused.stderr


def test_a_prefix_of_a_bucket_has_one_writer_and_one_store(s3, tmp_path):
    env = s3.environment()
    setting = f"archive.url=s3://archive/one-writer/{next(_prefixes)}"
    with running(str(tmp_path / "one"), setting, env=env) as first:
        first.call("POST", "/v1/topics", {"name": "t"})
        wait_shipped(first)
        shutil.copytree(tmp_path / "one", tmp_path / "copy", ignore=shutil.ignore_patterns("LOCK"))
        refusals = (
            ("copy", "waiting", "another broker writes to"),
            ("other", "failing", "the archive of another store"),
        )
        for folder, state, reason in refusals:
            with running(str(tmp_path / folder), setting, env=env) as second:
                until_now(lambda: archive_of(second)["state"] == state, 30)  # noqa: B023
                reply = second.call("GET", "/v1/readyz")
                assert reply.status == 200
                assert reason in reply.json()["warnings"][0]
                assert f'driftq_archive_up{{state="{state}"}} 1' in second.call("GET", "/v1/metrics").body.decode()
                assert second.call("POST", "/v1/topics", {"name": "mine"}).status in (200, 201)
            assert any(reason in line for line in second.lines)
        assert archive_of(first)["state"] == "shipping"


def test_segments_that_are_only_in_a_bucket_are_read_from_there(s3, tmp_path):
    url = f"archive.url=s3://archive/tiers/{next(_prefixes)}"
    read = "/v1/topics/orders/partitions/0/messages?offset=0&limit=100"
    with running(str(tmp_path / "data"), url, LOCAL, *SMALL_FILES, env=s3.environment()) as server:
        server.call("POST", "/v1/topics", {"name": "orders", "partitions": 1})
        fill(server, "orders", 100)
        move(server, 200_000)
        values = [message["value"] for message in server.call("GET", read).json()["messages"]]
        assert values == [f"{number} {VALUE}" for number in range(100)]
        assert tiers_of(server)["downloads"] > 0
    with running(str(tmp_path / "data"), url, *SMALL_FILES, env=s3.environment("unknown", "wrong")) as refused:
        old = refused.call("GET", read.replace("offset=0", "offset=60"))
        assert old.status == 503
        assert "refused the credentials" in old.json()["message"]
        assert refused.call("POST", "/v1/produce", {"topic": "orders", "value": "new"}).status == 200
