"""The broker in memory: errors reach the caller, not the traceback of a thread."""

from __future__ import annotations

import asyncio
import threading

import pytest

import driftq
from driftq.settings.loader import SettingsError
from driftq.testing import memory_broker


@driftq.worker("no-such-topic", group="billing")
def charge(message: driftq.Message) -> None:
    raise AssertionError("there is no message")


def test_a_wrong_setting_is_raised_to_the_caller_and_leaves_no_thread():
    before = threading.active_count()
    with pytest.raises(SettingsError, match="in_flight_max"), memory_broker("queue.in_flight_mx=10"):
        pass
    assert threading.active_count() == before


def test_a_right_setting_takes_effect():
    with memory_broker("queue.in_flight_max=2") as broker:
        broker.topics.create("orders")
        for number in range(3):
            broker.send("orders", {"id": number})
        assert len(broker.claim("orders", "billing", max=3)) == 2


def test_a_broker_can_be_closed_again():
    with memory_broker() as broker:
        broker.close()


def test_an_error_of_a_worker_is_the_same_with_and_without_a_running_loop():
    async def drain() -> None:
        broker.drain(charge)

    with memory_broker() as broker:
        with pytest.raises(driftq.errors.NotFound):
            broker.drain(charge)
        with pytest.raises(driftq.errors.NotFound):
            asyncio.run(drain())
