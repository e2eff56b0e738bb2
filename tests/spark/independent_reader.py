"""Reads topics and tables for checks, with no code of DriftQ: topics as JSON over HTTP, tables with delta-rs."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import deltalake

PAGE = 500


def topic_values(url: str, topic: str) -> dict[int, list[str]]:
    """The values of each partition, in the order of their offsets."""
    partitions = _get(f"{url}/v1/topics/{topic}/offsets")["partitions"]
    return {log["partition"]: _values(url, topic, log["partition"], log["end"]) for log in partitions}


def _values(url: str, topic: str, partition: int, end: int) -> list[str]:
    values: list[str] = []
    while len(values) < end:
        page = _get(f"{url}/v1/topics/{topic}/partitions/{partition}/messages?offset={len(values)}&limit={PAGE}")[
            "messages"
        ]
        assert [message["offset"] for message in page] == list(range(len(values), len(values) + len(page)))
        values += [message["value"] for message in page]
    return values


def table_values(table: Path) -> dict[int, list[str]]:
    """The same of a table. An offset that is missing or there twice shows as a list that differs."""
    rows = deltalake.DeltaTable(table).to_pyarrow_table(columns=["partition", "offset", "value"]).to_pylist()
    partitions: dict[int, list[str]] = {}
    for row in sorted(rows, key=lambda row: (row["partition"], row["offset"])):
        partitions.setdefault(row["partition"], []).append(row["value"].decode())
    return partitions


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as reply:
        return json.load(reply)
