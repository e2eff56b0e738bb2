"""Job batches with the client: chains and groups with real workers, a worker that is killed at each step, and a broker
that is killed in the middle of a fan-in."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import driftq
from driftq.cli.exit_codes import Exit
from driftq.cli.main import main
from driftq.client.errors import Conflict, InvalidCall, JobCancelled, JobFailed, ResultTimeout
from driftq.testing import MemoryBroker
from driftq.wire.job_batches import JobBatchItem
from tests.support.server import running

WAIT_S = 20
ONCE = driftq.RetryPolicy(max_attempts=1)
ended: list[Any] = []  # what the tasks at the end of batches got


@driftq.task("double.v1", topic="numbers", retry=ONCE)
def double(number: int) -> int:
    if number < 0:
        raise ValueError(f"{number} is negative")
    return 2 * number


@driftq.task("add.v1", topic="numbers", retry=ONCE)
async def add(left: int, right: int = 100) -> int:
    return left + right


@driftq.task("total.v1", topic="totals", retry=ONCE)
async def total(numbers: list[int | None], name: str = "") -> int:
    part = driftq.current_message().job_batch
    assert part is not None
    ended.append((name, numbers, part.role, part.state))
    return sum(number or 0 for number in numbers)


TASKS = (double, add, total)


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    ended.clear()
    with MemoryBroker() as memory:
        memory.topics.create("numbers")
        memory.topics.create("totals")
        yield memory


def work(broker: driftq.DriftQ, rounds: int = 6) -> None:
    for _ in range(rounds):
        for task in TASKS:
            task.run(broker, drain=True)


def test_map_collects_the_results_in_order_and_hands_them_to_the_end(broker):
    handle = double.map(range(5), on_success=total.call(name="sum"), on_failure=total.call(name="bad")).enqueue(broker)
    with pytest.raises(ResultTimeout, match="it is running"):
        handle.result(timeout=0)
    work(broker)
    assert handle.result(timeout=WAIT_S) == [0, 2, 4, 6, 8]
    assert ended == [("sum", [0, 2, 4, 6, 8], "on_success", "succeeded")]
    assert broker.job_batches.handle(handle.id).result() == [0, 2, 4, 6, 8]


def test_a_chain_passes_results_on_also_those_of_a_group(broker):
    fan = driftq.group(add.call(right=1), driftq.chain(double.call(), add.call(right=3)))
    steps = driftq.chain(double.call(5), fan, total.call(name="all"))
    handle = steps.enqueue(broker)
    work(broker)
    assert handle.result(timeout=WAIT_S) == 11 + 23
    assert ended == [("all", [11, 23], "member", "")]
    assert driftq.group(double.call(1), steps).parts[1] is steps


def test_a_failure_ends_a_chain_and_is_raised(broker):
    steps = driftq.chain(double.call(-1), add.call(), on_complete=total.call(name="end"))
    handle = steps.enqueue(broker)
    work(broker)
    with pytest.raises(JobFailed, match="-1 is negative"):
        handle.result(timeout=WAIT_S)
    info = handle.wait()
    assert (info.state, info.counts.failed, info.counts.cancelled) == ("failed", 1, 1)
    assert broker.job_batches.results(handle.id)[0].error == "ValueError: -1 is negative"


def test_those_that_failed_are_none_for_what_follows(broker):
    handle = double.map([1, -1], on_complete=total.call(name="c"), on_failure=total.call(name="f")).enqueue(broker)
    work(broker)
    assert ended == [("c", [2, None], "on_complete", "failed"), ("f", [2, None], "on_failure", "failed")]
    assert [job.state for job in broker.job_batches.jobs(handle.id, "failed")] == ["failed"]


def test_a_large_group_is_added_in_several_calls_and_can_be_repeated(broker):
    many = double.map(range(1_100), id="many", on_success=total.call())
    first, again = many.enqueue(broker), many.enqueue(broker)
    assert (first.look().count, first.look().state) == (1_100, "running")
    work(broker)
    assert again.result(timeout=WAIT_S) == [2 * number for number in range(1_100)]
    assert len(ended) == 1
    assert [info.id for info in broker.job_batches.list("succeeded")] == ["many"]


def test_cancelling_ends_everything(broker):
    handle = driftq.group(double.call(1), driftq.chain(double.call(1), add.call())).enqueue(broker)
    assert handle.cancel()
    assert handle.wait(WAIT_S).state == "cancelled"
    with pytest.raises(JobCancelled):
        handle.result()
    assert not handle.cancel()


def test_calls_that_cannot_be_made_are_refused_before_anything_is_sent(broker):
    for wrong in (driftq.group(double.call()), driftq.group(driftq.chain(double.call(), add.call()))):
        with pytest.raises(InvalidCall, match="leaves number open"):
            wrong.enqueue(broker)
    with pytest.raises(InvalidCall, match=r"<Task total\.v1> is no call of a task"):
        double.map([1], on_success=total)  # type: ignore[arg-type]
    with pytest.raises(InvalidCall, match="no call of a task"):
        driftq.group(double)
    with pytest.raises(InvalidCall, match="nothing to do"):
        driftq.group().enqueue(broker)
    with pytest.raises(TypeError):
        double.call(1, 2)
    assert not broker.job_batches.list()


def test_batches_without_tasks(broker):
    make = broker.job_batches
    jobs = [make.job("x"), make.job({"y": 1}, topic="totals", id="mine")]
    change = make.create(jobs, id="plain", topic="numbers", sealed=False, on_complete=make.job("end", topic="totals"))
    assert (change.count, change.sealed, change.changed) == (2, False, True)
    with pytest.raises(Conflict):
        make.create(jobs, id="plain", topic="totals")
    assert make.add("plain", [make.nested(JobBatchItem())], first=2, seal=True)
    for topic in ("numbers", "totals"):
        for message in broker.claim(topic, group="workers", max=10):
            message.ack()
    assert make.describe("plain", wait_ms=1_000).state == "succeeded"
    assert [message.text for message in broker.claim("totals", group="workers")] == ["end"]


def test_they_are_listed_shown_awaited_and_cancelled_on_the_command_line(broker):
    def run(*arguments: str, code: Exit = Exit.OK) -> str:
        result = CliRunner().invoke(main, ["--url", broker.url, "job-batches", *arguments])
        assert result.exit_code == code, result.output
        return result.stdout if code is Exit.OK else result.stderr

    make = broker.job_batches
    make.create([make.job("a"), make.job("b")], id="b7", topic="numbers", on_complete=make.job("end"))
    row = run("list").splitlines()[1].split()
    assert row[:5] == ["b7", "group", "running", "0/2", "0"]
    assert "has not ended yet" in run("wait", "b7", "--for", "10ms", code=Exit.IN_USE)
    first, second = broker.claim("numbers", group="workers", max=2)
    first.ack(result=[1])
    second.reject("bad")
    assert "has ended as failed" in run("wait", "b7", code=Exit.REFUSED)
    assert json.loads(run("show", "b7", "--state", "failed", "--json"))["jobs"][0]["error"] == "bad"
    assert "1 succeeded, 1 failed" in run("show", "b7")
    assert "on_complete: numbers 0:2" in run("show", "b7")
    assert run("results", "b7") == "[1]\n\n"
    assert "already ended" in run("cancel", "b7", code=Exit.REFUSED)
    make.create([make.job("a")], id="b8", topic="numbers")
    assert json.loads(run("cancel", "b8", "--json")) == {"id": "b8", "cancelled": True}
    assert "no job batch none" in run("show", "none", code=Exit.NOTHING_THERE)


def test_an_async_caller_is_woken_by_the_last_ack(broker):
    async def call() -> tuple[Any, Any]:
        async with driftq.connect_async(broker.url) as client:
            handle = await double.map([1, 2]).enqueue(client)
            waiting = asyncio.ensure_future(handle.result(timeout=WAIT_S))
            await double.run_async(client, drain=True)
            return await waiting, (await handle.look()).state

    assert asyncio.run(call()) == ([2, 4], "succeeded")


# --- with processes that are killed ---

WORKER = """
import os, signal, sys
import driftq

STEP, MARK = sys.argv[2], sys.argv[3]

def die_once(step):
    if step == STEP and not os.path.exists(MARK):
        open(MARK, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)

@driftq.task("fetch.v1", topic="work", lease_ms=1000)
def fetch(number: int) -> int:
    die_once(f"fetch {number}")
    return number * 10

@driftq.task("sum.v1", topic="work", lease_ms=1000)
def sum_up(numbers: list[int]) -> int:
    die_once("sum")
    return sum(numbers)

@driftq.task("note.v1", topic="ended", lease_ms=1000)
def note(value: object) -> object:
    die_once("note")
    return value

if __name__ == "__main__":
    driftq.run(fetch, sum_up, note, broker=sys.argv[1])
"""


@pytest.fixture
def tasks(tmp_path: Path) -> Any:
    path = tmp_path / "killed_tasks.py"
    path.write_text(WORKER)
    space: dict[str, Any] = {"__name__": "killed_tasks"}
    arguments, sys.argv = sys.argv, ["", "", "", ""]
    try:
        exec(compile(path.read_text(), str(path), "exec"), space)
    finally:
        sys.argv = arguments
    return path, space


class Workers:
    """A process that runs the tasks, and another one whenever it was killed."""

    def __init__(self, path: Path, url: str, step: str, mark: Path) -> None:
        self._command = [sys.executable, str(path), url, step, str(mark)]
        self._process = subprocess.Popen(self._command, stderr=subprocess.DEVNULL)
        self._stopped = threading.Event()
        self.deaths = 0
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while self._process.wait() == -signal.SIGKILL and not self._stopped.is_set():
            self.deaths += 1
            self._process = subprocess.Popen(self._command, stderr=subprocess.DEVNULL)

    def stop(self) -> None:
        self._stopped.set()
        self._process.kill()
        self._thread.join()


def start(broker: driftq.DriftQ, space: dict[str, Any], id: str) -> Any:
    fetch, sum_up, note = space["fetch"], space["sum_up"], space["note"]
    numbers = fetch.map([1, 2, 3])
    return driftq.chain(numbers, sum_up.call(), id=id, on_success=note.call()).enqueue(broker)


def check_ended(broker: driftq.DriftQ, handle: Any) -> None:
    """The worker that was killed held a lease of a second; then the job is delivered again."""
    assert handle.result(timeout=60) == 60
    (message,) = handle.look().messages
    note = broker.jobs.handle("ended", f"{handle.id}.on_success", group="workers")
    assert (message.role, note.result(timeout=60)) == ("on_success", 60)
    assert broker.topics.offsets("ended").partitions[0].end == 1, "the end was produced once"


@pytest.mark.parametrize("step", ["fetch 2", "sum", "note"])
def test_a_worker_that_is_killed_at_a_step_loses_and_doubles_nothing(tmp_path, tasks, step):
    path, space = tasks
    with running(str(tmp_path / "data")) as server, driftq.connect(server.url) as broker:
        broker.topics.create("work")
        broker.topics.create("ended")
        workers = Workers(path, server.url, step, tmp_path / "mark")
        try:
            check_ended(broker, start(broker, space, "steps"))
            assert workers.deaths == 1
        finally:
            workers.stop()


def test_a_broker_that_is_killed_in_a_fan_in_ends_it_once(tmp_path, tasks):
    path, space = tasks
    with running(str(tmp_path / "data")) as server:
        with driftq.connect(server.url) as broker:
            broker.topics.create("work")
            broker.topics.create("ended")
            handle = start(broker, space, "steps")
            for message in broker.claim("work", group="workers", max=2):
                message.ack(result=10)
            assert broker.job_batches.describe("steps.0").counts.succeeded == 2
        server.kill()
    with running(str(tmp_path / "data")) as server, driftq.connect(server.url) as broker:
        again = start(broker, space, "steps")
        assert again.id == handle.id
        assert broker.job_batches.describe("steps.0").counts.succeeded == 2
        for message in broker.claim("work", group="workers", max=9):
            message.ack(result=40)
        (step,) = broker.claim("work", group="workers", max=9)
        assert step.job_batch.previous_batch == "steps.0"
        step.ack(result=60)
        workers = Workers(path, server.url, "", tmp_path / "mark")
        try:
            check_ended(broker, again)
        finally:
            workers.stop()
