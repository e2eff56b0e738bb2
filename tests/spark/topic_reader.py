"""Reads the records of topics for the Spark tests, with plain fetches."""

from __future__ import annotations

import http.client
from urllib.parse import urlsplit

from driftq.wire.records import Record, read_header, split, unpack


def topic_records(url: str, topic: str) -> list[Record]:
    """All records of all partitions, partition by partition."""
    return [record for records in logs_of(url, topic).values() for record in records]


def logs_of(url: str, topic: str) -> dict[int, list[Record]]:
    import json

    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=20)
    try:
        connection.request("GET", f"/v1/topics/{topic}/offsets")
        offsets = json.loads(connection.getresponse().read())
        return {
            partition["partition"]: _records(
                connection, topic, partition["partition"], partition["start"], partition["end"]
            )
            for partition in offsets["partitions"]
        }
    finally:
        connection.close()


def _records(connection: http.client.HTTPConnection, topic: str, partition: int, start: int, end: int) -> list[Record]:
    records: list[Record] = []
    while start < end:
        connection.request("GET", f"/v1/topics/{topic}/partitions/{partition}/records?offset={start}&end={end}")
        response = connection.getresponse()
        data = response.read()
        assert response.status == 200, data
        for batch in split(data):
            header = read_header(batch)
            assert header.first_offset <= start < header.end_offset, "offsets are not dense"
            records.extend(unpack(batch, header, first=start - header.first_offset, count=end - start))
            start = min(end, header.end_offset)
    return records
