"""The inbox table of effects, in the user's own transaction."""

from __future__ import annotations

import sqlite3

import pytest

import driftq
from driftq.client import effects
from driftq.client.claims import LeaseHolder
from driftq.client.message import MessageMethods
from driftq.wire.claims import Delivered
from driftq.wire.message import Envelope


def message(offset: int, key: str = "") -> MessageMethods:
    claimed = MessageMethods()
    claimed.holder = LeaseHolder("orders", "billing", "me")
    claimed.delivered = Delivered(0, offset, envelope=Envelope(idempotency_key=key) if key else None)
    return claimed


@pytest.fixture
def connection(tmp_path):
    connection = sqlite3.connect(tmp_path / "shop.db")
    connection.execute("CREATE TABLE charges (id TEXT)")
    connection.commit()
    effects.sql(connection).create()
    yield connection
    connection.close()


def charges(connection) -> int:
    return connection.execute("SELECT count(*) FROM charges").fetchone()[0]


def charge_and_fail(connection) -> None:
    connection.execute("INSERT INTO charges VALUES ('x')")
    raise RuntimeError("boom")


def test_a_message_that_comes_twice_has_its_effect_once(connection):
    inbox = effects.sql(connection)
    for delivered in (message(1), message(1), message(2), message(9, "pay-7"), message(10, "pay-7")):
        with inbox.once(delivered) as fresh:
            if fresh:
                connection.execute("INSERT INTO charges VALUES ('x')")
    assert charges(connection) == 3


def test_an_effect_that_fails_leaves_no_key_behind(connection):
    inbox = effects.sql(connection)
    with pytest.raises(RuntimeError), inbox.once("k"):
        charge_and_fail(connection)
    assert charges(connection) == 0
    with inbox.once("k") as fresh:
        assert fresh


def test_two_groups_do_not_take_each_others_keys(connection):
    inbox = effects.sql(connection)
    other = message(1)
    other.holder = LeaseHolder("orders", "shipping", "me")
    assert inbox.first(message(1))
    assert inbox.first(other)
    assert not inbox.first(message(1))


def test_old_keys_are_forgotten(connection):
    inbox = effects.sql(connection, ttl_ms=-1)
    assert inbox.first("old")
    assert inbox.purge() == 1
    assert inbox.first("old")
    keeping = effects.sql(connection)
    assert keeping.purge() == 0


def test_the_callers_own_transaction_is_enough(connection):
    inbox = effects.sql(connection)
    with connection:
        assert inbox.first("k")
        connection.execute("INSERT INTO charges VALUES ('x')")
    with connection:
        assert not inbox.first("k")
    assert charges(connection) == 1


def test_a_connection_that_commits_by_itself_is_refused(tmp_path):
    connection = sqlite3.connect(tmp_path / "auto.db", isolation_level=None)
    inbox = effects.sql(connection)
    inbox.create()
    with pytest.raises(driftq.errors.InvalidCall, match="transaction"):
        inbox.first("k")
    connection.execute("BEGIN")
    assert inbox.first("k")
    connection.execute("COMMIT")
    connection.close()


def test_what_is_no_connection_or_no_table_is_refused(connection):
    with pytest.raises(driftq.errors.InvalidCall, match="sqlite3, psycopg or SQLAlchemy"):
        effects.sql(object())
    with pytest.raises(driftq.errors.InvalidCall):
        effects.sql(connection, table="x; DROP TABLE charges")
