"""The engine as a tenant sees it: every command gets the broker's names on its way in, every reply the tenant's on its
way out, and quotas are charged in between.

    handler ──command──▶ quotas ──▶ names in ──▶ Engine ──▶ names out ──reply──▶ handler
                 └─ over a quota: refused, nothing is submitted

The handlers of a tenant are the same as everyone's, over this engine instead of the real one. So they cannot name
anything outside of the namespace, whatever they do. Like `TenantState`, this has only what is listed here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from driftq.core.model.access import NarrowAccessToken, RevokeAccessToken, RotateAccessToken
from driftq.core.transitions.lookups import no_such_token
from driftq.engine.waiters import claim_or_wait
from driftq.server.tenants.names import TenantNames, UnknownField
from driftq.server.tenants.state import TenantState

if TYPE_CHECKING:
    from driftq.core.context import LogReader
    from driftq.core.model.commands import Claim, Command
    from driftq.core.model.limits import BrokerLimits
    from driftq.core.model.replies import Claimed, Rejected, Reply
    from driftq.core.state.state import State
    from driftq.engine.engine import Engine
    from driftq.engine.queries import StateView
    from driftq.server.tenants.quotas import TenantMeter

T = TypeVar("T")

_OF_A_TOKEN = (NarrowAccessToken, RotateAccessToken, RevokeAccessToken)


class TenantView:
    """What a query of a tenant may look at."""

    __slots__ = ("_names", "_view", "limits", "now_ms", "reader", "state")

    def __init__(self, view: StateView, state: TenantState, names: TenantNames) -> None:
        self._view = view
        self._names = names
        self.state = cast("State", state)
        self.reader: LogReader = view.reader
        self.limits: BrokerLimits = view.limits
        self.now_ms = view.now_ms

    def decide(self, command: Command) -> Reply:
        return self._names.outward(self._view.decide(self._names.inward(command)))


class TenantQueries:
    """The queries of one tenant."""

    def __init__(self, engine: Engine, state: TenantState, names: TenantNames) -> None:
        self._queries = engine.queries
        self._state = state
        self._names = names
        self.limits = engine.queries.limits
        self.offset_at = engine.queries.offset_at
        self.stored_end = engine.queries.stored_end

    def run(
        self,
        look: Callable[[StateView], T],
        on_response: Callable[[T], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        self._queries.run(partial(self._look, look), on_response, on_error)

    async def result(self, look: Callable[[StateView], T]) -> T:
        return await self._queries.result(partial(self._look, look))

    def _look(self, look: Callable[[StateView], T], view: StateView) -> T:
        return look(cast("StateView", TenantView(view, self._state, self._names)))


class TenantEngine:
    """The engine of one tenant."""

    def __init__(self, engine: Engine, names: TenantNames, meter: TenantMeter) -> None:
        self._engine = engine
        self._names = names
        self._meter = meter
        self._state = TenantState(engine.latest_state, names)
        self.latest_state = cast("State", self._state)
        self.queries = TenantQueries(engine, self._state, names)
        # By log and by group, which come from the state; time, and the loop.
        self.watch = engine.watch
        self.read = engine.read
        self.read_cold = engine.read_cold
        self.cold_reads = engine.cold_reads
        self.unpack = engine.unpack
        self.durable_end = engine.durable_end
        self.now_ms = engine.now_ms
        self.read_clock = engine.read_clock
        self.monitor = engine.monitor
        self.stopped = engine.stopped
        self.report = engine.report

    def submit_to(self, command: Command, on_reply: Callable[[Reply], None]) -> None:
        """As `Engine.submit_to`. A command over a quota is refused here, a moment later: a caller that repeats it at
        once gains nothing, and takes little of the loop from others."""
        refused = self._refusal(command) or self._meter.charge(command)
        if refused is not None:
            self._meter.refusals.add(partial(on_reply, refused))
            return
        outward = self._names.outward
        self._engine.submit_to(self._names.inward(command), lambda reply: on_reply(outward(reply)))

    def submit(self, command: Command) -> asyncio.Future[Reply]:
        refused = self._refusal(command) or self._meter.charge(command)
        call: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        if refused is not None:
            self._meter.refusals.add(partial(_resolve, call, refused))
            return call
        self._engine.submit(self._names.inward(command)).add_done_callback(partial(self._pass_on, call))
        return call

    def _pass_on(self, call: asyncio.Future[Reply], done: asyncio.Future[Reply]) -> None:
        if call.done():
            return
        if done.cancelled():
            call.cancel()
        elif (error := done.exception()) is not None:
            call.set_exception(error)
        else:
            call.set_result(self._names.outward(done.result()))

    def produce_to(self, *_: Any) -> None:
        raise UnknownField("a message without an envelope has no tenant: use submit_to")

    def claim_to(self, command: Claim, on_reply: Callable[[Claimed | Rejected], None]) -> None:
        self._engine.claim_to(self._names.inward(command), lambda reply: on_reply(self._names.outward(reply)))

    async def claim(self, command: Claim, wait_ms: int = 0) -> Claimed | Rejected:
        return await claim_or_wait(cast("Engine", self), command, wait_ms)

    def _refusal(self, command: Command) -> Rejected | None:
        if isinstance(command, _OF_A_TOKEN) and command.token_id not in self._state.access_tokens.by_id:
            return no_such_token(command.token_id)
        return None


def _resolve(call: asyncio.Future[Reply], reply: Reply) -> None:
    if not call.done():
        call.set_result(reply)
