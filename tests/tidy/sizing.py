"""The table of sizes in the guide on tuning: what one core of a server does, from the published run."""

from __future__ import annotations

from types import ModuleType

from bench.named_run import load
from driftq.charts import short

RUN = "two-cores"
WAYS = {
    "batches": "batches of 1,000 messages (`producer`, `send_many`)",
    "callers": "single messages of 64 concurrent callers",
    "blocking": "single messages of one caller that waits for each reply",
    "claims": "claim and ack, 100 messages at a time",
}


def rows(_: ModuleType) -> list[tuple[str, str, str, str]]:
    """How, measured on the machine of the run, CPU of the server, and what that allows for one core."""
    results = {row["case"]: row for row in load(RUN)["peers"]["results"] if row["peer"] == "DriftQ"}
    return [
        (
            way,
            f"{short(results[case]['value'])}/s",
            f"{results[case]['server_cpu_us_per_op']:.2f} µs",
            f"{short(1e6 / results[case]['server_cpu_us_per_op'])}/s",
        )
        for case, way in WAYS.items()
    ]
