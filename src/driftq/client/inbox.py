"""An inbox table in the user's own database: the key of a message and the effect commit together, or not at all.

    inbox = effects.sql(connection)
    with inbox.once(message) as fresh:
        if fresh:
            connection.execute("UPDATE accounts SET balance = balance - 5 WHERE id = 1")

Works with sqlite3, psycopg and SQLAlchemy (a connection or a session), without importing any of them.
"""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from driftq.client.errors import InvalidCall

if TYPE_CHECKING:
    from driftq.client.message import MessageWords

DAY_MS = 24 * 3_600_000
PURGE_EVERY = 1_000
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?", re.ASCII)
_IDLE = 0  # psycopg's TransactionStatus.IDLE
_MARKS = {"sqlalchemy": ":scope, :key, :at_ms", "psycopg": "%s, %s, %s", "sqlite3": "?, ?, ?"}


def sql(connection: Any, *, table: str = "driftq_inbox", ttl_ms: int = 7 * DAY_MS) -> Inbox:
    """The inbox of a connection. Keep keys for longer than a message can come again; purging is done now and then."""
    return Inbox(connection, table, ttl_ms)


class Inbox:
    """Keys of messages whose effects are in this database."""

    def __init__(self, connection: Any, table: str, ttl_ms: int) -> None:
        if not _NAME.fullmatch(table):
            raise InvalidCall(f"{table!r} is not the name of a table")
        self._connection = connection
        self._table = table
        self._ttl_ms = ttl_ms
        self._kind = _kind(connection)
        self._marks = _MARKS[self._kind]
        # There is no other way to its connections, and it is there, since this is one of them.
        self._text = importlib.import_module("sqlalchemy").text if self._kind == "sqlalchemy" else None
        self._used = 0

    def create(self) -> None:
        """Make the table, if it is not there. Once, at deployment or start; commits."""
        self._run(
            f"CREATE TABLE IF NOT EXISTS {self._table} "
            "(scope TEXT NOT NULL, key TEXT NOT NULL, at_ms BIGINT NOT NULL, PRIMARY KEY (scope, key))"
        )
        self._connection.commit()

    def first(self, message: MessageWords | str, scope: str = "") -> bool:
        """Note a message's key in the transaction that is open, or opens now. False: its effect is here already.

        A second worker with the same key waits here until the first has committed or rolled back.
        """
        self._refuse_autocommit()
        if isinstance(message, str):
            key = message
        else:
            key, scope = message.effect_key, scope or f"{message.topic}/{message.group}"
        self._used += 1
        if self._used % PURGE_EVERY == 0:
            self.purge()
        done = self._run(
            f"INSERT INTO {self._table} (scope, key, at_ms) VALUES ({self._marks}) ON CONFLICT DO NOTHING",
            scope, key, _now_ms(),
        )  # fmt: skip
        return bool(done.rowcount)

    @contextmanager
    def once(self, message: MessageWords | str, scope: str = "") -> Iterator[bool]:
        """A transaction around an effect: commits at the end, rolls back when something is raised."""
        try:
            yield self.first(message, scope)
        except BaseException:
            self._connection.rollback()
            raise
        self._connection.commit()

    def purge(self) -> int:
        """Forget keys older than the TTL; part of the transaction that is open."""
        mark = self._marks.rpartition(", ")[2]
        done = self._run(f"DELETE FROM {self._table} WHERE at_ms < {mark}", _now_ms() - self._ttl_ms)
        return max(0, int(done.rowcount))

    def _run(self, statement: str, *values: object) -> Any:
        if self._text is None:
            return self._connection.execute(statement, values)
        names = [name[1:] for name in re.findall(r":\w+", statement)]
        return self._connection.execute(self._text(statement), dict(zip(names, values, strict=True)))

    def _refuse_autocommit(self) -> None:
        """Each statement by itself would be no transaction, and no protection."""
        connection = self._connection
        match self._kind:
            case "sqlite3":
                alone = connection.isolation_level is None and not connection.in_transaction
            case "psycopg":
                alone = connection.autocommit and connection.info.transaction_status == _IDLE
            case _:
                alone = False  # SQLAlchemy begins a transaction by itself
        if alone:
            raise InvalidCall("the connection commits by itself; begin a transaction, so that key and effect are one")


def _kind(connection: Any) -> str:
    packages = {kind.__module__.partition(".")[0] for kind in type(connection).__mro__}
    for name in _MARKS:
        if name in packages:
            return name
    raise InvalidCall(f"an inbox needs a connection of sqlite3, psycopg or SQLAlchemy, not {type(connection)!r}")


def _now_ms() -> int:
    return int(time.time() * 1_000)
