"""What every face shares: the engine, the settings, and the way from a command to a response.

`ask` is the hot path: it submits a command and answers when the reply is durable, without a task. `query` answers from
the state, in the same way. Nothing else may answer from the state: `tests/tidy/test_reads.py` sees to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import json

from driftq.core.commands import Command
from driftq.core.replies import Rejected, Reply
from driftq.engine.engine import Engine
from driftq.engine.queries import StateView
from driftq.server.http import Deferred, Response
from driftq.server.outbound import Outbound
from driftq.server.problems import refusal
from driftq.server.rates import Rates
from driftq.server.settings import Settings
from driftq.server.spread import ANY, PartitionSpread
from driftq.wire.message import Envelope
from driftq.wire.queue import ProduceItem

if TYPE_CHECKING:
    from driftq.server.metrics import Metrics
    from driftq.server.routing.asking import Asker

_encode = json.Encoder().encode


class Context:
    """The engine and the settings of one server; the router and the metrics, if there are any."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        router: Asker | None = None,
        metrics: Metrics | None = None,
        outbound: Outbound | None = None,
    ) -> None:
        self.engine = engine
        self.settings = settings
        self.router = router
        self.metrics = metrics
        self.outbound = outbound or Outbound(settings)
        self.rates = Rates(settings.tenants)
        self.spread = PartitionSpread()

    def any_partition(self, requested: str, item: ProduceItem, sticky: dict[str, int] | None = None) -> int | None:
        """The partition of a message that has no key and asks for any; None leaves it to the rule of the key. With
        `sticky` the messages of one request share a partition, also those that do not ask themselves."""
        if item.key or (sticky is None and item.partition != ANY):
            return None
        envelope = item.envelope
        target = (envelope.target_topic if envelope is not None else "") or requested
        if sticky is not None and target in sticky:
            return sticky[target]
        topic = self.engine.latest_state.topics.get(target)
        if topic is None:
            return None  # the broker refuses it
        partition = self.spread.next(target, len(topic.log_ids))
        if sticky is not None:
            sticky[target] = partition
        return partition

    def charge(self, envelope: Envelope | None, messages: int, size_bytes: int) -> Rejected | None:
        """Count a produce against its tenant's rates."""
        if not self.rates.active:
            return None
        tenant = envelope.tenant_id if envelope is not None else ""
        refused = self.rates.take(tenant, messages, size_bytes, self.engine.now_ms())
        if refused is not None and self.metrics is not None:
            self.metrics.counts.refusals[refused.code] += 1
            self.metrics.counts.produce_refused(refused)
        return refused

    def ask(self, command: Command, respond: Callable[[Any], Response]) -> Deferred:
        """Submit; a refusal becomes its problem, everything else goes through `respond`."""
        answer = Deferred()

        def on_reply(reply: Reply) -> None:
            try:
                response = refusal(reply) if type(reply) is Rejected else respond(reply)
            except Exception as error:
                answer.fail(error)
            else:
                answer.resolve(response)

        self.engine.submit_to(command, on_reply)
        return answer

    def query(self, look: Callable[[StateView], Response]) -> Deferred:
        """Answer from the state as it is now, once that is durable."""
        answer = Deferred()
        self.engine.queries.run(look, answer.resolve)
        return answer

    def hold(self, response: Response) -> Deferred:
        """A refusal that was read from the latest state: it leaves once that is durable."""
        return self.query(lambda _: response)


def json_response(value: object, status: int = 200) -> Response:
    return Response(status, _encode(value) + b"\n")


def no_content(_: object = None) -> Response:
    return Response(204)
