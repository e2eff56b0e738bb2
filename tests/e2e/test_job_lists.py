"""Lists of jobs and the search for messages, with many of them: every page is found, and no call holds the loop."""

from __future__ import annotations

from urllib.parse import quote

from driftq.wire.message import Envelope, Head, Job, encode_head
from driftq.wire.records import Record, pack
from tests.support.measured_server import MeasuredServer, measured_server

JOBS = 10_000
TURN_S = 0.02


def enqueue_many(server: MeasuredServer) -> None:
    assert server.call("POST", "/v1/topics", {"name": "jobs", "partitions": 2}).status == 201
    for partition in range(2):
        records = [
            Record(
                b"value %d" % number,
                b"key-%d" % number,
                encode_head(Head(Envelope(tenant_id=f"t{number % 10}"), job=Job(task="even" if number % 2 else "odd"))),
            )
            for number in range(JOBS // 2)
        ]
        for first in range(0, len(records), 1_000):
            batch = pack(records[first : first + 1_000], scheduled=True)
            assert server.call("POST", f"/v1/produce/packed?topic=jobs&partition={partition}", batch).status == 200


def test_many_jobs_are_listed_counted_searched_and_cancelled_without_a_stall(tmp_path):
    with measured_server(str(tmp_path / "data"), "queue.in_flight_max=1000000") as server:
        enqueue_many(server)
        claim = {"topic": "jobs", "group": "g", "owner": "w", "max": 100}
        assert len(server.call("POST", "/v1/claim", claim).json()["messages"]) == 100
        server.reset()
        seen: list[str] = []
        after = ""
        while True:
            page = server.call("GET", f"/v1/jobs?topic=jobs&tenant_id=t3&limit=300&after={after}").json()
            seen += (job["id"] for job in page["jobs"])
            after = page.get("after", "")
            if not after:
                break
        assert len(seen) == len(set(seen)) == JOBS // 10
        counts = server.call("GET", "/v1/jobs/counts?topic=jobs").json()
        assert (counts["states"], counts["complete"]) == ({"running": 100, "ready": JOBS - 100}, True)
        assert sum(counts["tasks"]["odd"].values()) == JOBS // 2
        hits = server.call("GET", f"/v1/topics/jobs/messages?text={quote('value 17')}&limit=1000").json()
        assert {message["offset"] for message in hits["messages"]} == {17, *range(170, 180), *range(1_700, 1_800)}
        times = [message["timestamp_ms"] for message in hits["messages"]]
        assert times == sorted(times, reverse=True)
        cancel = server.call("POST", "/v1/jobs/cancel", {"topic": "jobs", "task": "odd", "tenant_id": "t2"}).json()
        assert (cancel["matched"], cancel["cancelled"]) == (1_000, 1_000)
        server.assert_no_turn_above(TURN_S)
