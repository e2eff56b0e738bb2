"""Workers of a real broker: results of handlers, leases kept and lost, time limits, and a clean stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

import driftq
from driftq.client.transport.async_transport import AsyncTransport
from tests.support.server import Server
from tests.support.wait import until, until_now


@pytest.fixture
def topic(broker, request):
    name = request.node.name[:200].replace("[", ".").replace("]", "")
    broker.topics.create(name)
    return name


def test_a_decorated_function_stays_a_function(topic):
    @driftq.worker(topic, group="g")
    def double(number):
        """Twice."""
        return 2 * number

    @driftq.worker(topic, group="g")
    async def triple(number):
        return 3 * number

    assert double(4) == 8
    assert double.__doc__ == "Twice."
    assert asyncio.run(triple(4)) == 12


@pytest.mark.parametrize("is_async", [False, True])
def test_each_result_of_a_handler_settles_its_message(broker, topic, is_async):
    for what in ["return", "raise", "retry", "reject", "release", "acked"]:
        broker.send(topic, what)
    seen: list[tuple[str, int]] = []

    def end(message) -> None:
        seen.append((message.text, message.attempts))
        match message.text:
            case "raise" if message.attempts == 1:
                raise ValueError("boom")
            case "retry" if message.attempts == 1:
                raise driftq.Retry(after_ms=1, reason="later")
            case "reject":
                raise driftq.Reject("never")
            case "release" if seen.count(("release", 1)) == 1:
                raise driftq.Release

    if is_async:

        async def handle(message):
            end(message)
            if message.text == "acked":
                await message.ack()
    else:

        def handle(message):
            end(message)
            if message.text == "acked":
                message.ack()

    work = driftq.worker(topic, group="g", concurrency=2)(handle)
    total = {"acked": 0, "failed": 0, "rejected": 0, "released": 0}

    def drained() -> bool:
        counts = work.run(broker, drain=True)
        for name in total:
            total[name] += getattr(counts, name)
        return broker.groups.describe(topic, "g").lag == 0

    until_now(drained, 20)
    assert total == {"acked": 5, "failed": 2, "rejected": 1, "released": 1}
    assert seen.count(("release", 1)) == 2, "a release counts no attempt"
    assert ("raise", 2) in seen
    (letter,) = broker.dead_letters.list(topic)
    assert letter.value == "reject"


def test_leases_are_kept_alive_while_the_work_takes_longer(broker, topic):
    for number in range(6):
        broker.send(topic, str(number))
    calls: list[str] = []

    @driftq.worker(topic, group="g", concurrency=3, prefetch=3, lease_ms=300)
    async def slow(message):
        calls.append(message.text)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 1.0)

    counts = slow.run(broker, drain=True)
    assert (counts.acked, counts.lost) == (6, 0)
    assert sorted(calls) == list("012345"), "nothing was delivered twice"


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("concurrency", [1, 8])
def test_a_busy_worker_makes_one_call_for_many_messages(broker, topic, is_async, concurrency, monkeypatch):
    """Acks travel with claims, and claims take more while the calls are quick."""
    broker.send_many(topic, [str(number) for number in range(2_000)])
    calls: list[str] = []
    execute = AsyncTransport.execute

    async def counted(self, call, *options):
        calls.append(getattr(call, "path", "claim"))
        return await execute(self, call, *options)

    monkeypatch.setattr(AsyncTransport, "execute", counted)
    seen: list[str] = []
    if is_async:

        async def handle(message):
            seen.append(message.text)
    else:

        def handle(message):
            seen.append(message.text)

    counts = driftq.worker(topic, group="g", concurrency=concurrency)(handle).run(broker, drain=True)
    assert counts.acked == 2_000
    assert sorted(seen, key=int) == [str(number) for number in range(2_000)]
    assert concurrency > 1 or seen == sorted(seen, key=int), "one call at a time keeps the order"
    assert len(calls) < 2_000 / (8 if concurrency == 1 else 16)


def test_a_worker_whose_calls_turn_slow_gives_back_what_waits(broker, topic):
    """Many messages wait in a worker of quick calls. If one of them blocks, the others go to another worker."""
    broker.send_many(topic, ["quick"] * 4_000 + ["slow"] * 400)
    broker.claim(topic, "g", max=1, lease_ms=100)  # the group begins here
    is_blocked, release = threading.Event(), threading.Event()
    slow_elsewhere: list[str] = []

    @driftq.worker(topic, group="g", concurrency=2)
    def first(message):
        if message.text == "slow":
            is_blocked.set()
            release.wait(30)

    async def both() -> None:
        stop = asyncio.Event()
        running = asyncio.create_task(first.run_async(broker, stop=stop))
        await asyncio.to_thread(is_blocked.wait, 30)

        @driftq.worker(topic, group="g", concurrency=2)
        async def second(message):
            slow_elsewhere.append(message.text)
            if len(slow_elsewhere) >= 396:  # all but what the first one runs, and as many that wait there
                stop.set()

        async with asyncio.timeout(30):
            await second.run_async(broker, stop=stop)
        release.set()
        await running

    asyncio.run(both())
    assert len(slow_elsewhere) >= 396


@pytest.mark.parametrize("is_async", [False, True])
def test_a_cancelled_job_is_stopped_at_the_next_heartbeat(broker, topic, is_async):
    broker.send(topic, "x", id="job")
    began, ended = threading.Event(), threading.Event()

    if is_async:

        async def handle(message):
            began.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ended.set()
                raise
    else:

        def handle(message):
            began.set()
            until_now(lambda: message.lost, 20)
            ended.set()

    work = driftq.worker(topic, group="g", lease_ms=300)(handle)

    def cancel() -> None:
        began.wait(20)
        broker.jobs.cancel(topic, "job")

    thread = threading.Thread(target=cancel)
    thread.start()
    counts = work.run(broker, drain=True)
    thread.join()
    assert ended.wait(20)
    assert (counts.acked, counts.lost) == (0, 1)


def test_a_handler_that_times_out_is_cancelled_and_retried(broker, topic):
    broker.send(topic, "x")
    attempts: list[int] = []

    @driftq.worker(topic, group="g", timeout_ms=200)
    async def stuck(message):
        attempts.append(message.attempts)
        if message.attempts == 1:
            await asyncio.Event().wait()
        assert message.last_error.startswith("timeout")

    def done() -> bool:
        stuck.run(broker, drain=True)
        return broker.groups.describe(topic, "g").lag == 0

    until_now(done, 20)
    assert attempts == [1, 2]


def test_the_result_of_a_thread_that_timed_out_is_ignored(broker, topic):
    broker.send(topic, "x")
    again = threading.Event()

    @driftq.worker(topic, group="g", timeout_ms=200, concurrency=2)
    def stuck(message):
        if message.attempts == 1:
            until_now(lambda: message.lost, 20)
            return
        again.set()

    def done() -> bool:
        stuck.run(broker, drain=True)
        return broker.groups.describe(topic, "g").lag == 0

    until_now(done, 20)
    assert again.is_set()


def test_a_task_carries_its_arguments_and_refuses_wrong_ones(broker, topic):
    sent: list[tuple[str, int]] = []

    @driftq.task("email.send.v1", topic=topic)
    def send_email(to: str, copies: int = 1) -> None:
        sent.append((to, copies))

    send_email.enqueue(broker, "ann@example.org")
    send_email.options_for(id="mail-2", priority=5).enqueue(broker, to="bob@example.org", copies=2)
    send_email.options_for(id="mail-2").enqueue(broker, to="bob@example.org", copies=2)  # the same job
    with pytest.raises(TypeError):
        send_email.enqueue(broker, "ann", "bob", "too many")
    broker.send(topic, {"to": 7}, task="email.send.v1")
    broker.send(topic, {"other": 1}, task="another.task.v1")
    counts = send_email.run(broker, drain=True)
    assert sent == [("bob@example.org", 2), ("ann@example.org", 1)]
    assert (counts.acked, counts.rejected) == (2, 1)
    group = broker.groups.describe(topic, "workers")
    assert (group.lag, group.unclaimed) == (0, 1), (
        "the other task waits for its own worker, and is no lag of this group"
    )
    send_email("direct", 3)
    assert sent[-1] == ("direct", 3)


def test_a_worker_without_a_topic_fails_at_once(broker):
    @driftq.worker("nowhere", group="g")
    def work(message): ...

    with pytest.raises(driftq.errors.NotFound):
        work.run(broker)


def test_a_stopped_worker_finishes_what_runs_and_releases_what_waits(broker, topic, server):
    for number in range(20):
        broker.send(topic, str(number))

    async def work_until_stopped() -> tuple[list[str], object]:
        stop = asyncio.Event()
        release = asyncio.Event()
        ran: list[str] = []

        @driftq.worker(topic, group="g", concurrency=2, prefetch=6)
        async def handle(message):
            ran.append(message.text)
            await release.wait()

        running_worker = asyncio.create_task(handle.run_async(broker, stop=stop))

        async def both_run() -> bool:
            return len(ran) == 2

        await until(both_run, 20)
        stop.set()
        await asyncio.sleep(0)
        release.set()
        return ran, await running_worker

    ran, counts = asyncio.run(work_until_stopped())
    assert len(ran) == 2
    assert (counts.acked, counts.lost) == (2, 0)
    group = broker.groups.describe(topic, "g")
    assert (group.lag, group.in_flight) == (18, 0)


def test_sigterm_stops_a_worker_process_cleanly(broker, topic, server, tmp_path):
    program = f"""
        import os, time, driftq
        @driftq.worker({topic!r}, group="g", concurrency=2)
        def work(message):
            os.write(1, f"began {{message.text}}\\n".encode())  # whole lines, though two threads write them
            time.sleep(0.5)
            os.write(1, f"ended {{message.text}}\\n".encode())
        print(work.run("http://127.0.0.1:{server.port}"), flush=True)
    """
    for number in range(6):
        broker.send(topic, str(number))
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert process.stdout is not None
    first = process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    rest = process.stdout.read()  # until it ends
    process.stdout.close()
    process.wait(30)
    lines = [first, *rest.splitlines(keepends=True)]
    began = [line.split()[1] for line in lines if line.startswith("began")]
    ended = [line.split()[1] for line in lines if line.startswith("ended")]
    assert process.returncode == 0
    assert sorted(began) == sorted(ended), "every started handler has finished"
    group = broker.groups.describe(topic, "g")
    assert (group.lag, group.in_flight) == (6 - len(ended), 0)


def test_a_worker_survives_a_restart_of_the_broker(tmp_path):
    server = Server(str(tmp_path))
    port = server.port
    with driftq.connect(f"http://127.0.0.1:{port}") as broker:
        broker.topics.create("t")
        seen: list[str] = []

        async def work() -> None:
            nonlocal server
            stop = asyncio.Event()

            @driftq.worker("t", group="g", concurrency=2, lease_ms=1_000)
            async def handle(message):
                seen.append(message.text)

            task = asyncio.create_task(handle.run_async(f"http://127.0.0.1:{port}", stop=stop))
            await asyncio.to_thread(broker.send, "t", "before")

            async def saw(text: str) -> bool:
                return text in seen

            await until(lambda: saw("before"), 20)
            server.kill()
            server = await asyncio.to_thread(Server, str(tmp_path), port=port)
            await asyncio.to_thread(broker.send, "t", "after", idempotency_key="k")
            await until(lambda: saw("after"), 30)
            stop.set()
            await task

        asyncio.run(work())
        assert broker.groups.describe("t", "g").lag == 0
    server.stop()


def test_a_time_limit_holds_while_the_broker_is_away():
    """The renewal of leases waits for the broker for up to half a minute; the checks of time limits do not."""
    server = Server(None)
    ended = threading.Event()

    @driftq.worker("orders", group="g", lease_ms=900, timeout_ms=1_500)
    async def work(message):
        os.kill(server.process.pid, signal.SIGSTOP)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.set()
            raise

    async def run() -> None:
        async with driftq.connect_async(server.url) as client:
            await client.topics.create("orders")
            await client.send("orders", "x")
            stop = asyncio.Event()
            running = asyncio.create_task(work.run_async(client, stop=stop))

            async def has_ended() -> bool:
                return ended.is_set()

            await until(has_ended, 8.0)
            os.kill(server.process.pid, signal.SIGCONT)
            stop.set()
            await running

    try:
        asyncio.run(run())
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
        server.stop()
