"""The ready views of a topic, over a real broker."""

from __future__ import annotations

import pytest

from driftq.client.api import connect
from driftq.spark import views
from driftq.spark.source.options import BadOption
from tests.support.server import running


@pytest.fixture
def orders(server, broker):
    """A topic with a job that is done, one that is dead, one that waits, and a message that is no job."""
    broker.topics.create("orders.new", history=True)
    broker.send("orders.new", b"one", task="mail", id="job-1", tenant="acme", priority=3)
    broker.send("orders.new", b"two", task="mail")
    broker.send("orders.new", b"no job")
    done, dead, plain = broker.claim("orders.new", "billing", max=3)
    done.ack()
    dead.reject("order 17 is wrong")
    plain.ack()
    broker.send("orders.new", b"three", task="mail", id="job-3", delay_ms=3_600_000)
    return server.url


def test_history_dead_letters_and_jobs_are_views_with_columns(spark, orders):
    names = views.create(spark, "orders.new", group="billing", url=orders)
    assert names == ("orders_new_history", "orders_new_dead_letters", "orders_new_jobs")

    counted = spark.sql("SELECT event, count(*) AS n FROM orders_new_history GROUP BY event")
    assert {row.event: row.n for row in counted.collect()} == {"delivered": 3, "acked": 2, "dead": 1}

    [letter] = spark.sql("SELECT * FROM orders_new_dead_letters").collect()
    assert (letter.topic, letter.offset, letter.group, letter.reason) == ("orders.new", 1, "billing", "rejected")
    assert (bytes(letter.value), letter.last_error, letter.fingerprint) == (
        b"two",
        "order 17 is wrong",
        "order … is wrong",
    )

    jobs = {row.id: row for row in spark.sql("SELECT * FROM orders_new_jobs").collect()}
    assert sorted(jobs) == ["job-1", "job-3", "orders.new:0:1"]
    assert (jobs["job-1"].task, jobs["job-1"].priority, jobs["job-1"].tenant_id) == ("mail", 3, "acme")
    assert {id: row.queue_state for id, row in jobs.items()} == {
        "job-1": "settled", "orders.new:0:1": "settled", "job-3": "delayed",
    }  # fmt: skip
    assert jobs["job-3"].not_before is not None
    assert jobs["job-1"].not_before is None


def test_a_stream_of_jobs_has_no_state_of_a_moment(spark, orders):
    with pytest.raises(BadOption, match="batch"):
        views.jobs(spark, "orders.new", group="billing", stream=True, url=orders)


def test_the_audit_is_a_view(spark):
    with running(None, "audit.mode=on") as server, connect(server.url) as broker:
        broker.topics.create("orders", partitions=3)
        broker.topics.create("orders", partitions=3)
        rows = views.audit(spark, url=server.url).orderBy("offset").collect()
    assert [(row.action, row.name, row.result, row["count"]) for row in rows] == [
        ("topic.create", "orders", "changed", 1), ("topic.create", "orders", "unchanged", 1),
    ]  # fmt: skip
    assert rows[0].details == '{"partitions":3}'
    assert rows[0].at is not None
    assert rows[0].address == "127.0.0.1"
