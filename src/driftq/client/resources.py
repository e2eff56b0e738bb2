"""The resources of a broker: what `broker.topics`, `broker.jobs` and the like are, blocking and async.

Each has a class with the methods, which `endpoint` makes from the pure functions in `calls`, and one class for each
client.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from driftq.client.calls import (
    admin,
    interventions,
    job_batches,
    jobs,
    observation,
    schedules,
    streams,
    tenants,
    tokens,
    workers,
)
from driftq.client.endpoint import AsyncApi, SyncApi, endpoint, iterating, listing
from driftq.client.job_batch_handle import AsyncJobBatchHandle, JobBatchHandle
from driftq.client.job_handle import AsyncJobHandle, JobHandle


class TopicMethods:
    create = endpoint(admin.create_topic)
    list = listing(admin.list_topics)
    describe = endpoint(admin.describe_topic)
    change = endpoint(admin.change_topic)
    delete = endpoint(admin.delete_topic)
    purge = endpoint(interventions.purge_topic)
    move = endpoint(interventions.move_messages)
    offsets = endpoint(admin.offsets)
    offsets_of = endpoint(admin.offsets_of_topics)
    peek = endpoint(admin.peek)
    fetch = endpoint(admin.fetch)
    figures = listing(observation.topic_figures)
    search = listing(observation.search_messages)


class Topics(TopicMethods, SyncApi): ...


class AsyncTopics(TopicMethods, AsyncApi): ...


class GroupMethods:
    list = listing(admin.list_groups)
    describe = endpoint(admin.describe_group)
    delete = endpoint(admin.delete_group)
    pause = endpoint(admin.pause_group)
    resume = endpoint(admin.resume_group)
    seek = endpoint(admin.seek_group)
    commit_offsets = endpoint(admin.commit_offsets)
    sorted = listing(observation.sorted_groups)


class Groups(GroupMethods, SyncApi): ...


class AsyncGroups(GroupMethods, AsyncApi): ...


class JobMethods:
    enqueue = endpoint(jobs.enqueue)
    find = endpoint(jobs.find_job)
    result = endpoint(jobs.job_result)
    cancel = endpoint(jobs.cancel_job)
    list = listing(observation.list_jobs)
    count = endpoint(observation.count_jobs)
    cancel_many = endpoint(interventions.cancel_jobs)
    retry = endpoint(interventions.retry_job)
    retry_many = endpoint(interventions.retry_jobs)


class Jobs(JobMethods, SyncApi):
    def handle(self, topic: str, id: str, *, group: str = "", tenant: str = "") -> JobHandle[Any]:
        """A handle of a job that was enqueued elsewhere, to wait for its result."""
        return JobHandle(self._transport, topic, id, group=group, tenant=tenant)


class AsyncJobs(JobMethods, AsyncApi):
    def handle(self, topic: str, id: str, *, group: str = "", tenant: str = "") -> AsyncJobHandle[Any]:
        """A handle of a job that was enqueued elsewhere, to wait for its result."""
        return AsyncJobHandle(self._transport, topic, id, group=group, tenant=tenant)


class JobBatchMethods:
    job = staticmethod(job_batches.job)
    nested = staticmethod(job_batches.nested)
    create = endpoint(job_batches.create_job_batch)
    add = endpoint(job_batches.add_jobs)
    describe = endpoint(job_batches.describe_job_batch)
    list = listing(job_batches.list_job_batches)
    jobs = listing(job_batches.job_batch_jobs)
    results = listing(job_batches.job_batch_results)
    cancel = endpoint(job_batches.cancel_job_batch)


class JobBatches(JobBatchMethods, SyncApi):
    def handle(self, id: str) -> JobBatchHandle:
        """A handle of a job batch that was created elsewhere, to wait for its end and its results."""
        return JobBatchHandle(self._transport, id)


class AsyncJobBatches(JobBatchMethods, AsyncApi):
    def handle(self, id: str) -> AsyncJobBatchHandle:
        """A handle of a job batch that was created elsewhere, to wait for its end and its results."""
        return AsyncJobBatchHandle(self._transport, id)


class DeadLetterMethods:
    list = listing(admin.list_letters)
    iterate = iterating(admin.list_letters)
    errors = endpoint(admin.letter_errors)
    iterate_errors = iterating(admin.each_error)
    redrive = endpoint(interventions.redrive)
    counts = listing(observation.letter_counts)
    delete = endpoint(interventions.delete_letters)


class DeadLetters(DeadLetterMethods, SyncApi):
    def export(self, topic: str, **filters: Any) -> Iterator[bytes]:
        """Lines of JSON, each with its line end: the dead letters of a topic that were not redriven, as `driftq produce
        --ndjson` reads them. The filters are those of `list`."""
        return self._transport.iterate(interventions.export_letters(topic, **filters))


class AsyncDeadLetters(DeadLetterMethods, AsyncApi):
    def export(self, topic: str, **filters: Any) -> AsyncIterator[bytes]:
        """Lines of JSON, each with its line end: the dead letters of a topic that were not redriven, as `driftq produce
        --ndjson` reads them. The filters are those of `list`."""
        return self._transport.iterate(interventions.export_letters(topic, **filters))


class ScheduleMethods:
    create = endpoint(schedules.create_schedule)
    list = listing(schedules.list_schedules)
    iterate = iterating(schedules.list_schedules)
    show = endpoint(schedules.show_schedule)
    pause = endpoint(schedules.pause_schedule)
    resume = endpoint(schedules.resume_schedule)
    run = endpoint(schedules.run_schedule)
    delete = endpoint(schedules.delete_schedule)


class Schedules(ScheduleMethods, SyncApi): ...


class AsyncSchedules(ScheduleMethods, AsyncApi): ...


class WorkersMethods:
    list = listing(workers.list_workers)
    describe = endpoint(workers.describe_worker)
    drain = endpoint(workers.drain_worker)
    stop = endpoint(workers.stop_worker)


class Workers(WorkersMethods, SyncApi): ...


class AsyncWorkers(WorkersMethods, AsyncApi): ...


class StreamsMethods:
    list = endpoint(streams.list_streams)
    iterate = iterating(streams.each_stream)
    subscriptions = listing(observation.list_subscriptions)
    producers = listing(observation.list_producers)


class Streams(StreamsMethods, SyncApi): ...


class AsyncStreams(StreamsMethods, AsyncApi): ...


class RunsMethods:
    list = listing(observation.list_runs)
    describe = endpoint(observation.describe_run)
    cancel = endpoint(observation.cancel_run)


class Runs(RunsMethods, SyncApi): ...


class AsyncRuns(RunsMethods, AsyncApi): ...


class PipelinesMethods:
    list = endpoint(observation.list_pipelines)
    report = endpoint(observation.report_pipeline)


class Pipelines(PipelinesMethods, SyncApi): ...


class AsyncPipelines(PipelinesMethods, AsyncApi): ...


class TokenMethods:
    create = endpoint(tokens.create_token)
    list = listing(tokens.list_tokens)
    show = endpoint(tokens.show_token)
    narrow = endpoint(tokens.narrow_token)
    rotate = endpoint(tokens.rotate_token)
    revoke = endpoint(tokens.revoke_token)
    derive = endpoint(tokens.derive_token)
    whoami = endpoint(tokens.whoami)


class Tokens(TokenMethods, SyncApi): ...


class AsyncTokens(TokenMethods, AsyncApi): ...


class TenantMethods:
    create = endpoint(tenants.create_tenant)
    list = listing(tenants.list_tenants)
    show = endpoint(tenants.show_tenant)
    set = endpoint(tenants.set_tenant)
    delete = endpoint(tenants.delete_tenant)


class Tenants(TenantMethods, SyncApi): ...


class AsyncTenants(TenantMethods, AsyncApi): ...
