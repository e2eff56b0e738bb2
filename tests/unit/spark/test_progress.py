"""The lag of a query as metrics of its source."""

from __future__ import annotations

import json
from typing import Any

from driftq.spark.progress import with_lag


def progress_of(latest: Any, **more: Any) -> dict[str, Any]:
    return {"name": "copy", "batchId": 3, "sources": [{"description": "driftq", "latestOffset": latest, **more}]}


LATEST = {
    "version": 1,
    "offsets": {"orders": {"0": 30, "1": 20}, "runs/7": {"0": 5}},
    "lag": {"offsets": 9, "seconds": 1.5, "logs": {"orders": {"1": 8}, "runs/7": {"0": 1}}},
}


def test_the_lag_of_a_source_becomes_its_metrics_in_all_and_for_each_log():
    for latest in (LATEST, json.dumps(LATEST)):
        progress = with_lag(progress_of(latest, metrics={"rows": "7"}))
        assert progress["sources"][0]["metrics"] == {
            "rows": "7",
            "offsetsBehindLatest": "9",
            "secondsBehindLatest": "1.5",
            "minOffsetsBehindLatest": "0",
            "maxOffsetsBehindLatest": "8",
            "avgOffsetsBehindLatest": "3.0",
            "offsetsBehindLatest.orders/1": "8",
            "offsetsBehindLatest.runs/7/0": "1",
        }
    assert progress["batchId"] == 3


def test_the_least_lag_is_that_of_a_log_if_all_of_them_have_one():
    lag = {"offsets": 5, "seconds": 0.0, "logs": {"orders": {"0": 2, "1": 3}}}
    metrics = with_lag(progress_of({"offsets": {"orders": {"0": 9, "1": 9}}, "lag": lag}))["sources"][0]["metrics"]
    assert (metrics["minOffsetsBehindLatest"], metrics["avgOffsetsBehindLatest"]) == ("2", "2.5")


def test_sources_of_others_and_batches_without_a_report_stay_as_they_are():
    for latest in (None, "", "7", "no json", {"offsets": {"orders": {"0": 3}}}, [1]):
        assert with_lag(progress_of(latest)) == progress_of(latest)
    assert with_lag({"batchId": 0}) == {"batchId": 0}
