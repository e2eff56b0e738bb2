"""What every handler shares: the engine, the settings, and the way from a command to a response."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from msgspec.structs import replace

from driftq.core.model.replies import Rejected, Reply
from driftq.server.handlers.codec import refusal
from driftq.server.http.response import Deferred
from driftq.server.http.response import Reply as HttpReply
from driftq.server.outbound.client import OutboundClient
from driftq.server.tenants.rates import TenantRates
from driftq.server.worker_registry import WorkerRegistry
from driftq.storage.cold_segments import ColdRange
from driftq.wire.namespaces import Namespace
from driftq.wire.produce import ANY, ProduceItem

if TYPE_CHECKING:
    from driftq.core.model.commands import Command
    from driftq.engine.cold_reads import RecordsAway
    from driftq.engine.engine import Engine
    from driftq.engine.queries import StateView
    from driftq.server.access.signing_keys import SigningKeys
    from driftq.server.access.trail import AuditTrail
    from driftq.server.http import Answer, Request, Response
    from driftq.server.metrics.registry import Metrics
    from driftq.server.observation.observers import Observers
    from driftq.server.router.caller import RouterCaller
    from driftq.server.settings import Settings
    from driftq.server.tenants.apps import TenantApps
    from driftq.server.tracer import BrokerTracer
    from driftq.wire.message import Envelope


T = TypeVar("T")
C = TypeVar("C", bound="Command")


class Context:
    """The engine and the settings of one server, and what its handlers share; the router, if there is one."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        router: RouterCaller | None = None,
        metrics: Metrics | None = None,
        outbound: OutboundClient | None = None,
        workers: WorkerRegistry | None = None,
        observers: Observers | None = None,
        tracer: BrokerTracer | None = None,
        tenant: str = "",
        root: Context | None = None,
        apps: TenantApps | None = None,
    ) -> None:
        """The context of a tenant has an engine that sees only the tenant's names; `root` is everyone's."""
        self.tenant = tenant
        self.space = Namespace(tenant)
        self.apps = apps  # of tenants, for what operators see of them; None if callers have no identity
        self.root_engine: Engine = root.root_engine if root is not None else engine
        self.engine = engine
        self.settings = settings
        self.router = router
        self.metrics = metrics
        self._observers = observers
        self.outbound = outbound or OutboundClient(settings)
        self.rates: TenantRates = (
            root.rates if root is not None else TenantRates(settings.tenants, lambda: engine.latest_state.tenants)
        )
        self.workers = workers if workers is not None else WorkerRegistry(time.monotonic)
        self.origins: Mapping[str, str] = {}  # where settings that are no defaults come from
        self.tracer = tracer  # None: no spans are made
        # Of short-lived tokens; None: callers are not authenticated.
        self.keys: SigningKeys | None = root.keys if root is not None else None
        self.audit: AuditTrail | None = root.audit if root is not None else None
        self._round_robin = PartitionRoundRobin()
        self._shared: dict[type, Any] = root._shared if root is not None else {}  # what exists once, by type

    @property
    def observers(self) -> Observers:
        """What observes this server."""
        assert self._observers is not None, "`routes` sets it"
        return self._observers

    def complete(self, observers: Callable[[], Observers]) -> None:
        """Take what a server has and a test may lack."""
        self._observers = self._observers or observers()
        self.metrics = self._observers.metrics

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
            command, self.responder(answer, lambda reply: refuse(reply) if type(reply) is Rejected else respond(reply))
        )
        return answer

    def audited(self, request: Request, command: C, name: str, action: str = "", **details: object) -> C:
        """The command with what the audit records of it, in the same frame. `name` is what it changes, `details` how;
        the action is that of the route unless it is named."""
        if self.audit is None:
            return command
        return replace(command, audit=self.audit.note(request, action, name, details))

    def noted(self, request: Request, name: str, respond: Callable[[], HttpReply]) -> Answer:
        """Do something that no command does, after the audit has a record of it."""
        if self.audit is None:
            return respond()
        answer = Deferred()
        note = self.audit.note(request, "", name, {})
        self.audit.done(
            note, responder(answer, lambda reply: refusal(reply) if isinstance(reply, Rejected) else respond())
        )
        return answer

    def close(self) -> None:
        """Record what waits for it, before the engine closes."""
        if self.audit is not None:
            self.audit.close()

    def responder(self, answer: Deferred, respond: Callable[[Any], HttpReply | None]) -> Callable[[Reply], None]:
        """`responder` for a response that is made of records: it is made again when those are here that are only in
        the archive."""
        cold_reads = self.engine.cold_reads
        if cold_reads is None:
            return responder(answer, respond)

        def on_reply(reply: Reply, away: RecordsAway | None = None) -> None:
            try:
                if away is not None:
                    raise away
                response = respond(reply)
            except ColdRange as cold:
                cold_reads.fetch(cold, partial(on_reply, reply))
            except Exception as error:
                answer.fail(error)
            else:
                if response is not None:
                    answer.resolve(response)

        return on_reply

    def query(self, look: Callable[[StateView], Response]) -> Deferred:
        """Respond from the current state, once that state is durable."""
        answer = Deferred()
        self.engine.queries.run(look, answer.resolve, answer.fail)
        return answer

    def hold(self, response: Response) -> Deferred:
        """A refusal that was read from the latest state: send it once that state is durable."""
        return self.query(lambda _: response)

    def once(self, kind: type[T], make: Callable[[], T]) -> T:
        """What all contexts of a server share, such as what follows the facts of all logs."""
        shared = self._shared.get(kind)
        if shared is None:
            shared = self._shared[kind] = make()
        return cast(T, shared)

    def charge(self, envelope: Envelope | None, messages: int, size_bytes: int) -> Rejected | None:
        """Count a produce against the rates of the tenant that its envelope names. The engine of a tenant counts by
        itself."""
        if self.tenant or not self.rates.active:
            return None
        tenant = envelope.tenant_id if envelope is not None else ""
        rejected = self.rates.take(
            tenant, {"messages_per_s": messages, "bytes_per_s": size_bytes}, self.engine.now_ms()
        )
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
