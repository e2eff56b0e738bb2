"""Outcomes: acks, messages, stream appends and committed effects in one write. All of it happens, or nothing.

with message.outcome() as outcome:
    outcome.send("receipts", {"order": 7})
    outcome.append("runs/7", "charged")
"""

from __future__ import annotations

import base64
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from driftq.client import trace
from driftq.client.calls import queue, streams
from driftq.client.claims import ClaimedMessage, ack_part
from driftq.client.endpoint import AsyncApi, SyncApi, bound_endpoint
from driftq.client.transport.sansio import Call, random_name
from driftq.wire.effects import CommitRequest, OutcomeAppend

if TYPE_CHECKING:
    from driftq.client.calls.queue import Value
    from driftq.client.transport.async_transport import AsyncTransport
    from driftq.client.transport.http import HttpReply
    from driftq.client.transport.sync_transport import Transport
    from driftq.wire.produce import ProduceItem


class SettledMessage(ClaimedMessage, Protocol):
    """A message that remembers that it was settled."""

    def mark_settled(self) -> None: ...


class OutcomeMethods:
    """Collects parts; `commit` writes them."""

    def __init__(self) -> None:
        self._acked: list[SettledMessage] = []
        self._messages: list[tuple[str, ProduceItem]] = []
        self._appends: list[OutcomeAppend] = []
        self._commits: list[CommitRequest] = []
        self._idempotency_key = random_name()

    def ack(self, message: SettledMessage) -> Self:
        self._acked.append(message)
        return self

    def send(self, topic: str, value: Value, **options: Any) -> Self:
        """A message to produce; options as in `send`."""
        if trace.active is not None:
            options["envelope"] = trace.active.created(topic, options.get("envelope"))
        self._messages.append((topic, queue.item(value, **options)))
        return self

    def append(
        self, path: str, value: Value = b"", *, content_type: str = "application/octet-stream", close: bool = False
    ) -> Self:
        """An append to a stream, at most one for each path. In a JSON stream the value is one message; bytes must be
        JSON already."""
        empty = close and isinstance(value, bytes) and not value
        raw = b"" if empty else streams.body_of(content_type, [value])
        value_base64 = base64.b64encode(raw).decode("ascii")
        self._appends.append(
            OutcomeAppend(path.strip("/"), value_base64=value_base64, content_type=content_type, close=close)
        )
        return self

    def commit_effect(self, **commit: Any) -> Self:
        """An effect that is done; see `Effect`."""
        self._commits.append(CommitRequest(**commit))
        return self

    @bound_endpoint
    def commit(self) -> Call[dict[str, Any]]:
        """Write all parts, or none."""
        call = queue.outcome(
            acks=[ack_part(message) for message in self._acked],
            produce=self._messages,
            streams=self._appends,
            commits=self._commits,
            # Acks and commits are fenced, which makes a repeat harmless. Without them the outcome needs a key.
            idempotency_key="" if self._acked or self._commits else self._idempotency_key,
        )
        acked = self._acked

        def read(reply: HttpReply) -> dict[str, Any]:
            for message in acked:
                message.mark_settled()
            return call.read(reply)

        return Call("POST", call.path, read, refusal=call.refusal, body=call.body, idempotent=call.idempotent)


class Outcome(OutcomeMethods, SyncApi):
    """`with outcome:` commits at the end, unless something was raised."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        super().__init__()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is None:
            self.commit()


class AsyncOutcome(OutcomeMethods, AsyncApi):
    """`async with outcome:` commits at the end, unless something was raised."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport
        super().__init__()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is None:
            await self.commit()
