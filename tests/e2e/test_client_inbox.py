"""The inbox in a real Postgres, through psycopg and SQLAlchemy: key and effect commit together, or not at all."""

from __future__ import annotations

import threading

import psycopg
import pytest
import sqlalchemy

import driftq
from driftq.client import effects
from driftq.testing import memory_broker
from tests.support.postgres import postgres


@pytest.fixture(scope="module")
def address():
    with postgres() as address:
        yield address


@pytest.fixture
def connection(address):
    with psycopg.connect(address) as connection:
        connection.execute("DROP TABLE IF EXISTS charges, driftq_inbox")
        connection.execute("CREATE TABLE charges (id TEXT)")
        connection.commit()
        effects.sql(connection).create()
        yield connection


def charges(connection) -> int:
    return connection.execute("SELECT count(*) FROM charges").fetchone()[0]


def charge_and_fail(connection) -> None:
    connection.execute("INSERT INTO charges VALUES ('x')")
    raise RuntimeError("boom")


def test_redelivered_messages_have_their_effect_once_in_postgres(connection):
    inbox = effects.sql(connection)
    with memory_broker() as broker:
        broker.topics.create("orders")
        broker.send_many("orders", [str(number) for number in range(20)])

        @driftq.worker("orders", group="billing")
        def charge(message: driftq.Message) -> None:
            with inbox.once(message) as fresh:
                if fresh:
                    connection.execute("INSERT INTO charges VALUES (%s)", (message.text,))

        report = broker.chaos(charge, seed=3)
        assert report.repeated
    assert charges(connection) == 20


def test_an_effect_that_fails_leaves_no_key_in_postgres(connection):
    inbox = effects.sql(connection)
    with pytest.raises(RuntimeError), inbox.once("k"):
        charge_and_fail(connection)
    assert charges(connection) == 0
    with inbox.once("k") as fresh:
        assert fresh


def test_a_second_worker_waits_for_the_first_and_skips_the_effect(address, connection):
    with psycopg.connect(address) as other:
        mine, theirs = effects.sql(connection), effects.sql(other)
        assert mine.first("k")
        known: list[bool] = []
        begun = threading.Event()

        def ask() -> None:
            begun.set()
            known.append(theirs.first("k"))
            other.commit()

        thread = threading.Thread(target=ask)
        thread.start()
        assert begun.wait(10)
        thread.join(0.2)
        assert known == []  # it waits for our transaction
        connection.commit()
        thread.join(30)
        assert known == [False]


def test_a_connection_that_commits_by_itself_is_refused_unless_a_transaction_is_open(address, connection):
    with psycopg.connect(address, autocommit=True) as other:
        inbox = effects.sql(other)
        with pytest.raises(driftq.errors.InvalidCall):
            inbox.first("k")
        with other.transaction():
            assert inbox.first("k")
        with other.transaction():
            assert not inbox.first("k")


def test_old_keys_are_purged_in_postgres(connection):
    assert effects.sql(connection).first("old")
    assert effects.sql(connection).purge() == 0
    assert effects.sql(connection, ttl_ms=-1_000).purge() == 1


def test_sqlalchemy_sessions_and_connections_share_the_table_of_psycopg(address, connection):
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(address))
    with engine.connect() as theirs:
        with effects.sql(theirs).once("k") as fresh:
            assert fresh
        with effects.sql(theirs).once("k") as fresh:
            assert not fresh
    engine.dispose()
    assert not effects.sql(connection).first("k")
