"""What both clients do, written once: a flow is a generator that yields steps and is told what came of them.

A transport performs the steps, by blocking or by awaiting; the decisions (try again? how long? read on from where?) are
made here and in the other flows. Nothing here knows a socket, and time and chance come as arguments.
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


# --- names and chances, straight from the system: `secrets` would double the time that importing the client takes ---


def random_name() -> str:
    return os.urandom(9).hex()


def random_bits(count: int) -> int:
    return int.from_bytes(os.urandom(8), "little") & ((1 << count) - 1)


def chance() -> float:
    """From 0 up to 1."""
    return random_bits(53) / (1 << 53)


def default_owner() -> str:
    """A name for this process that no other has."""
    return f"{socket.gethostname()[:64]}:{os.getpid()}:{os.urandom(3).hex()}"


class Call(Generic[T]):
    """One request and how to read its reply.

    `repeatable`: sending it twice does no more than sending it once. `wait_ms`: how long the broker may sit on it.
    """

    __slots__ = ("method", "path", "body", "content_type", "headers", "read", "refusal", "repeatable", "wait_ms")

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
        repeatable: bool = False,
        wait_ms: int = 0,
    ) -> None:
        self.method = method
        self.path = path
        self.read = read
        self.refusal = refusal
        self.body = body
        self.content_type = content_type
        self.headers = headers
        self.repeatable = repeatable
        self.wait_ms = wait_ms


class Live(Protocol):
    """A reply that is still arriving. Opaque to flows, except for its head."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> dict[str, str]: ...


class Exchange(NamedTuple):
    """→ `HttpReply`. Raises `NotConnected` or `OutcomeUnknown` into the flow."""

    call: Call[Any]
    timeout_s: float


class Open(NamedTuple):
    """→ `Live`, or the whole `HttpReply` if it is a refusal."""

    call: Call[Any]
    timeout_s: float


class ReadMore(NamedTuple):
    """→ the next bytes of a live reply; empty at its end."""

    live: Live
    timeout_s: float


class CloseConnection(NamedTuple):
    """Be done with a live reply."""

    live: Live


class Sleep(NamedTuple):
    seconds: float


class Yield(NamedTuple):
    """Hand a value to whoever iterates over the flow."""

    value: Any


class StepEnded(NamedTuple):
    """Not a step: the flow is over, and this is what it returned."""

    value: Any


Step: TypeAlias = Exchange | Open | ReadMore | CloseConnection | Sleep | Yield
Flow: TypeAlias = Generator[Step, Any, T]
Asked: TypeAlias = Call[T] | Generator[Step, Any, T]


def start(flow: Flow[Any]) -> Step | StepEnded:
    return resume(flow, None)


def resume(flow: Flow[Any], result: object) -> Step | StepEnded:
    """Tell a flow what came of its step; it says what it wants next."""
    try:
        return flow.send(result)
    except StopIteration as stop:
        return StepEnded(stop.value)


def failed(flow: Flow[Any], error: DriftQError) -> Step | StepEnded:
    """Tell a flow that its step failed."""
    try:
        return flow.throw(error)
    except StopIteration as stop:
        return StepEnded(stop.value)


class RetryOptions(NamedTuple):
    """How long to wait and how to try again.

    One attempt takes at most `timeout_ms`, all of them together `deadline_ms`. Until a broker has answered once,
    nobody being there is an answer after `first_contact_ms`.
    """

    timeout_ms: int = 10_000
    deadline_ms: int = 30_000
    backoff_ms: int = 50
    backoff_max_ms: int = 2_000
    first_contact_ms: int = 2_000

    def pause_s(self, failures: int, chance: float) -> float:
        """Half of the window for certain, the other half by chance: no herd, and no hot loop."""
        window_ms = min(self.backoff_max_ms, self.backoff_ms << min(failures - 1, 16))
        return window_ms / 2_000 * (1 + chance)


class PeerHistory:
    """Whether the broker has ever answered."""

    __slots__ = ("met",)

    def __init__(self) -> None:
        self.met = False


def may_repeat(call: Call[Any], error: DriftQError) -> bool:
    """What was certainly not done may be tried again; what may have been done, only if twice is as good as once."""
    if isinstance(error, NotConnected):
        return True
    if isinstance(error, OutcomeUnknown | ServerFailed):
        return call.repeatable
    if isinstance(error, Unavailable) and error.status == 503:
        return True
    return error.retryable and isinstance(error, Refused) and error.status in (429, 507)


def retrying_call(
    call: Call[T],
    patience: RetryOptions,
    known: PeerHistory,
    *,
    now_s: Callable[[], float] = time.monotonic,
    chance: Callable[[], float] = chance,
) -> Flow[T]:
    """Ask until there is an answer that counts, or the time is over."""
    began_s = now_s()
    timeout_s = (patience.timeout_ms + call.wait_ms) / 1_000
    deadline_s = began_s + (patience.deadline_ms + call.wait_ms) / 1_000
    failures = 0
    notice = WaitNotice(now_s)
    while True:
        try:
            reply: HttpReply = yield Exchange(call, max(0.001, min(timeout_s, deadline_s - now_s())))
            known.met = True
            if reply.status < 300 or reply.status == 304:
                return call.read(reply)
            error: DriftQError = call.refusal(reply)
        except (NotConnected, OutcomeUnknown) as caught:
            error = caught
        failures += 1
        pause_s = patience.pause_s(failures, chance())
        if error.retry_after_ms is not None:
            pause_s = max(pause_s, error.retry_after_ms / 1_000)
        over_s = deadline_s
        if isinstance(error, NotConnected) and not known.met:
            over_s = min(deadline_s, began_s + patience.first_contact_ms / 1_000)
        if not may_repeat(call, error) or now_s() + pause_s > over_s:
            raise error
        notice.waits(error)
        yield Sleep(pause_s)


# --- Says why a call waits: a broker that refuses for now is asked again, and a program should not wait in silence ---


logger = logging.getLogger("driftq.client")

AGAIN_S = 10.0
FULL = (429, 507)  # too much waits, or the disk is full: this may take long


class WaitNotice:
    """The notices of one call or one producer: at once, and again while the wait goes on."""

    __slots__ = ("_next_s", "_now_s")

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._next_s = float("-inf")

    def waits(self, error: DriftQError) -> None:
        """The call is tried again because of this refusal."""
        if isinstance(error, Refused) and error.status in FULL and self._now_s() >= self._next_s:
            self._next_s = self._now_s() + AGAIN_S
            logger.warning("waiting for the broker: %s", error.message)
