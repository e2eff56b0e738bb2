"""What is said of a running query: a line for a micro-batch, the lag, and the cause of a failure. No Spark."""

from __future__ import annotations

import os
import signal
from typing import Any, ClassVar

import pytest

from driftq.spark.pipelines.query_monitor import QueryFailed, Stop, cause, lag, progress_line, signals, spark_log, watch
from driftq.spark.pipelines.settings import from_tree


def progress(*sources: dict[str, Any], late: int = 0) -> dict[str, Any]:
    return {
        "batchId": 7,
        "durationMs": {"triggerExecution": 500},
        "stateOperators": [{"numRowsDroppedByWatermark": late}],
        "sources": list(sources),
    }


def source(latest: Any, reached: Any) -> dict[str, Any]:
    return {"latestOffset": latest, "endOffset": reached, "numInputRows": 1_500}


def test_a_micro_batch_is_one_line() -> None:
    batch = progress(source({"offsets": {"a": {"0": 9, "1": 3}}}, {"offsets": {"a": {"0": 4, "1": 3}}}))

    assert progress_line("archive", batch) == "archive: batch 7, 1,500 rows, 3,000 rows/s, 0.5 s, lag 5"
    assert progress_line("m", progress(late=2)) == "m: batch 7, 0 rows, 0 rows/s, 0.5 s, lag 0, 2 too late"


def test_a_frame_that_is_read_twice_counts_once() -> None:
    once = source({"offsets": {"a": {"0": 9}}}, {"offsets": {"a": {"0": 4}}})

    assert progress_line("m", progress(once, dict(once))) == progress_line("m", progress(once))


@pytest.mark.parametrize(
    ("sources", "behind"),
    [
        ([], 0),
        ([source('{"offsets": {"a": {"0": 9}}}', '{"offsets": {"a": {"0": 9}}}')], 0),
        ([source({"offsets": {"a": {"0": 9}, "b": {"0": 2}}}, {"offsets": {"a": {"0": 8}}})], 3),
        ([source({"offsets": {"a": {"0": 1}}}, {"offsets": {"a": {"0": 5}}})], 0),
        ([source({"offsets": {"a": {"0": 2}}}, {"offsets": {"a": {"0": 1}}}), source(None, None)], None),
        ([source("7", "3")], None),
    ],
)
def test_the_lag_is_summed_over_logs_and_unknown_when_a_source_does_not_say(sources: Any, behind: int | None) -> None:
    assert lag(progress(*sources)) == behind


SPARK_ERROR = """[STREAM_FAILED] Query [id = a, runId = b] terminated with exception: Job aborted due to stage failure:
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 1, in main
    process()
  File "transform.py", line 70, in each_batch
    made = [function(value) for value in values]
ValueError: invalid literal for int() with base 10: b'x'

	at org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:581)
Caused by: java.lang.Exception
SQLSTATE: XXKST
=== Streaming Query ===
Identifier: transform-in-out [id = a, runId = b]
"""


def test_the_cause_of_a_failure_is_what_python_said_last() -> None:
    assert cause(SPARK_ERROR) == "ValueError: invalid literal for int() with base 10: b'x'"
    failed = "[STREAM_FAILED] Query [id = a, runId = b] terminated with exception: No. SQLSTATE: XXKST\n=== Streaming"
    assert cause(failed) == "No."
    assert cause("[TABLE_OR_VIEW_NOT_FOUND] There is no x.\nAt line 1") == "[TABLE_OR_VIEW_NOT_FOUND] There is no x."
    assert cause("driftq.spark.source.options.BadOption: no option x") == "BadOption: no option x"


def test_the_first_signal_asks_for_the_end_and_the_second_for_a_quick_one() -> None:
    before = signal.getsignal(signal.SIGTERM)
    stop = Stop()

    with signals(stop):
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(5)
        assert not stop.urgent
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.urgent

    assert signal.getsignal(signal.SIGTERM) is before


class Interrupted:
    """A query as Spark shows it when a stop met it in the middle of a plan: it ended with an error that names no cause.
    When that happens cannot be chosen with a real one."""

    lastProgress = None
    status: ClassVar = {"isTriggerActive": False}

    def __init__(self, *, active: bool) -> None:
        self.isActive = active

    def stop(self) -> None:
        self.isActive = False

    def exception(self) -> Exception:
        return RuntimeError("[STREAM_FAILED] Query [id = a] terminated with exception:  SQLSTATE: XXKST")


def test_an_error_that_a_stop_made_is_no_failure() -> None:
    stop = Stop()
    stop.request()
    watch({"metrics": lambda: Interrupted(active=True)}, stop, print)  # type: ignore[dict-item,return-value]


def test_an_error_of_a_query_that_ended_by_itself_is_a_failure() -> None:
    with pytest.raises(QueryFailed):
        watch({"metrics": lambda: Interrupted(active=False)}, Stop(), print)  # type: ignore[dict-item,return-value]


def test_the_log_of_spark_is_beside_the_checkpoint_under_a_plain_path():
    sink, source = {"table": "./tables/orders"}, {"topics": ["orders"]}
    configured = from_tree({"pipeline": {"name": "archive"}, "source": source, "sink": sink})
    assert str(spark_log(configured)) == "tables/orders.checkpoints/spark.log"
