"""Effects outside the broker that should happen once.

    with message.effect() as effect:              # begin: was it done before?
        if effect.fresh:
            effect.result = gateway.charge(order, key=effect.key, fence=effect.fence)
            effect.send("receipts", order)
                                                  # commit + ack + messages, in one write

If the worker dies inside the block, the next delivery begins the effect again: pass `effect.key` or `effect.fence` to
the other side so that it can recognise a repeat. Effects in your own database are safer in its transaction. An inbox
table there holds the keys of messages, and a key commits together with its effect:

    inbox = effects.sql(connection)
    with inbox.once(message) as fresh:            # INSERT … ON CONFLICT DO NOTHING
        if fresh:                                 # the row is new: the effect did not happen yet
            connection.execute("UPDATE …")        # same transaction
                                                  # commit, or rollback if something was raised

A redelivered message finds its row and skips the effect. Works with connections of sqlite3, psycopg and SQLAlchemy.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import time
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from driftq.client.calls import queue
from driftq.client.claims import error_summary
from driftq.client.errors import DriftQError, InvalidCall
from driftq.client.outcome import AsyncOutcome, Outcome, OutcomeMethods

if TYPE_CHECKING:
    from driftq.client.calls.queue import Value
    from driftq.client.message import AsyncMessage, Message, MessageMethods
    from driftq.client.transport.sansio import Call
    from driftq.wire.effects import BeginReply


DAY_MS = 24 * 3_600_000
PURGE_EVERY = 1_000
_TABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?", re.ASCII)
_PSYCOPG_IDLE = 0  # psycopg's TransactionStatus.IDLE
_PLACEHOLDERS = {"sqlalchemy": ":scope, :key, :at_ms", "psycopg": "%s, %s, %s", "sqlite3": "?, ?, ?"}


class EffectMethods:
    """What both kinds of effect share. `fresh`: it was not done yet. `result`: what the first attempt returned."""

    fresh = False
    fence = 0
    result: Any = None

    def __init__(
        self, message: MessageMethods, outcome: OutcomeMethods, key: str, lease_ms: int | None, ttl_ms: int
    ) -> None:
        self.key = key
        self._message = message
        self._outcome = outcome
        self._lease_ms = lease_ms
        self._ttl_ms = ttl_ms

    def send(self, topic: str, value: Value, **options: Any) -> None:
        """A message that is produced with the commit, or not at all."""
        self._outcome.send(topic, value, **options)

    def append(self, path: str, value: Value, **options: Any) -> None:
        """An append to a stream that happens with the commit, or not at all."""
        self._outcome.append(path, value, **options)

    def _scope(self) -> dict[str, Any]:
        holder = self._message.holder
        return {"topic": holder.topic, "group": holder.group, "key": self.key}

    def _begin(self) -> Call[BeginReply]:
        message = self._message
        return queue.begin_effect(
            **self._scope(),
            owner=message.holder.owner,
            tenant=message.envelope.tenant_id,
            lease_ms=self._lease_ms,
            partition=message.partition,
            offset=message.offset,
            token=message.token,
        )

    def _on_begun(self, reply: BeginReply) -> None:
        self.fresh = reply.status == "begun"
        self.fence = reply.fence
        if reply.result:
            self.result = msgspec.json.decode(reply.result)

    def _fail(self, error: BaseException) -> Call[None]:
        return queue.fail_effect(
            **self._scope(), fence=self.fence, reason=error_summary(error), tenant=self._message.envelope.tenant_id
        )

    def _add_commit(self) -> None:
        """Add the effect's commit to the outcome."""
        result = msgspec.json.encode(self.result).decode() if self.result is not None else ""
        tenant = self._message.envelope.tenant_id
        self._outcome.commit_effect(
            **self._scope(), fence=self.fence, result=result, ttl_ms=self._ttl_ms, tenant_id=tenant
        )


class Effect(EffectMethods):
    """`with` begins and commits."""

    def __init__(self, message: Message, key: str, lease_ms: int | None, ttl_ms: int) -> None:
        self._transport = message._transport
        self._commit_outcome = Outcome(self._transport).ack(message)
        super().__init__(message, self._commit_outcome, key, lease_ms, ttl_ms)

    def __enter__(self) -> Self:
        self._on_begun(self._transport.execute(self._begin()))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if not self.fresh:
            return
        if error is None:
            self._add_commit()
            self._commit_outcome.commit()
        else:
            with contextlib.suppress(DriftQError):  # what was raised matters more; the lease ends by itself
                self._transport.execute(self._fail(error))


class AsyncEffect(EffectMethods):
    """`async with` begins and commits."""

    def __init__(self, message: AsyncMessage, key: str, lease_ms: int | None, ttl_ms: int) -> None:
        self._transport = message._transport
        self._commit_outcome = AsyncOutcome(self._transport).ack(message)
        super().__init__(message, self._commit_outcome, key, lease_ms, ttl_ms)

    async def __aenter__(self) -> Self:
        self._on_begun(await self._transport.execute(self._begin()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if not self.fresh:
            return
        if error is None:
            self._add_commit()
            await self._commit_outcome.commit()
        else:
            with contextlib.suppress(DriftQError):  # what was raised matters more; the lease ends by itself
                await self._transport.execute(self._fail(error))


def sql(connection: Any, *, table: str = "driftq_inbox", ttl_ms: int = 7 * DAY_MS) -> Inbox:
    """The inbox of a connection. `ttl_ms` must be longer than a message can be redelivered; older keys are purged."""
    return Inbox(connection, table, ttl_ms)


class Inbox:
    """The keys of the messages whose effects are in this database."""

    def __init__(self, connection: Any, table: str, ttl_ms: int) -> None:
        if not _TABLE_NAME.fullmatch(table):
            raise InvalidCall(f"{table!r} is not a valid table name")
        self._connection = connection
        self._table = table
        self._ttl_ms = ttl_ms
        self._driver = _driver_of(connection)
        self._placeholders = _PLACEHOLDERS[self._driver]
        # SQLAlchemy takes text() objects. It is installed, since this is one of its connections.
        self._text = importlib.import_module("sqlalchemy").text if self._driver == "sqlalchemy" else None
        self._inserts = 0

    def create(self) -> None:
        """Create the table if it does not exist, and commit. Call it once, at deployment or start."""
        self._execute(
            f"CREATE TABLE IF NOT EXISTS {self._table} "
            "(scope TEXT NOT NULL, key TEXT NOT NULL, at_ms BIGINT NOT NULL, PRIMARY KEY (scope, key))"
        )
        self._connection.commit()

    def first(self, message: MessageMethods | str, scope: str = "") -> bool:
        """Insert a message's key in the current transaction. False: the key exists, the effect has happened.

        A second worker with the same key blocks here until the first has committed or rolled back.
        """
        self._refuse_autocommit()
        if isinstance(message, str):
            key = message
        else:
            key, scope = message.effect_key, scope or f"{message.topic}/{message.group}"
        self._inserts += 1
        if self._inserts % PURGE_EVERY == 0:
            self.purge()
        inserted = self._execute(
            f"INSERT INTO {self._table} (scope, key, at_ms) VALUES ({self._placeholders}) ON CONFLICT DO NOTHING",
            scope, key, _now_ms(),
        )  # fmt: skip
        return bool(inserted.rowcount)

    @contextlib.contextmanager
    def once(self, message: MessageMethods | str, scope: str = "") -> Iterator[bool]:
        """A transaction around an effect: commits at the end, rolls back if something is raised."""
        try:
            yield self.first(message, scope)
        except BaseException:
            self._connection.rollback()
            raise
        self._connection.commit()

    def purge(self) -> int:
        """Delete keys older than the TTL, in the current transaction. Returns how many."""
        placeholder = self._placeholders.rpartition(", ")[2]
        deleted = self._execute(f"DELETE FROM {self._table} WHERE at_ms < {placeholder}", _now_ms() - self._ttl_ms)
        return max(0, int(deleted.rowcount))

    def _execute(self, statement: str, *values: object) -> Any:
        if self._text is None:
            return self._connection.execute(statement, values)
        names = [name[1:] for name in re.findall(r":\w+", statement)]
        return self._connection.execute(self._text(statement), dict(zip(names, values, strict=True)))

    def _refuse_autocommit(self) -> None:
        """With autocommit, key and effect would not commit together."""
        connection = self._connection
        match self._driver:
            case "sqlite3":
                autocommits = connection.isolation_level is None and not connection.in_transaction
            case "psycopg":
                autocommits = connection.autocommit and connection.info.transaction_status == _PSYCOPG_IDLE
            case _:
                autocommits = False  # SQLAlchemy begins a transaction by itself
        if autocommits:
            raise InvalidCall("the connection is in autocommit mode; begin a transaction, so that both commit together")


def _driver_of(connection: Any) -> str:
    packages = {kind.__module__.partition(".")[0] for kind in type(connection).__mro__}
    for name in _PLACEHOLDERS:
        if name in packages:
            return name
    raise InvalidCall(f"an inbox needs a connection of sqlite3, psycopg or SQLAlchemy, not {type(connection)!r}")


def _now_ms() -> int:
    return int(time.time() * 1_000)
