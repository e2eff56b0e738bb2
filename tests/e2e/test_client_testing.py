"""`driftq.testing`: a manual clock, seeded chaos, and the pytest plugin in a project of its own."""

from __future__ import annotations

import collections
import subprocess
import sys
import textwrap

import driftq
from driftq.testing import Chaos, memory_broker


def test_time_stands_still_until_it_is_moved():
    with memory_broker() as broker:
        broker.topics.create("t")
        broker.send("t", "later", delay_ms=60_000)
        assert broker.claim("t", "g") == []
        broker.advance(59_999)
        assert broker.claim("t", "g") == []
        broker.advance(1)
        (message,) = broker.claim("t", "g", lease_ms=30_000)
        broker.advance(30_001)
        broker.advance(30_000)  # the backoff of the retry
        (again,) = broker.claim("t", "g")
        assert (again.text, again.attempts, again.last_error) == ("later", 2, "ack_timeout")
        assert message.lease_version < again.lease_version


def test_workers_run_until_nothing_is_left():
    @driftq.worker("t", group="g")
    def work(message):
        if message.attempts < 3:
            raise driftq.Retry(after_ms=1_000)

    with memory_broker() as broker:
        broker.topics.create("t")
        broker.send("t", "x")
        for expected in [(0, 1), (0, 1), (1, 0)]:
            (counts,) = broker.drain(work)
            assert (counts.acked, counts.failed) == expected
            broker.advance(1_000)


def test_chaos_shows_a_handler_that_is_not_idempotent():
    charged: list[str] = []

    @driftq.worker("orders", group="billing", concurrency=3)
    def charge(message):
        charged.append(message.text)

    with memory_broker() as broker:
        broker.topics.create("orders")
        for number in range(40):
            broker.send("orders", str(number))
        report = broker.chaos(charge, seed=1)
        assert set(charged) == {str(number) for number in range(40)}
        assert len(charged) > 40, "some messages were delivered twice"
        assert report.repeated
        assert broker.groups.describe("orders", "billing").lag == 0


def test_chaos_does_no_harm_to_a_handler_that_uses_effects():
    charged: collections.Counter[str] = collections.Counter()

    @driftq.worker("orders", group="billing", concurrency=3)
    async def charge(message):
        async with message.effect() as effect:
            if effect.fresh:
                charged[message.text] += 1

    with memory_broker() as broker:
        broker.topics.create("orders")
        for number in range(40):
            broker.send("orders", str(number))
        report = broker.chaos(charge, seed=2)
        assert report.repeated
        assert charged == {str(number): 1 for number in range(40)}


def test_the_same_seed_injects_the_same_faults():
    @driftq.worker("t", group="g")
    async def work(message): ...

    def faults(seed: int) -> dict[str, int]:
        with memory_broker() as broker:
            broker.topics.create("t")
            for number in range(30):
                broker.send("t", str(number))
            return dict(broker.chaos(work, seed=seed).calls)

    assert faults(7) == faults(7)
    assert faults(7) != faults(8)


def test_chaos_can_be_turned_down():
    calls: list[str] = []

    @driftq.worker("t", group="g")
    def work(message):
        calls.append(message.text)

    with memory_broker() as broker:
        broker.topics.create("t")
        for number in range(10):
            broker.send("t", str(number))
        report = broker.chaos(work, chaos=Chaos(duplicates=0, lost_leases=0, reordering=0))
        assert calls == [str(number) for number in range(10)]
        assert not report.repeated


def test_the_plugin_provides_a_broker_in_another_project(tmp_path):
    (tmp_path / "test_stranger.py").write_text(
        textwrap.dedent("""
        def test_it_works(driftq_broker):
            driftq_broker.topics.create("t")
            driftq_broker.send("t", "hello")
            assert [message.text for message in driftq_broker.claim("t", "g")] == ["hello"]
        """)
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "driftq.testing.plugin", str(tmp_path)]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "1 passed" in ended.stdout
