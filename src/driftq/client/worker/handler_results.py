"""What a handler can say about its message by raising: later, never, not me. Returning means done."""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from driftq.client.calls import queue
from driftq.client.errors import Busy, InvalidCall, code_of, refused
from driftq.client.transport.sansio import Call

if TYPE_CHECKING:
    from driftq.client.message import MessageMethods
    from driftq.client.transport.http import HttpReply
    from driftq.wire.queue import Delivered, SettleReply
from typing import Generic, TypeVar

REASON_CHARACTERS_MAX = 500


class HandlerResult(Exception):
    """Base of what a handler raises on purpose."""


class Retry(HandlerResult):
    """Failed for now. Comes again after `after_ms`, or when the retry policy says so."""

    def __init__(self, after_ms: int | None = None, reason: str = "") -> None:
        super().__init__(reason or "retry")
        self.after_ms = after_ms
        self.reason = reason or "retry"


class Reject(HandlerResult):
    """Never again: the message becomes a dead letter at once."""

    def __init__(self, reason: str = "rejected") -> None:
        super().__init__(reason)
        self.reason = reason


class Release(HandlerResult):
    """Not my turn: somebody else may have it. Counts no attempt."""

    def __init__(self, after_ms: int | None = None) -> None:
        super().__init__("released")
        self.after_ms = after_ms


def reason_of(error: BaseException) -> str:
    """An error in one line, for `last_error`."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return text if len(text) <= REASON_CHARACTERS_MAX else text[: REASON_CHARACTERS_MAX - 1] + "…"


class AttemptEnd:
    """How a message ends: a verb of the wire and what goes with it. Equal ones share a call."""

    __slots__ = ("verb", "reason", "delay_ms")

    def __init__(self, verb: str, reason: str = "", delay_ms: int | None = None) -> None:
        self.verb = verb
        self.reason = reason
        self.delay_ms = delay_ms

    @property
    def key(self) -> tuple[str, str, int | None]:
        return self.verb, self.reason, self.delay_ms

    def words(self) -> dict[str, object]:
        """The fields of the call beyond the messages."""
        match self.verb:
            case "nack/batch":
                return {"reason": self.reason, "delay_ms": self.delay_ms}
            case "release":
                return {"delay_ms": self.delay_ms}
            case "reject":
                return {"reason": self.reason}
            case _:
                return {}


ACK = AttemptEnd("ack/batch")
RELEASE = AttemptEnd("release")


def ending_of(error: BaseException | None) -> AttemptEnd:
    """Return = ack, raise = retry, and what the verdicts say."""
    match error:
        case None:
            return ACK
        case Retry():
            return AttemptEnd("nack/batch", error.reason, error.after_ms)
        case Reject():
            return AttemptEnd("reject", error.reason)
        case Release():
            return AttemptEnd("release", delay_ms=error.after_ms)
        case Busy():
            return AttemptEnd("release", delay_ms=error.retry_after_ms)  # somebody works on it: nothing has failed
        case _:
            return AttemptEnd("nack/batch", reason_of(error))


# --- What a claim gives and how it is handed back: pure, for messages, workers and outcomes alike ---


class MessagePlace(NamedTuple):
    """Under which claim a message was taken."""

    topic: str
    group: str
    owner: str


class ClaimedMessage(Protocol):
    """Whatever was claimed and is not settled yet."""

    @property
    def place(self) -> MessagePlace: ...
    @property
    def delivered(self) -> Delivered: ...


def runs(messages: Iterable[ClaimedMessage]) -> list[dict[str, object]]:
    """Neighbours under one token are named together."""
    found: list[dict[str, object]] = []
    last = end = -1
    token = ""
    for message in messages:
        each = message.delivered
        if found and (each.partition, each.offset, each.token) == (last, end, token):
            end += 1
            found[-1]["end"] = end
            continue
        last, end, token = each.partition, each.offset + 1, each.token
        found.append({"partition": last, "offset": each.offset, "end": end, "token": token})
    return found


def settle(verb: str, messages: Sequence[ClaimedMessage], **more: object) -> Call[SettleReply]:
    """One call for messages of one group."""
    place = messages[0].place
    return queue.settle(verb, place.topic, place.group, place.owner, runs(messages), **more)


def settle_one(verb: str, message: ClaimedMessage, done: Callable[[], None], **more: object) -> Call[None]:
    """For one message: its refusal is the call's."""
    call = settle(verb, [message], **more)

    def read(reply: HttpReply) -> None:
        settled = call.read(reply)
        if settled.refused:
            first = settled.refused[0]
            raise refused(code_of(first.error, 409), first.message, 409)
        done()

    return Call("POST", call.path, read, refusal=call.refusal, body=call.body, repeatable=True)


def ack_part(message: ClaimedMessage) -> dict[str, object]:
    """An ack as a part of an outcome."""
    place = message.place
    return {"topic": place.topic, "group": place.group, "owner": place.owner, "messages": runs([message])}


# --- An inbox table in the user's own database: the key of a message and the effect commit together, or not at all ---


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

    def first(self, message: MessageMethods | str, scope: str = "") -> bool:
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
    def once(self, message: MessageMethods | str, scope: str = "") -> Iterator[bool]:
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


# --- Messages that were claimed together and are handled one after the other: the leases of those that wait are
# renewed


RENEW_S = 1.0  # what waited for less than this has as good as its whole lease

H = TypeVar("H", bound=ClaimedMessage)


class Prefetched(Generic[H]):
    """What one claim gave, first come first served."""

    def __init__(self, messages: list[H], lease_ms: int | None, now_s: float) -> None:
        self.waiting = messages
        self._renew_s = min(RENEW_S, lease_ms / 3_000) if lease_ms is not None else RENEW_S
        self._renewed_s = now_s

    def is_due(self, now_s: float) -> bool:
        """Whether to extend `waiting` before the next message is handed out."""
        return bool(self.waiting) and now_s - self._renewed_s >= self._renew_s

    def renewed(self, reply: SettleReply, now_s: float) -> None:
        """Those whose lease was lost come again by themselves, here or elsewhere."""
        lost = {(each.partition, each.offset) for each in reply.refused}
        self.waiting = [each for each in self.waiting if (each.delivered.partition, each.delivered.offset) not in lost]
        self._renewed_s = now_s

    def next(self) -> H:
        return self.waiting.pop(0)
