"""A topic with many jobs of batches is deleted and purged in slices: no frame ends very many of them."""

from __future__ import annotations

import asyncio

import pytest

from driftq.core.model import job_batch_facts as b
from driftq.core.model import job_batches as j
from driftq.core.rules.job_batches import MEMBERS_PER_CALL_MAX
from driftq.server.topic_end import MEMBERS_AT_ONCE
from tests.support.handler_fixture import HandlerFixture, handler_fixture

MEMBERS = 2 * MEMBERS_AT_ONCE + 2 * MEMBERS_PER_CALL_MAX
DONE = b.JobTemplate("done", "done", b"complete")


async def create(at: HandlerFixture) -> None:
    """A batch whose members are in one partition of `jobs`, after some other messages."""
    for name in ("jobs", "done"):
        await at.call("POST", "/v1/topics", {"name": name})
    await at.call("POST", "/v1/produce", {"topic": "jobs", "value": "not of a batch"})
    await at.engine.submit(j.CreateJobBatch(b.JobBatchTemplate("all", b.GROUP, "g", (), DONE), sealed=False))
    members = (b.JobTemplate("jobs", "jobs", b"x"),) * MEMBERS_PER_CALL_MAX
    for first in range(0, MEMBERS, MEMBERS_PER_CALL_MAX):
        await at.engine.submit(j.AddToJobBatch("all", first, members, first + MEMBERS_PER_CALL_MAX == MEMBERS))


@pytest.mark.parametrize(
    ("method", "target"), [("DELETE", "/v1/topics/jobs"), ("POST", "/v1/topics/jobs/purge")], ids=["deleted", "purged"]
)
def test_many_members_end_in_several_frames_and_their_batch_once(method: str, target: str) -> None:
    ended: list[int] = []  # by each frame

    def observe(lsn: int, facts: list[object]) -> None:
        ranges = [fact.indexes for fact in facts if isinstance(fact, b.JobBatchMembersEnded)]
        if ranges:
            ended.append(sum(end - first for some in ranges for first, end in some))

    async def body() -> None:
        async with handler_fixture() as at:
            await create(at)
            assert "driftq_job_batches 1.0\n" in (await at.call("GET", "/v1/metrics")).body.decode()
            at.engine.sequencer.observers.append(observe)
            reply = await at.call(method, target)
            assert reply.status == (204 if method == "DELETE" else 200), reply
            if method == "POST":
                assert (reply.body["messages"], reply.body["in_flight"]) == (MEMBERS + 1, 0)
            assert sum(ended) == MEMBERS
            assert max(ended) <= MEMBERS_AT_ONCE
            batch = (await at.call("GET", "/v1/job-batches/all")).body
            assert (batch["state"], batch["counts"]["dropped"]) == ("failed", MEMBERS)
            metrics = (await at.call("GET", "/v1/metrics")).body.decode()
            assert "driftq_job_batches 0.0\n" in metrics
            assert 'driftq_job_batches_ended_total{state="failed"} 1.0\n' in metrics
            assert f'driftq_job_batch_members_ended_total{{state="dropped"}} {MEMBERS}.0\n' in metrics
            produced = await at.call("GET", "/v1/topics/done/partitions/0/messages")
            assert [message["value"] for message in produced.body["messages"]] == ["complete"]

    asyncio.run(body())
