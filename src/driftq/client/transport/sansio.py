"""The client's protocol without I/O. What both clients do is written once, as generators; transports only move bytes.

Two kinds of operation can be given to a transport:

- a `Call`: one request and how to read its reply. `retrying_call` makes it a flow.
- a `Flow`: a generator that yields steps and is resumed with their results. Following a stream is one.

    flow (this module, `streams`)                  transport (`sync_transport`, `async_transport`)
    ─────────────────────────────                  ──────────────────────────────────────────────
    yield Exchange(call, timeout_s)    ──────▶     send the request, read the whole reply
            reply = …                  ◀──────     resume(flow, reply)
    (refused for now: back off)
    yield Sleep(seconds)               ──────▶     sleep
                                       ◀──────     resume(flow, None)
    yield Exchange(call, timeout_s)    ──────▶     send it again: the connection breaks
            except OutcomeUnknown      ◀──────     throw(flow, OutcomeUnknown(…))
    return value                       ──────▶     FlowResult(value): give it to the caller

What a transport must do:

1. `step = start(flow)`. While `step` is not a `FlowResult`, perform it:
   - `Exchange` → an `HttpReply`
   - `Open` → a `LiveReply` when its head has arrived, or the whole `HttpReply` if it is a refusal
   - `ReadMore` → the next bytes of a live reply, empty at its end
   - `CloseConnection`, `Sleep` → None
   - `Yield`: hand the value to the caller who iterates; it may not occur in a flow that is executed
2. Performed: `step = resume(flow, result)`.
3. Failed: `step = throw(flow, error)`, with `NotConnected` if no byte of the request was sent, else `OutcomeUnknown`.
   The first may always be retried, the second only if the call is idempotent (`may_retry`).
4. Respect `timeout_s` of each step. Overall deadlines are the flow's business.
5. Give each exchange a connection of its own, unless its call has a lane, and keep the connection only if the reply was
   read to its end.
6. If the caller stops iterating, `flow.close()` and close the live reply's connection.

Nothing here knows a socket. Time and randomness are arguments, so tests run these flows without waiting.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from driftq.client.errors import DriftQError, NotConnected, OutcomeUnknown, Refused, ServerFailed, Unavailable

if TYPE_CHECKING:
    from driftq.client.transport.http import Headers, HttpReply

T = TypeVar("T")

logger = logging.getLogger("driftq.client")

WARN_EVERY_S = 10.0
FULL_STATUSES = (429, 507)  # too many messages wait, or the disk is full: this may take long


# --- operations and steps ---


class Call(Generic[T]):
    """One request and how to read its reply.

    `idempotent`: repeating it has no further effect. `wait_ms`: how long the broker may hold the request (long poll).
    `lane`: calls of one lane are short and alike, so they may share a connection.
    """

    __slots__ = (
        "method",
        "path",
        "body",
        "content_type",
        "headers",
        "read",
        "refusal",
        "idempotent",
        "wait_ms",
        "lane",
        "on_end",
    )

    def __init__(
        self,
        method: str,
        path: str,
        read: Callable[[HttpReply], T],
        *,
        refusal: Callable[[HttpReply], Refused],
        body: bytes = b"",
        content_type: str = "",
        headers: Headers = (),
        idempotent: bool = False,
        wait_ms: int = 0,
        lane: str = "",
    ) -> None:
        self.method = method
        self.path = path
        self.read = read
        self.refusal = refusal
        self.body = body
        self.content_type = content_type
        self.headers = headers
        self.idempotent = idempotent
        self.wait_ms = wait_ms
        self.lane = lane
        self.on_end: Callable[[BaseException | None], None] | None = None  # of a call that is traced


class LiveReply(Protocol):
    """A reply whose body is still arriving. Flows see its head and read the body with `ReadMore`."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> dict[str, str]: ...


class Exchange(NamedTuple):
    """Send a request and read its whole reply: → `HttpReply`."""

    call: Call[Any]
    timeout_s: float


class Open(NamedTuple):
    """Send a request and read the head of its reply: → `LiveReply`, or the whole `HttpReply` if it is a refusal."""

    call: Call[Any]
    timeout_s: float


class ReadMore(NamedTuple):
    """→ the next bytes of a live reply; empty at its end."""

    reply: LiveReply
    timeout_s: float


class CloseConnection(NamedTuple):
    """Close the connection of a live reply."""

    reply: LiveReply


class Sleep(NamedTuple):
    seconds: float


class Yield(NamedTuple):
    """Hand a value to the caller who iterates over the flow."""

    value: Any


class FlowResult(NamedTuple):
    """Not a step: the flow has returned this value."""

    value: Any


Step: TypeAlias = Exchange | Open | ReadMore | CloseConnection | Sleep | Yield
Flow: TypeAlias = Generator[Step, Any, T]
Operation: TypeAlias = Call[T] | Generator[Step, Any, T]


# --- driving a flow ---


def start(flow: Flow[Any]) -> Step | FlowResult:
    return resume(flow, None)


def resume(flow: Flow[Any], result: object) -> Step | FlowResult:
    """Give a flow the result of its step; returns the next step."""
    try:
        return flow.send(result)
    except StopIteration as stop:
        return FlowResult(stop.value)


def throw(flow: Flow[Any], error: DriftQError) -> Step | FlowResult:
    """Report to a flow that its step failed; returns the next step, unless the flow raises the error."""
    try:
        return flow.throw(error)
    except StopIteration as stop:
        return FlowResult(stop.value)


# --- retrying ---


class RetryOptions(NamedTuple):
    """How a call is retried.

    One attempt takes at most `timeout_ms`, all of them together `deadline_ms`. A client that has never reached its
    broker gives up after `first_contact_ms`: the address is probably wrong.
    """

    timeout_ms: int = 10_000
    deadline_ms: int = 30_000
    backoff_ms: int = 50
    backoff_max_ms: int = 2_000
    first_contact_ms: int = 2_000

    def backoff_s(self, failures: int, jitter: float) -> float:
        """Exponential backoff, half of it random so that clients do not retry at the same moment."""
        window_ms = min(self.backoff_max_ms, self.backoff_ms << min(failures - 1, 16))
        return window_ms / 2_000 * (1 + jitter)


class PeerHistory:
    """What this client knows of its broker."""

    __slots__ = ("ever_connected", "is_lost", "takes_acks")

    def __init__(self) -> None:
        self.ever_connected = False  # it has replied
        self.is_lost = False  # it does not answer the heartbeats of workers, and that was reported
        self.takes_acks = False  # its last claim was packed, so it takes acks with a claim


def may_retry(call: Call[Any], error: DriftQError) -> bool:
    """A call that was certainly not executed may be retried. One that may have been: only if it is idempotent."""
    if isinstance(error, NotConnected):
        return True
    if isinstance(error, OutcomeUnknown | ServerFailed):
        return call.idempotent
    if isinstance(error, Unavailable) and error.status == 503:
        return True
    return error.retryable and isinstance(error, Refused) and error.status in FULL_STATUSES


def random_fraction() -> float:
    """From 0 up to 1."""
    return random_bits(53) / (1 << 53)


def retrying_call(
    call: Call[T],
    retry: RetryOptions,
    peer: PeerHistory,
    *,
    now_s: Callable[[], float] = time.monotonic,
    jitter: Callable[[], float] = random_fraction,
) -> Flow[T]:
    """Send a call until it succeeds, is refused for good, or the deadline passes."""
    if call.on_end is not None:
        return (yield from _reported(call, retry, peer, call.on_end))
    start_s = now_s()
    timeout_s = (retry.timeout_ms + call.wait_ms) / 1_000
    deadline_s = start_s + (retry.deadline_ms + call.wait_ms) / 1_000
    attempt_s = max(0.001, min(timeout_s, deadline_s - start_s))
    failures = 0
    warning: BackoffWarning | None = None
    while True:
        try:
            reply: HttpReply = yield Exchange(call, attempt_s)
            peer.ever_connected = True
            if reply.status < 300 or reply.status == 304:
                return call.read(reply)
            error: DriftQError = call.refusal(reply)
        except (NotConnected, OutcomeUnknown) as caught:
            error = caught
        failures += 1
        backoff_s = retry.backoff_s(failures, jitter())
        if error.retry_after_ms is not None:
            backoff_s = max(backoff_s, error.retry_after_ms / 1_000)
        give_up_s = deadline_s
        if isinstance(error, NotConnected) and not peer.ever_connected:
            give_up_s = min(deadline_s, start_s + retry.first_contact_ms / 1_000)
        if not may_retry(call, error) or now_s() + backoff_s > give_up_s:
            raise error
        warning = warning or BackoffWarning(now_s)
        warning.backing_off(error)
        yield Sleep(backoff_s)
        attempt_s = max(0.001, min(timeout_s, deadline_s - now_s()))


def _reported(
    call: Call[T], retry: RetryOptions, peer: PeerHistory, on_end: Callable[[BaseException | None], None]
) -> Flow[T]:
    """The same, and report how it ended."""
    call.on_end = None
    try:
        value = yield from retrying_call(call, retry, peer)
    except BaseException as error:
        on_end(error)
        raise
    on_end(None)
    return value


class BackoffWarning:
    """Logs why a call or a producer waits for a full broker: at once, then every ten seconds."""

    __slots__ = ("_next_s", "_now_s")

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._next_s = float("-inf")

    def backing_off(self, error: DriftQError) -> None:
        if isinstance(error, Refused) and error.status in FULL_STATUSES and self._now_s() >= self._next_s:
            self._next_s = self._now_s() + WARN_EVERY_S
            logger.warning("waiting for the broker: %s", error.message)


# --- random names, from the operating system: importing `secrets` would double the import time of the client ---


def random_name() -> str:
    return os.urandom(9).hex()


def random_bits(count: int) -> int:
    return int.from_bytes(os.urandom(8), "little") & ((1 << count) - 1)


def default_owner() -> str:
    """A name for this process that no other has."""
    return f"{socket.gethostname()[:64]}:{os.getpid()}:{os.urandom(3).hex()}"
