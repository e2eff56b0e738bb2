"""Results and progress of jobs against a real server: stored with the ack, awaited, bounded, and there after a kill."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import driftq
from driftq.client.errors import InvalidCall, JobCancelled, JobFailed, ResultExpired, ResultTimeout, TooLarge
from tests.support.server import Server, running
from tests.support.wait import until_now

WAIT_S = 20


@driftq.task("add.v1", topic="sums", retry=driftq.RetryPolicy(max_attempts=1))
def add(a: int, b: int) -> int:
    if b < 0:
        raise ValueError(f"{b} is negative")
    return a + b


@driftq.task("odd.v1", topic="sums")
def odd(kind: str) -> Any:
    return {"set": {1, 2}, "huge": "x" * 200_000, "object": object(), "none": None}[kind]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running(None) as started:
        with driftq.connect(started.url) as broker:
            broker.topics.create("sums")
        yield started


@pytest.fixture
def broker(server: Server) -> Iterator[driftq.DriftQ]:
    with driftq.connect(server.url) as connected:
        yield connected


def test_a_caller_gets_what_the_worker_returned(broker):
    handle = add.enqueue(broker, 2, 3)
    assert not handle.look().done
    with pytest.raises(ResultTimeout, match="has not ended yet"):
        handle.result(timeout=0.05)
    add.run(broker, drain=True)
    assert handle.result(timeout=WAIT_S) == 5
    assert broker.jobs.handle("sums", handle.id).result() == 5
    assert broker.jobs.result("sums", handle.id, group="workers").result == 5


def test_an_async_caller_that_waits_is_woken_by_the_ack(server):
    async def call() -> int:
        async with driftq.connect_async(server.url) as client:
            handle = await add.enqueue(client, 20, 3)
            waiting = asyncio.ensure_future(handle.result(timeout=WAIT_S))
            await add.run_async(client, drain=True)
            return await waiting

    assert asyncio.run(call()) == 23


def test_a_failed_job_raises_with_the_traceback_of_its_worker(broker):
    handle = add.enqueue(broker, 1, -1)
    add.run(broker, drain=True)
    with pytest.raises(JobFailed, match="ValueError: -1 is negative") as failed:
        handle.result(timeout=WAIT_S)
    assert "in add" in failed.value.traceback
    assert failed.value.traceback.count('File "') == 1, "the frames of the handler, not those of the worker around it"
    assert "test_results.py" in str(failed.value)


def test_a_cancelled_job_has_no_result(broker):
    handle = add.enqueue(broker, 1, 1)
    assert handle.cancel()
    with pytest.raises(JobCancelled):
        handle.result(timeout=WAIT_S)


@pytest.mark.parametrize(("kind", "reason"), [("object", "result is not JSON"), ("huge", "200002 bytes as JSON")])
def test_a_result_that_cannot_be_stored_makes_the_job_a_dead_letter(broker, kind, reason):
    handle = odd.enqueue(broker, kind)
    odd.run(broker, drain=True)
    with pytest.raises(JobFailed, match=reason):
        handle.result(timeout=WAIT_S)
    assert len(handle.look().error) < 2_000


def test_a_task_that_returns_nothing_stores_nothing(broker):
    handle = odd.enqueue(broker, "none")
    odd.run(broker, drain=True)
    assert handle.result(timeout=WAIT_S) is None


def test_progress_is_shown_while_a_job_runs_and_is_gone_afterwards(broker):
    broker.topics.create("films")
    handle = broker.jobs.handle("films", "film-1")
    broker.send("films", "x", id="film-1", task="encode")
    (message,) = broker.claim("films", "workers", lease_ms=60_000)
    message.report({"frames": 120, "of": 900})
    assert handle.look().progress == {"frames": 120, "of": 900}
    (group,) = broker.jobs.find("films", "film-1")["groups"]
    assert group["progress"] == {"frames": 120, "of": 900}
    with pytest.raises(TooLarge, match="at most 4096"):
        message.report("x" * 5_000)
    with pytest.raises(InvalidCall, match="progress is not JSON"):
        message.report(object())
    message.ack(result={"size": 7})
    assert handle.result(timeout=WAIT_S) == {"size": 7}
    assert "progress" not in broker.jobs.find("films", "film-1")["groups"][0]


def test_a_result_is_there_after_a_kill_and_expires(tmp_path: Path):
    with running(str(tmp_path), "jobs.result_ttl_ms=3000") as server, driftq.connect(server.url) as broker:
        broker.topics.create("sums")
        handle = add.enqueue(broker, 4, 4)
        add.run(broker, drain=True)
        assert handle.result(timeout=WAIT_S) == 8
        server.kill()
    with running(str(tmp_path)) as server, driftq.connect(server.url) as broker:
        again = broker.jobs.handle("sums", handle.id, group="workers")
        assert again.look().state == "succeeded"
        # A sweep forgets it. Then a caller gets an error, instead of nothing.
        until_now(lambda: broker.jobs.result("sums", handle.id).expired, WAIT_S)
        with pytest.raises(ResultExpired, match="not kept any more"):
            again.result()
        silent = odd.enqueue(broker, "none")
        odd.run(broker, drain=True)
        assert not silent.look().expired


@pytest.mark.parametrize(
    ("path", "fields", "status", "message"),
    [
        ("ack/batch", {"result": "x" * 70_000}, 200, "at most 65536"),
        ("extend", {"progress": "x" * 5_000}, 413, "at most 4096"),
        ("ack/batch", {"result": 1, "end": 2}, 400, "belongs to one message"),
    ],
)
def test_a_report_that_is_too_large_or_of_many_messages_changes_nothing(server, broker, path, fields, status, message):
    name = f"bad-{path.replace('/', '-')}-{status}"
    broker.topics.create(name)
    broker.send(name, "x", id="j")
    broker.send(name, "y", id="k")
    (claimed, _) = broker.claim(name, "g", max=2, lease_ms=60_000)
    held = {"partition": 0, "offset": claimed.offset, "token": claimed.token} | fields
    reply = server.call("POST", f"/v1/{path}", {"topic": name, "group": "g", "messages": [held]})
    assert (reply.status, message in str(reply.body)) == (status, True), str(reply.body)
    assert not broker.jobs.result(name, "j").done
    claimed.ack(result=[1])
    assert broker.jobs.result(name, "j").result == [1]


@pytest.mark.parametrize("text", ['"\\ud800"', '{"a": 1e999}', '"\\u0000"', "-0.0", '{"a": {"b": [null, true, "é"]}}'])
def test_whatever_json_a_worker_sends_every_reply_stays_readable(server, broker, text):
    if "texts" not in broker.topics.list():
        broker.topics.create("texts")
    broker.send("texts", "x", id=text)
    (claimed,) = broker.claim("texts", "g", lease_ms=60_000)
    held = f'{{"partition": 0, "offset": {claimed.offset}, "token": "{claimed.token}", "result": {text}}}'
    body = f'{{"topic": "texts", "group": "g", "messages": [{held}]}}'
    reply = server.call("POST", "/v1/ack/batch", body.encode(), {"Content-Type": "application/json"})
    assert reply.status in (200, 400), str(reply.body)
    if reply.status == 400:
        claimed.ack()
    assert broker.jobs.result("texts", text).done


@pytest.mark.parametrize("wait", ["-1", "x", "60001"])
def test_an_invalid_wait_is_refused_and_an_unknown_job_is_404(server, wait):
    assert server.call("GET", f"/v1/jobs/sums/none/result?wait_ms={wait}").status == 400
    assert server.call("GET", "/v1/jobs/sums/none/result?wait_ms=1000").status == 404
    assert server.call("GET", "/v1/jobs/nothing/none/result").status == 404


def test_many_callers_that_wait_for_one_job_are_all_woken(broker, server):
    handle = add.enqueue(broker, 6, 6)
    results: list[int] = []
    callers = [threading.Thread(target=lambda: results.append(handle.result(timeout=WAIT_S))) for _ in range(20)]
    for caller in callers:
        caller.start()
    add.run(broker, drain=True)
    for caller in callers:
        caller.join(WAIT_S)
    assert results == [12] * 20
