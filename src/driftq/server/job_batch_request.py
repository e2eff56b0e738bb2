"""A job batch from the body of a request to the templates that the broker keeps.

    JobBatchItem ──flatten──▶ its jobs in one list ──router──▶ routed jobs ──BatchTemplates──▶ JobBatchTemplate
    tree of jobs and batches  `BatchJob`, with ids                          the tree again

Pure, but for partitions that are drawn. An invalid field is a `BadRequest` that names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec.structs import replace

from driftq.core.model import job_batch_facts as b
from driftq.core.model.facts import RecordSchedule
from driftq.server.http import BadRequest
from driftq.server.produced_message import prepare
from driftq.wire.job_batches import DEFAULT_GROUP, CreateJobBatchRequest, JobBatchItem, JobBatchMemberItem
from driftq.wire.message import JobBatchPart, decode_head, encode_head
from driftq.wire.produce import ProduceItem, ProduceRequest

if TYPE_CHECKING:
    from driftq.server.router.caller import RoutedItem

KINDS = {"group": b.GROUP, "chain": b.CHAIN}
ROLES = ("on_complete", "on_success", "on_failure")
DEPTH_MAX = 32  # of a body; the broker allows less

_deterministic = msgspec.msgpack.Encoder(order="deterministic")

AnyPartition = Callable[[str, ProduceItem], int | None]
Item = TypeVar("Item", bound=ProduceRequest)


def named(item: JobBatchItem, topic: str, group: str, depth: int = 1) -> JobBatchItem:
    """The batch with everything filled in: the ids of its members, their topics, and the group."""
    if depth > DEPTH_MAX:
        raise BadRequest("job batches are nested too deeply")
    topic, group = item.topic or topic, item.group or group or DEFAULT_GROUP
    jobs = named_members(item.id, item.jobs, 0, topic, group, depth)
    messages = {
        role: _named_job(message, f"{item.id}.{role}", topic)
        for role in ROLES
        if (message := getattr(item, role)) is not None
    }
    return replace(item, topic=topic, group=group, jobs=jobs, **messages)


def named_members(
    batch_id: str, members: tuple[JobBatchMemberItem, ...], first: int, topic: str, group: str, depth: int = 1
) -> tuple[JobBatchMemberItem, ...]:
    named_jobs: list[JobBatchMemberItem] = []
    for index, member in enumerate(members, first):
        name = f"{batch_id}.{index}"
        if member.batch is None:
            named_jobs.append(_named_job(member, name, topic))
        elif member != JobBatchMemberItem(batch=member.batch):
            raise BadRequest(f"member {index} of {batch_id} is a job batch: other fields belong to a job")
        else:
            nested = replace(member.batch, id=member.batch.id or name)
            named_jobs.append(JobBatchMemberItem(batch=named(nested, topic, group, depth + 1)))
    return tuple(named_jobs)


def _named_job(job: Item, name: str, topic: str) -> Item:
    if not (job.topic or topic):
        raise BadRequest(f"job {name} has no topic, and its job batch has none")
    return replace(job, id=job.id or name, topic=job.topic or topic)


def jobs_of(item: JobBatchItem) -> Iterator[ProduceRequest]:
    """Every job of a named batch, in the order in which `BatchTemplates` takes them."""
    for role in ROLES:
        message = getattr(item, role)
        if message is not None:
            yield message
    yield from jobs_of_members(item.jobs)


def jobs_of_members(members: tuple[JobBatchMemberItem, ...]) -> Iterator[ProduceRequest]:
    for member in members:
        if member.batch is not None:
            yield from jobs_of(member.batch)
        else:
            yield member


def _shape(item: JobBatchItem) -> tuple[object, ...]:
    """Everything of a batch but its jobs."""
    members = tuple(_shape(member.batch) if member.batch is not None else () for member in item.jobs)
    return item.id, item.kind, item.group, tuple(role for role in ROLES if getattr(item, role) is not None), members


def digest_of(item: CreateJobBatchRequest, jobs: list[ProduceRequest]) -> bytes:
    """Identifies a request: what it asks for, without the traces of its messages, which differ at each repeat."""
    without = [
        replace(job, envelope=replace(job.envelope, traceparent="", tracestate="", baggage=""))
        if job.envelope is not None
        else job
        for job in jobs
    ]
    request = (_shape(item), item.parent, item.sealed, item.ttl_ms, without)
    return blake2b(_deterministic.encode(request), digest_size=16).digest()


class BatchTemplates:
    """Makes the templates of a batch from its routed jobs, which it takes one after the other."""

    def __init__(
        self, jobs: list[ProduceRequest], routes: list[RoutedItem], now_ms: int, any_partition: AnyPartition
    ) -> None:
        self._routes = iter(zip(jobs, routes, strict=True))
        self._now_ms = now_ms
        self._any_partition = any_partition

    def batch(self, item: JobBatchItem, ttl_ms: int = 0) -> b.JobBatchTemplate:
        messages = {role: self._job(item.id, role) for role in ROLES if getattr(item, role) is not None}
        members = self.members(item.id, item.jobs)
        return b.JobBatchTemplate(
            item.id, KINDS[item.kind], item.group, members, **messages, ttl_ms=ttl_ms, topic=item.topic
        )

    def members(
        self, batch_id: str, members: tuple[JobBatchMemberItem, ...]
    ) -> tuple[b.JobTemplate | b.JobBatchTemplate, ...]:
        return tuple(
            self.batch(member.batch) if member.batch is not None else self._job(batch_id, "member")
            for member in members
        )

    def _job(self, batch_id: str, role: str) -> b.JobTemplate:
        job, route = next(self._routes)
        item = route.item
        message = prepare(replace(item, delay_ms=0), job.topic, self._now_ms, routing=route.routing)
        assert message.job is not None, "every job of a batch has an id"
        part = JobBatchPart(batch_id, role)  # type: ignore[arg-type]  # one of its roles
        envelope = item.envelope
        override = envelope.partition_override if envelope is not None else None
        return b.JobTemplate(
            topic=job.topic,
            target_topic=(envelope.target_topic if envelope is not None else "") or job.topic,
            value=message.record.value,
            key=message.record.key,
            head=encode_head(replace(decode_head(message.record.head), job_batch=part)),
            partition=override if override is not None else self._any_partition(job.topic, item),
            schedule=message.schedule or RecordSchedule(0),
            delay_ms=item.delay_ms,
            tenant=message.job.tenant,
            job_id=item.id,
            digest=message.job.digest,
        )
