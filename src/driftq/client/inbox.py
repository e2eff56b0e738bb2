"""An inbox table in the user's own database: a message's key and its effect commit in one transaction.

    inbox = effects.sql(connection)
    with inbox.once(message) as fresh:            # INSERT … ON CONFLICT DO NOTHING
        if fresh:                                 # the row is new: the effect did not happen yet
            connection.execute("UPDATE …")        # same transaction
                                                  # commit, or rollback if something was raised

A redelivered message finds its row and skips the effect. Works with connections of sqlite3, psycopg and SQLAlchemy.
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
    from driftq.client.message import MessageMethods

DAY_MS = 24 * 3_600_000
PURGE_EVERY = 1_000
_TABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?", re.ASCII)
_PSYCOPG_IDLE = 0  # psycopg's TransactionStatus.IDLE
_PLACEHOLDERS = {"sqlalchemy": ":scope, :key, :at_ms", "psycopg": "%s, %s, %s", "sqlite3": "?, ?, ?"}


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

    @contextmanager
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
