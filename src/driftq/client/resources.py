"""The resources of a broker: what `broker.topics`, `broker.jobs` and the like are, blocking and async.

Each has a class with the methods, which `endpoint` makes from the pure functions in `calls`, and one class for each
client.
"""

from __future__ import annotations

from typing import Any

from driftq.client.calls import admin, jobs, streams, tokens, workers
from driftq.client.endpoint import AsyncApi, SyncApi, endpoint, iterating, listing
from driftq.client.job_handle import AsyncJobHandle, JobHandle


class TopicMethods:
    create = endpoint(admin.create_topic)
    list = listing(admin.list_topics)
    describe = endpoint(admin.describe_topic)
    change = endpoint(admin.change_topic)
    delete = endpoint(admin.delete_topic)
    offsets = endpoint(admin.offsets)
    offsets_of = endpoint(admin.offsets_of_topics)
    peek = endpoint(admin.peek)
    fetch = endpoint(admin.fetch)


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


class Groups(GroupMethods, SyncApi): ...


class AsyncGroups(GroupMethods, AsyncApi): ...


class JobMethods:
    enqueue = endpoint(jobs.enqueue)
    find = endpoint(jobs.find_job)
    result = endpoint(jobs.job_result)
    cancel = endpoint(jobs.cancel_job)


class Jobs(JobMethods, SyncApi):
    def handle(self, topic: str, id: str, *, group: str = "", tenant: str = "") -> JobHandle[Any]:
        """A handle of a job that was enqueued elsewhere, to wait for its result."""
        return JobHandle(self._transport, topic, id, group=group, tenant=tenant)


class AsyncJobs(JobMethods, AsyncApi):
    def handle(self, topic: str, id: str, *, group: str = "", tenant: str = "") -> AsyncJobHandle[Any]:
        """A handle of a job that was enqueued elsewhere, to wait for its result."""
        return AsyncJobHandle(self._transport, topic, id, group=group, tenant=tenant)


class DeadLetterMethods:
    list = listing(admin.list_letters)
    iterate = iterating(admin.list_letters)
    errors = endpoint(admin.letter_errors)
    iterate_errors = iterating(admin.each_error)
    redrive = endpoint(admin.redrive)


class DeadLetters(DeadLetterMethods, SyncApi): ...


class AsyncDeadLetters(DeadLetterMethods, AsyncApi): ...


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


class Streams(StreamsMethods, SyncApi): ...


class AsyncStreams(StreamsMethods, AsyncApi): ...


class TokenMethods:
    create = endpoint(tokens.create_token)
    list = listing(tokens.list_tokens)
    show = endpoint(tokens.show_token)
    narrow = endpoint(tokens.narrow_token)
    rotate = endpoint(tokens.rotate_token)
    revoke = endpoint(tokens.revoke_token)


class Tokens(TokenMethods, SyncApi): ...


class AsyncTokens(TokenMethods, AsyncApi): ...
