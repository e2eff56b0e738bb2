"""`driftq demo`: a broker, a workload, two pipelines on Spark and an audit on this machine.

The broker is a process of its own and starts first, so that it can be used while Spark starts. At the end the workload
stops first; then the pipelines catch up with the log and finish their micro-batch; then the audit prints its verdict;
the broker stops last. What a harder stop interrupts is done again at the next start, once.
"""

from __future__ import annotations

import ctypes
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from driftq.cli.demo_workload import GROUP, PARTITIONS, TOPIC, Workload
from driftq.cli.exit_codes import Exit
from driftq.client.api import connect
from driftq.client.errors import DriftQError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from driftq.spark.pipelines.query_monitor import Stop
    from driftq.spark.pipelines.settings import Configuration
import click

from driftq.cli.serve import DEFAULT_DATA

START_S = 60.0
CATCH_UP_S = 180.0
STOP_S = 30.0
PROGRESS_S = 3.0
_ADDRESS = re.compile(r" on (https?://\S+)")
_PR_SET_PDEATHSIG = 1
SPARK = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g"}

Echo = Callable[[str], None]


class DemoBroker:
    """A `driftq serve` that Ctrl-C does not reach and that does not outlive this process."""

    def __init__(self, data: str, listen: str, echo: Echo) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "driftq.cli.main", "serve", "--data", data, "--listen", listen],
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=_die_with_parent,  # noqa: PLW1509  # before any thread of ours
        )
        self.url = ""
        self._echo = echo
        self._started = threading.Event()
        threading.Thread(target=self._relay, name="broker-lines", daemon=True).start()

    def _relay(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._echo(f"broker: {line.rstrip()}")
            address = _ADDRESS.search(line)
            if address and not self.url:
                self.url = address[1].rstrip("/.,;")
                self._started.set()
        self._started.set()

    def wait(self) -> bool:
        """True once it serves; False if it ended instead."""
        return self._started.wait(START_S) and bool(self.url)

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Demo:
    """One run of the demo."""

    def __init__(
        self, data: str, tables: str, listen: str, rate_per_s: int, audit_s: int, for_s: int | None, echo: Echo
    ) -> None:
        self._data = data
        self._tables = Path(tables)
        self._listen = listen
        self._rate_per_s = rate_per_s
        self.audit_s = audit_s
        self.for_s = for_s
        self.echo = echo

    def run(self) -> int:
        """Run everything in order. Returns 1 if the last audit finds a difference."""
        self.echo("DriftQ demo. Ctrl-C stops everything in order; start it again and it continues.")
        broker = DemoBroker(self._data, self._listen, self.echo)
        try:
            if not broker.wait():
                return broker.stop() or Exit.FAILED
            return self._work(broker)
        except KeyboardInterrupt:
            return Exit.OK
        finally:
            broker.stop()
            if broker.url:
                self.echo("broker: stopped. Everything is on disk; run the same command to continue.")

    def _work(self, broker: DemoBroker) -> int:
        self.echo(f"broker: API documentation at {broker.url}/v1/docs, metrics at {broker.url}/v1/metrics")
        workload = Workload(broker.url, self._rate_per_s)
        first = workload.start()
        self.echo(
            f"workload: {self._rate_per_s} orders a second to topic {TOPIC} ({PARTITIONS} partitions), starting with "
            f"number {first:,}; group {GROUP} processes them, some fail. Try: driftq tail {TOPIC}"
        )
        try:
            return self._pipelines(broker, workload)
        finally:
            workload.stop()

    def _pipelines(self, broker: DemoBroker, workload: Workload) -> int:
        from driftq.cli.pipeline import require_spark

        require_spark()
        from driftq.spark.pipelines.query_monitor import QueryFailed, Stop, isolated_session, signals, watch

        self._tables.mkdir(parents=True, exist_ok=True)
        self.echo(f"spark: starting, which takes some seconds; its own log is {self._tables / 'spark.log'}")
        with (self._tables / "spark.log").open("ab") as log, self._waiting("spark: still starting"):
            spark = isolated_session("local[2]", "driftq-demo", SPARK, log)
        user_stop, stop = Stop(), Stop()
        try:
            with signals(user_stop):
                from driftq.spark.pipelines.audit_report import DIFFERS
                from driftq.spark.pipelines.registry import STREAMING_PIPELINES

                archive, metrics = self._configurations(broker.url)
                starts = {
                    configuration.pipeline.name: partial(
                        STREAMING_PIPELINES[configuration.pipeline.name], spark, configuration
                    )
                    for configuration in (archive, metrics)
                }
                self.echo(f"spark: archive writes {archive.sink.table}, metrics writes {metrics.sink.table}")
                supervisor = _Supervisor(self, spark, broker, workload, user_stop, stop, archive, metrics)
                watch(starts, stop, self.echo, supervisor.poll)
                differs = not user_stop.urgent and self.audit(spark, archive) == DIFFERS
        except (QueryFailed, DriftQError) as error:
            self.echo(f"spark: {error}. What was committed stays; start again to continue")
            return Exit.FAILED
        finally:
            spark.stop()
        self.echo(f"workload: {workload.sent:,} orders in all; {workload.done:,} done, {workload.failed:,} failed now")
        return Exit.REFUSED if differs else Exit.OK

    @contextmanager
    def _waiting(self, status: str) -> Iterator[None]:
        """Print a line every few seconds, so that a long wait does not look like a hang."""
        started_s, done = time.monotonic(), threading.Event()

        def report() -> None:
            while not done.wait(PROGRESS_S):
                self.echo(f"{status}, {time.monotonic() - started_s:.0f} s")

        reporter = threading.Thread(target=report, name="progress", daemon=True)
        reporter.start()
        try:
            yield
        finally:
            done.set()
            reporter.join()

    def _configurations(self, url: str) -> tuple[Configuration, Configuration]:
        from driftq.spark.pipelines.settings import load

        source = {"source.url": url, "source.topics": (TOPIC,)}
        archive = {
            "sink.table": str(self._tables / "orders"),
            "pipeline.trigger": "3 seconds",
            "pipeline.id": "archive",
        }
        metrics = {
            "sink.table": str(self._tables / "metrics"), "pipeline.trigger": "10 seconds", "pipeline.id": "metrics",
            "metrics.window": "10 seconds", "metrics.watermark": "5 seconds", "metrics.history": True,
            "metrics.latency_max": "10 seconds",
        }  # fmt: skip
        return load("archive", values={**source, **archive}), load("metrics", values={**source, **metrics})

    def audit(self, spark: SparkSession, archive: Configuration) -> int:
        from driftq.spark.pipelines.audit import run_audit
        from driftq.spark.pipelines.query_monitor import Stop

        return run_audit(spark, archive, Stop(), lambda line: self.echo(f"audit: {line}"))

    def figures(self, spark: SparkSession, metrics: Configuration) -> None:
        """Print the last closed window of each tenant."""
        from driftq.spark.tables import open_table

        table = open_table(spark, metrics.sink.table)
        if table.committed("metrics") is None:
            return
        rows = table.read().orderBy("window_start", ascending=False).limit(12).collect()
        for row in sorted((row for row in rows if row["window_start"] == rows[0]["window_start"]), key=_tenant):
            self.echo(f"metrics: {_figures(row)}")


class _Supervisor:
    """Called between two looks at the queries: runs audits now and then, and stops everything in order."""

    def __init__(
        self,
        demo: Demo,
        spark: SparkSession,
        broker: DemoBroker,
        workload: Workload,
        user_stop: Stop,
        stop: Stop,
        archive: Configuration,
        metrics: Configuration,
    ) -> None:
        self._demo, self._spark, self._broker, self._workload = demo, spark, broker, workload
        self._user_stop, self._stop, self._archive, self._metrics = user_stop, stop, archive, metrics
        now_s = time.monotonic()
        self._audit_at_s = now_s + demo.audit_s
        self._end_at_s = now_s + demo.for_s if demo.for_s is not None else float("inf")
        self._deadline_s: float | None = None

    def poll(self) -> None:
        now_s = time.monotonic()
        if self._broker.process.poll() is not None:
            self._demo.echo("broker: it has ended; the pipelines stop, too")
            self._stop.request()
            return
        if self._workload.error:
            self._demo.echo(f"workload: {self._workload.error}")
            self._workload.error = ""
        if now_s > self._end_at_s:
            self._user_stop.request()
            self._end_at_s = float("inf")
        if self._user_stop.requested:
            self._end(now_s)
        elif now_s > self._audit_at_s and self._table_offsets():
            self._demo.figures(self._spark, self._metrics)
            self._demo.audit(self._spark, self._archive)
            self._audit_at_s = time.monotonic() + self._demo.audit_s

    def _end(self, now_s: float) -> None:
        """Stop the workload first, then the queries once the archive has caught up."""
        if self._deadline_s is None:
            self._demo.echo(
                "stopping: the workload ends, the archive catches up with the log (Ctrl-C again stops at once)"
            )
            self._workload.stop()
            self._deadline_s = now_s + CATCH_UP_S
        if self._user_stop.urgent or now_s > self._deadline_s or self._caught_up():
            self._stop.urgent = self._user_stop.urgent
            self._stop.request()

    def _table_offsets(self) -> dict[int, int]:
        """The end of the table in each partition; empty before its first rows."""
        from driftq.spark.tables import open_table

        return open_table(self._spark, self._archive.sink.table).positions().get(TOPIC, {})

    def _caught_up(self) -> bool:
        archived = self._table_offsets()
        with connect(self._broker.url) as broker:
            return all(archived.get(log.partition, 0) >= log.end for log in broker.topics.offsets(TOPIC).partitions)


def _tenant(row: Any) -> str:
    return str(row["tenant_id"])


def _figures(row: Any) -> str:
    parts = [
        f"{row['window_start']:%H:%M:%S}–{row['window_end']:%H:%M:%S} {row['tenant_id']}: {row['produced']:,} produced",
        f"{row['acked']:,} acked",
    ]
    if row["error_rate"] is not None:
        parts.append(f"{100 * row['error_rate']:.1f}% failed")
    if row["p95_ms"] is not None:
        parts.append(f"latency p50 {row['p50_ms']:,} ms, p95 {row['p95_ms']:,} ms")
    return ", ".join(parts)


@click.command()
@click.option("--data", metavar="DIR", default=DEFAULT_DATA, show_default=True, help="Data folder of the broker.")
@click.option("--tables", metavar="DIR", default="./tables", show_default=True, help="Folder for the tables.")
@click.option(
    "--listen", metavar="HOST:PORT", default="127.0.0.1:8080", show_default=True, help="Address to listen on."
)
@click.option("--rate", type=click.IntRange(1, 1_000), default=20, show_default=True, help="Orders per second.")
@click.option("--audit-s", type=click.IntRange(1), default=30, show_default=True, help="Seconds between audits.")
@click.option("--for-s", type=click.IntRange(1), help="Stop after this many seconds.")
def command(data: str, tables: str, listen: str, rate: int, audit_s: int, for_s: int | None) -> None:
    """Run a broker, a small workload, two pipelines on Spark and an audit, until Ctrl-C.

    Start it again and it continues where it stopped: nothing is lost, and nothing is written twice.

    Example: driftq demo --rate 50
    """

    sys.exit(Demo(data, tables, listen, rate, audit_s, for_s, click.echo).run())
