"""`driftq worker`: supervised processes that are restarted, reloaded, drained and stopped."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from driftq.client.worker.presence import TIMEOUT_MS
from driftq.wire.workers import HEARTBEAT_MS
from tests.support.access import TOKENS, first_token
from tests.support.server import Server
from tests.support.wait import until_now

APP = """
    import os, sys, threading, time
    import driftq

    def say(text):
        os.write(1, f"{text} {os.getpid()}\\n".encode())

    @driftq.task("work.v1", topic="jobs", lease_ms=2_000)
    def work(name: str, seconds: float = 0.0):
        say(f"began {name}")
        time.sleep(seconds)
        say(f"ended {name}")

    @driftq.task("exit.v1", topic="jobs")
    def leave():
        say("leaving")
        sys.exit(0)

    @driftq.worker("orders", group="billing")
    async def charge(message: driftq.AsyncMessage):
        say(f"charged {message.text}")
"""


class Command:
    """A `driftq worker` that runs."""

    def __init__(self, folder: Path, url: str, *arguments: str) -> None:
        self.folder = folder
        self._log, self._printed = folder / "log.txt", folder / "printed.txt"
        env = {**os.environ, "DRIFTQ_URL": url, "PYTHONPATH": os.pathsep.join(sys.path)}
        with self._log.open("w") as log, self._printed.open("w") as printed:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "driftq.cli.main", "worker", *arguments],
                cwd=folder, env=env, stdout=printed, stderr=log,
            )  # fmt: skip

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def lines(self) -> list[str]:
        """What the handlers printed, without process ids."""
        return [line.rpartition(" ")[0] for line in self._printed.read_text().splitlines()]

    def pids(self) -> list[int]:
        """The processes that were started, in order."""
        return [int(pid) for pid in re.findall(r"runs with pid (\d+)", self.log)]

    def wait_for(self, text: str, count: int = 1) -> None:
        """Wait for a line of the log."""
        self.until(lambda: self.log.count(text) >= count, text)

    def until(self, condition: Callable[[], bool], what: str = "") -> None:
        try:
            until_now(condition, 60, pause_s=0.05)
        except AssertionError:
            raise AssertionError(f"{what or condition}: {self.log}\n{self.lines}") from None

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)


@contextlib.contextmanager
def command(folder: Path, url: str, *arguments: str, app: str = APP) -> Iterator[Command]:
    (folder / "app.py").write_text(textwrap.dedent(app))
    started = Command(folder, url, *arguments)
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.process.kill()
            started.process.wait()


@pytest.fixture
def topics(broker):
    for name in broker.topics.list():
        broker.topics.delete(name)
    broker.topics.create("jobs")
    broker.topics.create("orders")


def enqueue(broker, task: str, **arguments: object) -> None:
    broker.send("jobs", arguments, task=task)


def test_two_processes_share_the_work_and_a_signal_lets_them_finish(broker, server, topics, tmp_path):
    with command(tmp_path, server.url, "app", "--processes", "2", "--concurrency", "2", "--drain", "20s") as run:
        run.wait_for("runs with pid", 2)
        assert f"{server.url} · 2 processes" in run.log
        assert re.search(r"app\.work +topic jobs, group workers, task work\.v1 · 2 at a time, threads", run.log)
        assert re.search(r"app\.charge +topic orders, group billing · 2 at a time, async", run.log)
        run.until(lambda: len(broker.workers.list()) == 2, "both are listed")
        assert sorted(info.pid for info in broker.workers.list()) == sorted(run.pids())
        broker.send("orders", "7")
        enqueue(broker, "work.v1", name="long", seconds=1.5)
        run.until(lambda: {"began long", "charged 7"} <= set(run.lines))
        (busy,) = [info for info in broker.workers.list() if info.busy] or broker.workers.list()[:1]
        assert (busy.concurrency, busy.tasks) == (6, ["exit.v1", "work.v1"])
        assert run.end() == 0
        assert "ended long" in run.lines, "it had time to end"
        assert broker.workers.list() == [], "they sign off"
        group = broker.groups.describe("jobs", "workers")
        assert (group.lag, group.in_flight) == (0, 0)


def test_a_second_signal_ends_at_once_and_gives_back_what_runs(broker, server, topics, tmp_path):
    with command(tmp_path, server.url, "app:work") as run:
        enqueue(broker, "work.v1", name="endless", seconds=600)
        run.until(lambda: "began endless" in run.lines)
        run.process.send_signal(signal.SIGTERM)
        run.wait_for("stopping: what runs has 30 s to end")
        # Signals that come within a fifth of a second are one, so the second one is repeated.
        run.until(lambda: run.process.send_signal(signal.SIGTERM) or "a second signal: ending" in run.log)
        assert run.process.wait(60) == 130
    assert "ended endless" not in run.lines
    assert broker.groups.describe("jobs", "workers").in_flight == 0
    (message,) = broker.claim("jobs", "workers", task="work.v1")
    assert message.attempts == 1, "a release counts no attempt"
    message.ack()


def test_a_process_that_dies_is_replaced_and_its_message_is_delivered_again(broker, server, topics, tmp_path):
    with command(tmp_path, server.url, "app:work") as run:
        enqueue(broker, "work.v1", name="long", seconds=3)
        run.until(lambda: "began long" in run.lines)
        os.kill(run.pids()[0], signal.SIGKILL)
        run.wait_for("died: killed by SIGKILL; starting another one in 0.5 s")
        run.wait_for("runs with pid", 2)
        run.until(lambda: "ended long" in run.lines)
        assert run.lines.count("began long") == 2
        assert run.end() == 0
        assert len(set(run.pids())) == 2


def test_a_handler_that_exits_fails_its_attempt_and_not_the_process(broker, server, topics, tmp_path):
    with command(tmp_path, server.url, "app:leave,work") as run:
        broker.send("jobs", {}, task="exit.v1", retry={"max_attempts": 1})
        enqueue(broker, "work.v1", name="after")
        run.until(lambda: "ended after" in run.lines and broker.dead_letters.list("jobs") != [])
        assert run.end() == 0
        assert len(run.pids()) == 1
    (letter,) = broker.dead_letters.list("jobs")
    assert letter.dlq.last_error == "SystemExit: 0"


def test_workers_without_a_supervisor_drain_and_end(broker, server, topics, tmp_path):
    with command(tmp_path, server.url, "app") as run:
        enqueue(broker, "work.v1", name="long", seconds=1)
        run.until(lambda: "began long" in run.lines)
        run.process.kill()
        run.until(lambda: "ended long" in run.lines)
        run.wait_for("the supervisor is gone: draining")
        run.until(lambda: not Path(f"/proc/{run.pids()[0]}").exists(), "the process ends")
    assert broker.groups.describe("jobs", "workers").lag == 0


def test_a_changed_file_is_loaded_again_after_what_runs_has_ended(broker, server, topics, tmp_path):
    with command(tmp_path, server.url, "app:work", "--reload") as run:
        enqueue(broker, "work.v1", name="old", seconds=2)
        run.until(lambda: "began old" in run.lines)
        changed = textwrap.dedent(APP).replace('f"ended {name}"', 'f"changed {name}"')
        (tmp_path / "app.py").write_text("def :")
        run.wait_for("changed: loading it again")
        run.wait_for("app cannot be imported: SyntaxError")
        assert "ended old" in run.lines, "the job that ran ended with the code that it began with"
        (tmp_path / "app.py").write_text(changed)
        run.wait_for("runs with pid", 2)
        enqueue(broker, "work.v1", name="new")
        run.until(lambda: "changed new" in run.lines)
        assert run.end(signal.SIGINT) == 0


def test_a_burst_ends_when_nothing_is_left_and_logs_json(broker, server, topics, tmp_path):
    for number in range(20):
        enqueue(broker, "work.v1", name=str(number))
    with command(tmp_path, server.url, "app", "--burst", "--processes", "2", "--json") as run:
        assert run.process.wait(60) == 0
    assert sorted(line for line in run.lines if line.startswith("ended")) == sorted(f"ended {n}" for n in range(20))
    lines = [json.loads(line) for line in run.log.splitlines()]
    (banner,) = [line for line in lines if "processes" in line]
    assert [worker["name"] for worker in banner["workers"]] == ["app.work", "app.leave", "app.charge"]
    assert sum(line.get("acked", 0) for line in lines) == 20


def test_a_burst_without_its_topic_or_its_broker_says_so(server, broker, topics, tmp_path):
    broker.topics.delete("orders")
    with command(tmp_path, server.url, "app:charge", "--burst") as run:
        assert run.process.wait(60) == 66
    assert "driftq: topic does not exist (create it first): orders" in run.log
    with command(tmp_path, "http://127.0.0.1:1", "app:charge", "--burst") as run:
        assert run.process.wait(60) == 69
    assert "no broker answers at http://127.0.0.1:1" in run.log


OFTEN = """
import driftq


@driftq.task("often.v1", topic="orders", cron="61 * * * *")
def often(): ...
"""


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["nothere"], 2, "driftq: there is no module 'nothere'"),
        (["app:wrk"], 2, "driftq: app has no worker or task 'wrk': did you mean work?"),
        (["app", "--queues", "job"], 2, "driftq: no worker takes topic 'job': did you mean jobs?"),
        (["app", "--burst", "--reload"], 2, "--burst ends by itself"),
        (["broken"], 65, "driftq: broken cannot be imported: NameError: name 'undefined' is not defined"),
        (["often", "--burst"], 1, "driftq: the schedule of often.often is refused: invalid cron expression '61 * * *"),
        (
            ["often", "-p", "2"],
            1,
            "driftq: the schedule of often.often is refused: invalid cron expression '61 * * * *",
        ),
    ],
)
def test_what_cannot_run_ends_with_a_sentence_and_a_code(server, tmp_path, arguments, code, sentence):
    (tmp_path / "broken.py").write_text("import os\n\nundefined\n")
    (tmp_path / "often.py").write_text(OFTEN)
    with command(tmp_path, server.url, *arguments) as run:
        assert run.process.wait(60) == code
    assert sentence in run.log
    if code == 65:
        assert 'broken.py", line 3' in run.log


def test_a_worker_waits_for_its_topic_and_for_its_broker_and_reports_both(tmp_path):
    assert HEARTBEAT_MS + TIMEOUT_MS <= 2_000, "a lost broker is reported within two seconds"
    (tmp_path / "data").mkdir()
    server = Server(str(tmp_path / "data"))
    try:
        with command(tmp_path, server.url, "app:charge") as run:
            run.wait_for("topic orders does not exist; waiting for it. Create it: driftq topics create orders")
            server.call("POST", "/v1/topics", {"name": "orders"})
            run.wait_for("topic orders exists now")
            server.call("POST", "/v1/produce", {"topic": "orders", "value": "1"})
            run.until(lambda: run.lines == ["charged 1"])
            os.kill(server.process.pid, signal.SIGSTOP)  # as a machine that does not answer any more
            run.wait_for(f"lost the broker at {server.url}: no reply in time")
            os.kill(server.process.pid, signal.SIGCONT)
            run.wait_for(f"the broker at {server.url} is back after")
            server.kill()
            run.wait_for(f"lost the broker at {server.url}", 2)
            server = Server(str(tmp_path / "data"), port=server.port)
            run.wait_for(f"the broker at {server.url} is back after", 2)
            server.call("POST", "/v1/produce", {"topic": "orders", "value": "2"})
            run.until(lambda: run.lines == ["charged 1", "charged 2"])
            assert run.end() == 0
    finally:
        server.stop()


def test_the_broker_asks_workers_to_drain_and_to_stop(broker, server, topics, tmp_path):
    def cli(*arguments: str) -> str:
        called = [sys.executable, "-m", "driftq.cli.main", "--url", server.url, "workers", *arguments]
        return subprocess.run(called, capture_output=True, text=True, check=False, timeout=60).stdout

    with command(tmp_path, server.url, "app", "--processes", "2") as run:
        run.until(lambda: len(broker.workers.list()) == 2)
        for name in ("a", "b"):
            enqueue(broker, "work.v1", name=name, seconds=2 if name == "a" else 600)
        run.until(lambda: {"began a", "began b"} <= set(run.lines))
        table = cli("list")
        assert table.count("exit.v1, work.v1, orders/billing") == 2
        first, second = (info.id for info in broker.workers.list())
        assert cli("drain", first) == f"{first}: asked to drain\n"
        assert cli("stop", second) == f"{second}: asked to stop\n"
        assert run.process.wait(60) == 0, "none is left, and none is started again"
    assert run.log.count("has ended as it was asked to") == 2
    assert broker.workers.list() == []
    assert broker.groups.describe("jobs", "workers").in_flight == 0


SCHEDULED = """
import driftq


@driftq.task("first.v1", topic="not-there", cron="0 9 * * *")
def first(): ...


@driftq.task("second.v1", topic="jobs", cron="0 9 * * *")
def second(): ...
"""


def test_a_schedule_that_waits_for_its_topic_delays_no_other(broker, server, topics, tmp_path):
    (tmp_path / "scheduled.py").write_text(SCHEDULED)
    with command(tmp_path, server.url, "scheduled") as run:
        run.until(lambda: [schedule.name for schedule in broker.schedules.list()] == ["second.v1"], "the second")
        broker.topics.create("not-there")
        run.until(lambda: len([*broker.schedules.list()]) == 2, "the first, when its topic is there")
    for name in ("first.v1", "second.v1"):
        broker.schedules.delete(name)


def test_a_token_that_is_refused_ends_the_command(tmp_path):
    first_token(str(tmp_path / "data"))
    server = Server(str(tmp_path / "data"), TOKENS)
    try:
        with command(tmp_path, server.url, "app", "-p", "2") as run:  # it has none
            assert run.process.wait(60) == 1
        assert "Clients read DRIFTQ_TOKEN" in run.log
        assert "starting another one" not in run.log
    finally:
        server.stop()
