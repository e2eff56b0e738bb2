"""`driftq pipeline` and `driftq demo` as real processes: signals, output and exit codes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

import driftq
from driftq.cli.demo_workload import TOPIC
from driftq.cli.exit_codes import Exit
from driftq.client.api import DriftQ
from driftq.client.calls.queue import item
from tests.spark.guide_readers import READERS, columns_by_guide
from tests.support.server import Server, running
from tests.support.wait import until_now
from tests.tidy.sources import SRC

WAIT_S = 400  # Spark starts slowly on a busy machine
LONG = pytest.mark.timeout(1_200)
# The tests run with Spark installed; this simulates a Python without it.
WITHOUT_SPARK = "import sys; sys.modules['pyspark'] = None; from driftq.cli.main import main; main()"

pytestmark = pytest.mark.xdist_group("spark")


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "driftq.cli.main", *map(str, arguments)]


def environment(folder: Path) -> dict[str, str]:
    environ = {name: text for name, text in os.environ.items() if not name.startswith("DRIFTQ_")}
    return {**environ, "PYTHONPATH": f"{SRC.parent}{os.pathsep}{folder}", "XDG_CONFIG_HOME": str(folder)}


def run_to_end(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    line = command(*arguments)
    return subprocess.run(
        line, cwd=folder, env=environment(folder), capture_output=True, text=True, check=False, timeout=WAIT_S
    )


class Running:
    """A long-running command in a process group of its own, with its output so far."""

    def __init__(self, folder: Path, *arguments: object) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            command(*arguments), cwd=folder, env=environment(folder), text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            self.lines.extend(lines)

    def says(self, pattern: str) -> bool:
        return self.process.poll() is not None or any(re.search(pattern, line) for line in list(self.lines))

    def interrupt(self) -> int:
        """Ctrl-C in a terminal: every process of the group gets it."""
        os.killpg(self.process.pid, signal.SIGINT)
        return self.end()

    def end(self) -> int:
        try:
            self.process.wait(WAIT_S)
        finally:
            if self.process.poll() is None:
                self.process.kill()
            self.process.wait()
            self._reader.join(30)
        return self.process.returncode

    @property
    def text(self) -> str:
        return "".join(self.lines)


def values_of(broker: DriftQ, topic: str) -> Counter[str]:
    values: Counter[str] = Counter()
    for place in broker.topics.offsets(topic).partitions:
        values.update(message.value for message in broker.topics.peek(topic, place.partition, offset=0, limit=1_000))
    return values


def test_list_and_show_need_no_spark(tmp_path: Path) -> None:
    listed = run_to_end(tmp_path, "pipeline", "list")
    shown = run_to_end(tmp_path, "pipeline", "show", "metrics", "--topic", "orders", "--table", "t")

    assert "archive" in listed.stdout
    assert 'topics = ["orders"]' in shown.stdout
    assert 'window = "1 minute"  # the length of a window' in shown.stdout


def test_a_wrong_setting_a_silent_broker_and_a_missing_topic_are_reported_before_spark_starts(tmp_path: Path) -> None:
    with running(None) as server:
        wrong = run_to_end(
            tmp_path, "pipeline", "run", "metrics", "--topic", "a", "--table", "t", "--set", "metrics.windw=1"
        )
        topic = run_to_end(tmp_path, "pipeline", "run", "archive", "--topic", "a", "--table", "t", "--url", server.url)
        url = server.url
    silent = run_to_end(tmp_path, "pipeline", "run", "archive", "--topic", "a", "--table", "t", "--url", url)

    assert (wrong.returncode, "did you mean metrics.window" in wrong.stderr) == (Exit.USAGE, True)
    assert (topic.returncode, "a" in topic.stderr) == (Exit.NOTHING_THERE, True)
    assert (silent.returncode, "Is the server running" in silent.stderr) == (Exit.UNREACHABLE, True)
    assert not (tmp_path / "t.checkpoints").exists()


def test_without_spark_the_error_names_what_to_install(tmp_path: Path) -> None:
    line = [sys.executable, "-c", WITHOUT_SPARK, "pipeline", "run", "archive", "--topic", "a", "--table", "t"]

    completed = subprocess.run(line, env=environment(tmp_path), capture_output=True, text=True, check=False, timeout=60)

    assert (completed.returncode, completed.stderr) == (
        Exit.NOTHING_THERE,
        "driftq: a pipeline needs the package pyspark, which is not installed. Run: pip install 'driftq[spark]'\n",
    )


@LONG
def test_a_pipeline_stops_cleanly_and_resumes(tmp_path: Path) -> None:
    (tmp_path / "shaping.py").write_text("def upper(value):\n    return value.upper()\n")
    with running(str(tmp_path / "broker")) as server, driftq.connect(server.url) as broker:
        broker.topics.create("in", partitions=2)
        broker.topics.create("out", partitions=2)
        broker.send_many("in", [item(f"a{n}", key=str(n)) for n in range(50)])
        arguments = ["pipeline", "run", "transform", "--topic", "in", "--to", "out", "--url", server.url]
        arguments += ["--set", "transform.each=shaping:upper", "--set", "pipeline.trigger=100 milliseconds"]
        arguments += ["--master", "local[2]"]

        first = Running(tmp_path, *arguments)
        until_now(lambda: first.says("batch 0"), WAIT_S)
        broker.send_many("in", [item(f"b{n}", key=str(n)) for n in range(50)])
        code = first.interrupt()
        broker.send_many("in", [item(f"c{n}", key=str(n)) for n in range(50)])
        second = run_to_end(tmp_path, *arguments, "--once")

        assert code == 0, first.text
        assert "stopped; start it again to continue" in first.text
        assert "batch 0, 50 rows" in first.text
        assert second.returncode == 0, second.stderr
        assert values_of(broker, "out") == Counter(f"{letter}{n}" for letter in "ABC" for n in range(50))
    assert (tmp_path / "checkpoints" / "spark.log").exists()


def verdicts(text: str) -> list[str]:
    return re.findall(r"verdict: (\w+)", text)


@LONG
def test_the_demo_loses_and_duplicates_nothing_over_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["demo", "--data", "data", "--tables", "tables", "--listen", "127.0.0.1:0", "--audit-s", "5"]

    first = Running(tmp_path, *arguments)
    # Figures are printed once a window is closed: only then has every table rows.
    until_now(lambda: first.says("verdict:") and first.says(r"metrics: .* produced"), WAIT_S)
    assert first.interrupt() == 0, first.text
    second = run_to_end(tmp_path, *arguments, "--for-s", "5")

    assert second.returncode == 0, second.stdout + second.stderr
    assert set(verdicts(first.text)) == set(verdicts(second.stdout)) == {"exact"}, first.text + second.stdout
    broker, spark = first.text.index("broker: API documentation at"), first.text.index("spark: starting")
    assert broker < spark < first.text.index("archive: batch 0")
    with running(str(tmp_path / "data")) as server:
        orders = assert_every_order_is_there_once(server, second.stdout)
    monkeypatch.chdir(tmp_path)
    for reader in set(READERS) - {"Spark"}:
        assert_a_reader_opens_what_the_demo_wrote(reader, orders)


def assert_a_reader_opens_what_the_demo_wrote(reader: str, orders: int) -> None:
    """By the line that the guide prints."""
    columns = columns_by_guide(reader)
    assert Counter(columns["value"]) == Counter(str(number).encode() for number in range(orders)), reader
    assert sum(columns_by_guide(reader, "./tables/metrics")["produced"]) > 0, reader


def assert_every_order_is_there_once(server: Server, text: str) -> int:
    """The log has orders 0, 1, 2 … and the last verdict counts as many rows. Returns how many."""
    with driftq.connect(server.url) as broker:
        ends = [place.end for place in broker.topics.offsets(TOPIC).partitions]
        orders: Counter[str] = Counter()
        for partition, end in enumerate(ends):
            for offset in range(0, end, 1_000):
                orders.update(m.value for m in broker.topics.peek(TOPIC, partition, offset=offset, limit=1_000))
    assert orders == Counter(map(str, range(sum(ends))))
    rows = re.findall(r"verdict: exact\. ([\d,]+) rows", text)[-1]
    assert int(rows.replace(",", "")) == sum(ends)
    return sum(ends)


def test_a_story_without_a_table_is_refused_before_spark_starts(tmp_path: Path) -> None:
    ended = run_to_end(tmp_path, "pipeline", "story", "r1", "--table", tmp_path / "none")
    assert ended.returncode == Exit.NOTHING_THERE, ended.stderr
    assert ended.stderr.splitlines() == [f"driftq: there is no table at {tmp_path / 'none'}"]
