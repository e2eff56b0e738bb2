"""Hooks and middleware of workers: their order, what they see, what their errors do; current message and context."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
import time

import pytest

import driftq
from driftq.middleware import Capture, Logging, TimeLimit, TimeLimitExceeded, Timing, describe
from driftq.testing import MemoryBroker, memory_broker

ONCE = driftq.RetryPolicy(max_attempts=1)
both = pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])


@pytest.fixture(scope="module")
def memory():
    with memory_broker() as broker:
        yield broker


@pytest.fixture
def topic(memory, request):
    name = request.node.name[:200].replace("[", ".").replace("]", "")
    memory.topics.create(name)
    return name


def handler(is_async: bool, function):
    """The function, or an async one that does the same."""
    if not is_async:
        return function

    async def handle(message):
        return function(message)

    return handle


def act(message) -> str:
    """Does what the message says."""
    match message.text:
        case "fail":
            raise ValueError("boom")
        case "release" if message.attempts == 1 and message.last_error == "":
            raise driftq.Release(after_ms=60_000)
        case "reject":
            raise driftq.Reject("never")
    return f"did {message.text}"


class Recorder(driftq.Middleware):
    """Writes down every hook."""

    def __init__(self, name: str, seen: list[str]) -> None:
        self.name, self.seen = name, seen

    def startup(self, context):
        self.seen.append(f"{self.name} startup")
        context[self.name] = f"value of {self.name}"

    async def shutdown(self, context):
        self.seen.append(f"{self.name} shutdown")

    @contextlib.contextmanager
    def around(self, message):
        self.seen.append(f"{self.name} enters {message.text}")
        try:
            yield
        finally:
            self.seen.append(f"{self.name} leaves {message.text}")

    async def before(self, message):
        self.seen.append(f"{self.name} before {message.text}")

    def after(self, message, result):
        self.seen.append(f"{self.name} after {message.text}: {result}")

    def on_failure(self, message, error):
        self.seen.append(f"{self.name} failure {message.text}: {error!r}")

    def on_dead(self, message, reason):
        self.seen.append(f"{self.name} dead {message.text}: {reason}")


@both
def test_hooks_run_around_each_attempt_the_first_outermost(memory: MemoryBroker, topic, is_async):
    seen: list[str] = []
    shared = Recorder("a", seen)
    work = driftq.worker(topic, group="g", middleware=[shared, Recorder("b", seen)])(handler(is_async, act))
    memory.send(topic, "good")
    memory.drain(work)
    assert seen == [
        "a startup", "b startup",
        "a enters good", "a before good", "b enters good", "b before good",
        "b after good: did good", "b leaves good", "a after good: did good", "a leaves good",
        "b shutdown", "a shutdown",
    ]  # fmt: skip


@both
def test_failures_dead_letters_and_releases_reach_their_hooks(memory: MemoryBroker, topic, is_async):
    seen: list[str] = []
    work = driftq.worker(topic, group="g", middleware=[Recorder("a", seen)])(handler(is_async, act))
    memory.send(topic, "fail", retry=driftq.RetryPolicy(max_attempts=2, backoff_ms=1_000))
    memory.send(topic, "release")
    memory.send(topic, "reject")
    memory.drain(work)
    ends = [line for line in seen if "failure" in line or "dead" in line]
    assert sorted(ends) == [
        "a dead reject: never",
        "a failure fail: ValueError('boom')",
        "a failure reject: Reject('never')",
    ], "a release is no failure, and the first of two attempts kills nothing"
    seen.clear()
    memory.advance(1_000)
    memory.drain(work)
    assert [line for line in seen if "failure" in line or "dead" in line] == [
        "a failure fail: ValueError('boom')",
        "a dead fail: ValueError: boom",
    ]


@both
def test_an_error_before_ends_the_attempt_and_an_error_after_is_logged(memory: MemoryBroker, topic, is_async, caplog):
    hooks = driftq.Hooks()
    called: list[str] = []

    @hooks.before
    def guard(message):
        if message.text == "guarded":
            raise driftq.Reject("not allowed")

    @hooks.after
    async def break_late(message, result):
        raise OSError("too late")

    work = driftq.worker(topic, group="g", middleware=[hooks])(
        handler(is_async, lambda message: called.append(message.text))
    )
    memory.send(topic, "guarded")
    memory.send(topic, "open")
    with caplog.at_level(logging.ERROR, "driftq.worker"):
        counts = memory.drain(work)[0]
    assert called == ["open"]
    assert (counts.acked, counts.rejected) == (1, 1)
    assert "break_late failed" in caplog.text
    (letter,) = memory.dead_letters.list(topic)
    assert letter.dlq.last_error == "not allowed"


@both
def test_a_task_sees_its_message_and_the_context_of_its_process(memory: MemoryBroker, topic, is_async):
    hooks = driftq.Hooks()
    seen: list[tuple[str, int, str, int]] = []

    @hooks.startup
    async def open_database(context):
        context["database"] = "a connection"

    def note(to: str) -> None:
        message = driftq.current_message()
        assert isinstance(message, driftq.AsyncMessage if is_async else driftq.Message)
        seen.append((to, message.attempts, driftq.current_context()["database"], message.offset))

    async def note_async(to: str) -> None:
        await asyncio.gather(asyncio.to_thread(note, to))  # also in what the task starts

    task = driftq.task("note.v1", topic=topic, concurrency=3, middleware=[hooks])(note_async if is_async else note)
    for number in range(6):
        task.enqueue(memory, f"user {number}")
    memory.drain(task)
    assert sorted(seen) == [(f"user {number}", 1, "a connection", number) for number in range(6)]


def test_outside_of_a_worker_there_is_no_message_and_no_context():
    with pytest.raises(driftq.errors.InvalidCall, match="no current message"):
        driftq.current_message()
    with pytest.raises(driftq.errors.InvalidCall, match="no context"):
        driftq.current_context()


def test_a_failed_startup_ends_the_run_and_shuts_down_what_was_started(memory: MemoryBroker, topic):
    seen: list[str] = []
    hooks = driftq.Hooks()

    @hooks.startup
    def fail(context):
        raise ConnectionError("no database")

    @driftq.worker(topic, group="g", middleware=[Recorder("a", seen), hooks, Recorder("b", seen)])
    def work(message): ...

    with pytest.raises(ConnectionError, match="no database"):
        memory.drain(work)
    assert seen == ["a startup", "a shutdown"]


def test_middleware_of_a_run_is_around_that_of_its_workers_and_starts_once(memory: MemoryBroker, topic):
    seen: list[str] = []
    shared = Recorder("run", seen)
    own = Recorder("own", seen)
    first = driftq.worker(topic, group="g", middleware=[own])(act)
    second = driftq.worker(topic, group="h", middleware=[own])(act)
    memory.send(topic, "x")
    driftq.run(first, second, broker=memory, drain=True, middleware=[shared])
    assert [line for line in seen if "startup" in line or "shutdown" in line] == [
        "run startup", "own startup", "own shutdown", "run shutdown",
    ]  # fmt: skip
    assert seen.index("run enters x") < seen.index("own enters x")


def test_what_is_no_middleware_is_refused(memory: MemoryBroker, topic):
    @driftq.worker(topic, group="g", middleware=[print])
    def work(message): ...

    with pytest.raises(driftq.errors.InvalidCall, match="is no middleware"):
        memory.drain(work)


def test_a_call_that_times_out_is_a_failure_of_which_hooks_are_notified(memory: MemoryBroker, topic):
    seen: list[str] = []

    @driftq.worker(topic, group="g", timeout_ms=100, middleware=[Recorder("a", seen)])
    async def stuck(message):
        await asyncio.Event().wait()

    memory.send(topic, "x", retry=ONCE)
    memory.drain(stuck)
    assert [line for line in seen if "failure" in line or "dead" in line] == [
        "a failure x: TimeoutError('timeout: longer than 100 ms')",
        "a dead x: timeout: longer than 100 ms",
    ]


# --- the ready ones ---


@both
def test_a_time_limit_is_raised_inside_of_the_handler(memory: MemoryBroker, topic, is_async):
    cleaned: list[str] = []

    async def endless_async(message):
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(message.text)

    def endless(message):
        try:
            while True:
                time.monotonic()  # Python code, which can be interrupted
        finally:
            cleaned.append(message.text)

    work = driftq.worker(topic, group="g", middleware=[TimeLimit(50)])(endless_async if is_async else endless)
    memory.send(topic, "x", retry=ONCE)
    assert memory.drain(work)[0].failed == 1
    assert cleaned == ["x"]
    (letter,) = memory.dead_letters.list(topic)
    assert letter.dlq.last_error == "TimeLimitExceeded: longer than 50 ms"


@both
def test_a_time_limit_leaves_quick_handlers_alone(memory: MemoryBroker, topic, is_async):
    work = driftq.worker(topic, group="g", concurrency=4, middleware=[TimeLimit(20_000)])(handler(is_async, act))
    for _ in range(50):
        memory.send(topic, "good")
    assert memory.drain(work)[0].acked == 50


def test_a_limit_that_comes_too_late_is_not_raised_afterwards():
    """The error is on its way to the thread when the handler returns."""
    limit = TimeLimit(1)
    message = object.__new__(driftq.Message)
    ends: list[str] = []

    def attempt() -> None:
        for _ in range(300):
            try:
                with limit.around(message):
                    deadline_s = time.monotonic() + 0.001
                    while time.monotonic() < deadline_s:
                        pass
                ends.append("returned")
            except TimeLimitExceeded:
                ends.append("limited")

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join(60)
    assert len(ends) == 300, "no error got out of its attempt"


@both
def test_logging_writes_a_line_for_each_attempt_and_timing_measures_it(memory: MemoryBroker, topic, is_async, caplog):
    times: list[tuple[str, str]] = []
    middleware = [Logging(), Timing(lambda name, seconds, end: times.append((name, end)))]
    work = driftq.worker(topic, group="g", middleware=middleware)(handler(is_async, act))
    memory.send(topic, "good", task="good.v1", id="job-7")
    memory.send(topic, "fail", retry=ONCE)
    memory.send(topic, "release")
    with caplog.at_level(logging.INFO, "driftq.attempts"):
        memory.drain(work)
    lines = [record for record in caplog.records if record.name == "driftq.attempts"]
    fields = {record.getMessage().partition(" ")[2]: record.fields for record in lines}
    assert sorted(fields) == ["became a dead letter", "done", "failed", "released"]
    assert (fields["done"]["task"], fields["done"]["job"], fields["done"]["attempt"]) == ("good.v1", "job-7", 1)
    assert fields["failed"]["error"] == "ValueError('boom')"
    assert json.dumps(fields), "plain values"
    assert sorted(times) == sorted([("good.v1", "done"), (topic, "failed"), (topic, "released")])


def test_slow_attempts_are_logged_without_an_observer(memory: MemoryBroker, topic, caplog):
    work = driftq.worker(topic, group="g", middleware=[Timing(slow_ms=0)])(act)
    memory.send(topic, "good")
    with caplog.at_level(logging.WARNING, "driftq.timing"):
        memory.drain(work)
    assert f"{topic} took" in caplog.text


def test_capture_reports_unexpected_errors_and_nothing_else(memory: MemoryBroker, topic):
    captured: list[object] = []
    described: list[dict[str, object]] = []

    def report(error: BaseException, context: dict[str, object]) -> None:
        described.append(context)

    middleware = [Capture(captured.append), Capture(report, with_context=True)]
    work = driftq.worker(topic, group="g", middleware=middleware)(act)
    for text in ("good", "fail", "reject", "release"):
        memory.send(topic, text, retry=ONCE)
    memory.drain(work)
    assert [repr(error) for error in captured] == ["ValueError('boom')"]
    assert [(context["topic"], context["offset"]) for context in described] == [(topic, 1)]


def test_a_description_has_no_payload(memory: MemoryBroker, topic):
    memory.send(topic, "secret", task="t", id="j")
    (message,) = memory.claim(topic, "g")
    assert describe(message) == {
        "topic": topic, "partition": 0, "offset": 0, "group": "g", "attempt": 1, "task": "t", "job": "j",
    }  # fmt: skip


def test_a_handler_whose_own_task_is_cancelled_fails_and_its_runner_continues(memory: MemoryBroker, topic):
    """A CancelledError that no abort caused ended the runner, and with it a slot of the worker."""
    handled: list[str] = []

    @driftq.worker(topic, group="g", concurrency=1)
    async def work(message):
        if message.text == "cancelled":
            future = asyncio.get_running_loop().create_future()
            future.cancel()
            await future
        handled.append(message.text)

    memory.send(topic, "cancelled", retry=ONCE)
    memory.send(topic, "next")
    counts = memory.drain(work)[0]
    assert handled == ["next"]
    assert (counts.acked, counts.failed) == (1, 1)


def test_the_runner_uses_the_middleware_of_a_module(broker, server, tmp_path):
    from tests.e2e.test_worker_command import command

    broker.topics.create("jobs")
    broker.send("jobs", {}, task="work.v1")
    app = """
        import os, driftq
        hooks = driftq.Hooks()
        @hooks.startup
        def begin(context):
            context["greeting"] = "hello"
        @hooks.shutdown
        def end(context):
            os.write(1, b"bye 0\\n")
        middleware = [hooks]
        @driftq.task("work.v1", topic="jobs")
        def work():
            os.write(1, f"{driftq.current_context()['greeting']} {driftq.current_message().task}\\n".encode())
    """
    with command(tmp_path, server.url, "app", "--burst", app=app) as run:
        assert run.process.wait(60) == 0
    assert run.lines == ["hello", "bye"]
    wrong = app.replace("[hooks]", "[hooks, print]")  # of another size, or Python may take the compiled file
    with command(tmp_path, server.url, "app", "--burst", app=wrong) as run:
        assert run.process.wait(60) == 2
    assert "app.middleware must be a list of driftq.Middleware" in run.log
