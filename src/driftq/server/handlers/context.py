"""What every handler shares: the engine, the settings, and the way from a command to a response."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from driftq.core.model.replies import Rejected, Reply
from driftq.server.access.rates import TenantRates
from driftq.server.handlers.codec import refusal
from driftq.server.http.response import Deferred
from driftq.server.http.response import Reply as HttpReply
from driftq.server.outbound.client import OutboundClient
from driftq.server.worker_registry import WorkerRegistry
from driftq.wire.produce import ANY, ProduceItem

if TYPE_CHECKING:
    from driftq.core.model.commands import Command
    from driftq.engine.engine import Engine
    from driftq.engine.queries import StateView
    from driftq.server.http import Response
    from driftq.server.metrics.registry import Metrics
    from driftq.server.router.caller import RouterCaller
    from driftq.server.settings import Settings
    from driftq.wire.message import Envelope


class Context:
    """The engine and the settings of one server; the router and the metrics, if there are any."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        router: RouterCaller | None = None,
        metrics: Metrics | None = None,
        outbound: OutboundClient | None = None,
        workers: WorkerRegistry | None = None,
    ) -> None:
        self.engine = engine
        self.settings = settings
        self.router = router
        self.metrics = metrics
        self.outbound = outbound or OutboundClient(settings)
        self.rates = TenantRates(settings.tenants)
        self.workers = workers if workers is not None else WorkerRegistry(time.monotonic)
        self._round_robin = PartitionRoundRobin()

    def ask(
        self,
        command: Command,
        respond: Callable[[Any], Response],
        refuse: Callable[[Rejected], Response] = refusal,
    ) -> Deferred:
        """Submit a command. A refusal becomes an error through `refuse`, any other reply a response through
        `respond`."""
        answer = Deferred()
        self.engine.submit_to(
            command, responder(answer, lambda reply: refuse(reply) if type(reply) is Rejected else respond(reply))
        )
        return answer

    def query(self, look: Callable[[StateView], Response]) -> Deferred:
        """Respond from the current state, once that state is durable."""
        answer = Deferred()
        self.engine.queries.run(look, answer.resolve)
        return answer

    def hold(self, response: Response) -> Deferred:
        """A refusal that was read from the latest state: send it once that state is durable."""
        return self.query(lambda _: response)

    def charge(self, envelope: Envelope | None, messages: int, size_bytes: int) -> Rejected | None:
        """Count a produce against its tenant's rates."""
        if not self.rates.active:
            return None
        tenant = envelope.tenant_id if envelope is not None else ""
        rejected = self.rates.take(tenant, messages, size_bytes, self.engine.now_ms())
        if rejected is not None and self.metrics is not None:
            self.metrics.counts.refusals[rejected.code] += 1
            self.metrics.counts.produce_refused(rejected)
        return rejected

    def any_partition(self, topic: str, item: ProduceItem, sticky: dict[str, int] | None = None) -> int | None:
        """The partition of a message without a key that asks for any; None if the key's hash or partition 0 decides.

        `sticky` holds one partition for each topic: all messages of one request without a key share it, whether they
        ask for any partition or not.
        """
        if item.key or (sticky is None and item.partition != ANY):
            return None
        envelope = item.envelope
        target = (envelope.target_topic if envelope is not None else "") or topic
        if sticky is not None and target in sticky:
            return sticky[target]
        state = self.engine.latest_state.topics.get(target)
        if state is None:
            return None  # the broker refuses the message
        partition = self._round_robin.next(target, len(state.log_ids))
        if sticky is not None:
            sticky[target] = partition
        return partition


def responder(answer: Deferred, respond: Callable[[Any], HttpReply | None]) -> Callable[[Reply], None]:
    """The callback of a submitted command: answer with what `respond` makes of the reply, or not yet (None).

    An exception becomes this request's error. It must not reach the engine, which is delivering the replies of other
    requests in the same loop.
    """

    def on_reply(reply: Reply) -> None:
        try:
            response = respond(reply)
        except Exception as error:
            answer.fail(error)
            return
        if response is not None:
            answer.resolve(response)

    return on_reply


class PartitionRoundRobin:
    """The next partition of each topic, for messages without a key. Each topic starts at random, so that servers that
    restart often still use all partitions."""

    TOPICS_MAX = 10_000  # then it forgets all topics and starts again

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def next(self, topic: str, partitions: int) -> int:
        last = self._last.get(topic)
        if last is None:
            if len(self._last) >= self.TOPICS_MAX:
                self._last.clear()
            last = random.randrange(partitions)
        partition = self._last[topic] = (last + 1) % partitions
        return partition
