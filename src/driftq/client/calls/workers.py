"""Calls of the registry of workers as pure functions: list, drain and stop processes; their heartbeats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driftq.client.calls.admin import pages
from driftq.client.calls.queue import bodyless_call, encode, get, json_reader, post, refusal, segment
from driftq.client.endpoint import Page, Pages
from driftq.client.transport.sansio import Call
from driftq.wire.workers import HeartbeatReply, WorkerInfo, WorkersReply

if TYPE_CHECKING:
    from driftq.wire.workers import HeartbeatRequest


def _worker(id: str) -> str:
    return f"/v1/workers/{segment(id)}"


def list_workers() -> Pages[WorkerInfo]:
    """The processes that run workers now, as they announce themselves."""
    return pages("/v1/workers", WorkersReply, lambda reply: Page(reply.workers, reply.after), {})


def describe_worker(id: str) -> Call[WorkerInfo]:
    """What a process runs, and how busy it is. Its id is the owner of the leases that it holds."""
    return get(_worker(id), WorkerInfo)


def drain_worker(id: str) -> Call[WorkerInfo]:
    """Ask a process to claim nothing more, finish what runs, and end. It is notified with its next heartbeat."""
    return post(f"{_worker(id)}/drain", {}, json_reader(WorkerInfo), idempotent=True)


def stop_worker(id: str) -> Call[WorkerInfo]:
    """Ask a process to give back what it holds, without counting an attempt, and to end at once."""
    return post(f"{_worker(id)}/stop", {}, json_reader(WorkerInfo), idempotent=True)


def heartbeat(id: str, body: HeartbeatRequest) -> Call[HeartbeatReply]:
    """Announce a process that runs workers."""
    return Call("PUT", _worker(id), json_reader(HeartbeatReply), refusal=refusal, body=encode(body), idempotent=True)


def remove_worker(id: str) -> Call[None]:
    """A process that ran workers has ended."""
    return bodyless_call("DELETE", _worker(id))
