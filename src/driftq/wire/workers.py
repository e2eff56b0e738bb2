"""Bodies of the registry of workers: heartbeats of running processes, and the list of them.

A process that runs workers announces itself with `PUT /v1/workers/{id}` again and again. The reply may ask it to end.
Entries are not durable: the broker keeps them in memory and drops those whose heartbeats stop.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from driftq.wire.fields import ID_LENGTH_MAX, NAME_LENGTH_MAX, Body, Natural

HEARTBEAT_MS = 1_000  # between two heartbeats of a process, while there are few of them
SUBSCRIPTIONS_MAX = 500  # of one process

WorkerState = Literal["running", "draining"]
WorkerCommand = Literal["", "drain", "stop"]  # what a process is asked to do

ShortText = Annotated[str, Meta(max_length=ID_LENGTH_MAX)]
ShortName = Annotated[str, Meta(max_length=NAME_LENGTH_MAX)]


class WorkerSubscriptionInfo(Body, frozen=True, omit_defaults=True):
    """One worker function of a process: what it claims, and how busy it is."""

    name: ShortText  # of the function
    topic: ShortName
    group: ShortName
    task: ShortName = ""
    label: ShortName = ""
    concurrency: Natural = 1
    busy: Natural = 0  # calls that run now
    held: Natural = 0  # messages that are claimed and not settled
    acked: Natural = 0  # since the process began
    failed: Natural = 0


class HeartbeatRequest(Body, frozen=True, omit_defaults=True):
    """What a process says of itself. `uptime_ms` is how long it runs: clocks of machines differ."""

    host: ShortText
    pid: Natural
    version: ShortText
    uptime_ms: Natural = 0
    state: WorkerState = "running"
    workers: Annotated[tuple[WorkerSubscriptionInfo, ...], Meta(max_length=SUBSCRIPTIONS_MAX)] = ()


class HeartbeatReply(Struct, frozen=True):
    """`command`: end after the running calls ("drain"), or at once ("stop"). `heartbeat_ms`: when to call again."""

    command: WorkerCommand
    heartbeat_ms: int


class WorkerInfo(Struct, frozen=True):
    """A process that runs workers. Its `id` is the owner of the leases that it holds. `concurrency` and `busy` are the
    sums over its worker functions; `command` is what it was asked to do."""

    id: str
    host: str
    pid: int
    version: str
    since: str
    seen: str
    state: WorkerState
    command: WorkerCommand
    concurrency: int
    busy: int
    tasks: list[str]
    workers: tuple[WorkerSubscriptionInfo, ...]


class WorkersReply(Struct, frozen=True, omit_defaults=True):
    """A page of workers, by id. `after` is there if there are more."""

    workers: list[WorkerInfo]
    after: str | None = None
