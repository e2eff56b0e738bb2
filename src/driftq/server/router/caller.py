"""Calls the router at produce: within its time limit, once per idempotency key, and never at the expense of a message.

Theory of operation. A produce handler calls `then(messages, finish)`. For each message:

    key known to the broker?  ──yes──> no call: the message goes where the first one went, and the broker answers
         │no                           "duplicate"
         ▼
    key being routed now?     ──yes──> share that decision
         │no
         ▼
    call the router           ──> decision ──> does its topic and partition exist? ──> envelope + routing ──> finish
                                                        │no
                                                        └──> invalid: noted with the message, which goes unrouted

A router that fails, takes too long or returns something invalid leaves the message as it is. That is counted, and
logged at a limited rate. An inline router (rules, or a function with `router.inline`) is called without a task. Others
run concurrently, at most `CALLS_MAX` at a time, and `finish` is called when all messages have a decision.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

import msgspec

from driftq.core.model.commands import ProduceKey
from driftq.core.state.groups import HISTORY_SUFFIX
from driftq.core.state.idempotency_keys import ProducedKey, job_key
from driftq.server.http import Answer, BadRequest, Deferred, Reply
from driftq.server.http.response import REPLIES
from driftq.server.logs import RateLimited
from driftq.server.metrics.counters import Histogram
from driftq.server.produced_message import value_of
from driftq.wire.message import Envelope, Routing
from driftq.wire.produce import ProduceItem
from driftq.wire.router import BadRouteDecision, RouteDecision, RouteInput

if TYPE_CHECKING:
    from driftq.engine.engine import Engine
    from driftq.server.router.routers import Router

logger = logging.getLogger("driftq.router")

CALLS_MAX = 256
ERROR = "router_error"  # key in the routing of a message: why the decision of the router was ignored
ERROR_MAX = 256

RequestedItem = tuple[str, ProduceItem]  # the requested topic and the message


class RouterVerdict(NamedTuple):
    """The result of a call: `result` is routed, unrouted (no decision), timeout, error or invalid."""

    result: str
    decision: RouteDecision | None = None
    error: str = ""


class RoutedItem(NamedTuple):
    """A message with the decision in its envelope, and what is stored about the decision."""

    item: ProduceItem
    routing: Routing | None = None


UNROUTED = RouterVerdict("unrouted")


class RouterCaller:
    """Calls a router for the produce handlers."""

    def __init__(self, router: Router, engine: Engine, timeout_ms: int) -> None:
        self.router = router
        self.timeout_ms = timeout_ms
        self.results: defaultdict[str, int] = defaultdict(int)
        self.seconds = Histogram()
        self._engine = engine
        self._calls: dict[ProduceKey, asyncio.Task[RouterVerdict]] = {}  # in progress, by idempotency scope
        self._slots = asyncio.Semaphore(CALLS_MAX)
        self._rate_limited = RateLimited(logger)

    def over(self, engine: Engine) -> RouterCaller:
        """The same router for a tenant, whose names the engine sees."""
        caller = RouterCaller(self.router, engine, self.timeout_ms)
        caller.results, caller.seconds = self.results, self.seconds
        caller._slots, caller._rate_limited = self._slots, self._rate_limited
        return caller

    def then(self, items: Sequence[RequestedItem], finish: Callable[[list[RoutedItem]], Answer]) -> Answer:
        """Route the messages, then return the answer of `finish`, which gets them in their order."""
        if self.router.inline:
            return finish([self._route_inline(topic, item) for topic, item in items])
        answer = Deferred()
        task = asyncio.ensure_future(self._engine.monitor.steps("router", self._routes(items, finish, answer)))
        task.add_done_callback(lambda done: answer.fail(error) if (error := _error_of(done)) is not None else None)
        return answer

    def _route_inline(self, topic: str, item: ProduceItem) -> RoutedItem:
        scope = scope_of(topic, item)
        first = self.known(scope) if scope else None
        if first is not None:
            return self._as_first(item, first)
        message = _message(topic, item)
        return self._applied(topic, item, self._call_inline(message)) if message is not None else RoutedItem(item)

    def _call_inline(self, message: RouteInput) -> RouterVerdict:
        """Call a router that returns its decision at once."""
        start_s = time.perf_counter()
        try:
            decision = cast(RouteDecision | None, self.router.route(message))
        except Exception as error:
            return self._recorded(_failure(error, self.timeout_ms), start_s)
        return self._recorded(self._checked(message.topic, message.envelope, decision), start_s)

    async def _routes(
        self, items: Sequence[RequestedItem], finish: Callable[[list[RoutedItem]], Answer], answer: Deferred
    ) -> None:
        scopes = [scope_of(topic, item) for topic, item in items]
        try:
            routes = await asyncio.gather(
                *(self._route(topic, item, scope) for (topic, item), scope in zip(items, scopes))
            )
            _relay(finish([route() for route in routes]), answer)
        finally:
            for scope in scopes:
                if scope is not None:
                    self._calls.pop(scope, None)

    async def _route(self, topic: str, item: ProduceItem, scope: ProduceKey | None) -> Callable[[], RoutedItem]:
        """Wait for the decision. The result is applied later, once all messages of the request have theirs."""
        first = self.known(scope) if scope else None
        if first is not None:
            return partial(self._as_first, item, first)
        message = _message(topic, item)
        if message is None:
            return partial(RoutedItem, item)
        if not scope:
            return partial(self._applied, topic, item, await self.ask(message))
        task = self._calls.get(scope)
        if task is None:
            task = self._calls[scope] = asyncio.ensure_future(self._engine.monitor.steps("router", self.ask(message)))
        return partial(self._applied, topic, item, await asyncio.shield(task))

    def _applied(self, topic: str, item: ProduceItem, verdict: RouterVerdict) -> RoutedItem:
        """Apply a decision; the topic may have been deleted since the router was called."""
        if verdict.result == "routed":
            verdict = self._checked(topic, item.envelope, verdict.decision)
        return applied(item, verdict)

    def _checked(self, topic: str, envelope: Envelope | None, decision: RouteDecision | None) -> RouterVerdict:
        """Check that the topic and the partition of a decision exist. If not, it is invalid."""
        if decision is None:
            return UNROUTED
        problem = self._problem(topic, envelope or Envelope(), decision)
        return (
            RouterVerdict("invalid", error=f"the router's decision is invalid: {problem}")
            if problem
            else RouterVerdict("routed", decision)
        )

    def _problem(self, topic: str, envelope: Envelope, decision: RouteDecision) -> str:
        if not decision.target_topic and decision.partition_override is None:
            return ""
        topics = self._engine.latest_state.topics
        name = decision.target_topic or envelope.target_topic or topic
        target = topics.get(name)
        if target is None:
            return (
                f"there is no topic {name}" if decision.target_topic else ""
            )  # the broker refuses a topic that the client named
        source = topics.get(name.removesuffix(HISTORY_SUFFIX)) if name.endswith(HISTORY_SUFFIX) else None
        if decision.target_topic and (target.dead_of or (source is not None and source.config.history)):
            return f"only the broker writes to {name}"
        partition = decision.partition_override
        if partition is None:
            partition = envelope.partition_override if decision.target_topic else None
        if partition is not None and partition >= len(target.log_ids):
            return f"topic {name} has no partition {partition}"
        return ""

    async def ask(self, message: RouteInput) -> RouterVerdict:
        """Call the router for one message, within the time limit. `/v1/route` uses it too, to show a decision."""
        if self.router.inline:
            return self._call_inline(message)
        start_s = time.perf_counter()
        try:
            async with asyncio.timeout(self.timeout_ms / 1_000), self._slots:
                decision = await cast(Awaitable[RouteDecision | None], self.router.route(message))
        except Exception as error:
            return self._recorded(_failure(error, self.timeout_ms), start_s)
        return self._recorded(self._checked(message.topic, message.envelope, decision), start_s)

    def _recorded(self, verdict: RouterVerdict, start_s: float) -> RouterVerdict:
        self.results[verdict.result] += 1
        self.seconds.observe(time.perf_counter() - start_s)
        if verdict.error:
            self._rate_limited.warn(verdict.result, "a message was not routed: %s", verdict.error)
        return verdict

    # --- keys ---

    def known(self, scope: ProduceKey) -> ProducedKey | None:
        """Where the first message of this key went, if its log still exists."""
        first = self._engine.latest_state.keys.of(scope, self._engine.now_ms())
        return first if first is not None and first.log_id in self._engine.latest_state.logs else None

    def _as_first(self, item: ProduceItem, first: ProducedKey) -> RoutedItem:
        """To the partition of the first message, where the broker recognises the duplicate."""
        log = self._engine.latest_state.logs[first.log_id]
        envelope = item.envelope or Envelope()
        envelope = msgspec.structs.replace(envelope, target_topic=log.topic, partition_override=log.partition)
        return RoutedItem(msgspec.structs.replace(item, envelope=envelope))

    async def close(self) -> None:
        await self.router.close()


def scope_of(topic: str, item: ProduceItem) -> ProduceKey | None:
    """The idempotency scope of a message: (tenant, requested topic, key); None if it has no key."""
    envelope = item.envelope or Envelope()
    key = envelope.idempotency_key or (job_key(item.id) if item.id else "")
    return ProduceKey(envelope.tenant_id, topic, key) if key else None


def applied(item: ProduceItem, verdict: RouterVerdict) -> RoutedItem:
    """The message with a decision. Each control of the router (topic, partition) overrides the envelope's."""
    decision = verdict.decision
    if decision is None:
        return RoutedItem(
            item, Routing("", {ERROR: verdict.error[:ERROR_MAX]}) if verdict.result == "invalid" else None
        )
    changes: dict[str, str | int] = {}
    if decision.target_topic:
        changes["target_topic"] = decision.target_topic
    if decision.partition_override is not None:
        changes["partition_override"] = decision.partition_override
    if changes:
        envelope = msgspec.structs.replace(item.envelope or Envelope(), **changes)
        item = msgspec.structs.replace(item, envelope=envelope)
    routing = Routing(decision.label, decision.meta or None) if decision.label or decision.meta else None
    return RoutedItem(item, routing)


def _message(topic: str, item: ProduceItem) -> RouteInput | None:
    """What the router gets; None for a malformed message, which the handler refuses."""
    try:
        return RouteInput(topic, value_of(item), item.key, item.envelope, item.task)
    except BadRequest:
        return None


def _failure(error: Exception, timeout_ms: int) -> RouterVerdict:
    if isinstance(error, BadRouteDecision):
        return RouterVerdict("invalid", error=f"the router's decision is invalid: {error}")
    if isinstance(error, TimeoutError):
        return RouterVerdict("timeout", error=f"the router did not answer within {timeout_ms} ms")
    return RouterVerdict("error", error=f"the router failed: {type(error).__name__}: {error}")


class _Relay:
    """Passes the result of one deferred reply to another."""

    def __init__(self, answer: Deferred) -> None:
        self._answer = answer

    def set_reply(self, reply: Reply) -> None:
        self._answer.resolve(reply)

    def set_error(self, error: BaseException) -> None:
        self._answer.fail(error)


def _relay(inner: Answer, outer: Deferred) -> None:
    if isinstance(inner, Deferred):
        inner.bind(_Relay(outer))
    else:
        assert isinstance(inner, REPLIES), "the answer of a produce needs no task"
        outer.resolve(inner)


def _error_of(done: asyncio.Task[None]) -> BaseException | None:
    return asyncio.CancelledError("the server is stopping") if done.cancelled() else done.exception()
