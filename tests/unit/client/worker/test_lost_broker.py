"""A broker that does not answer is reported once for all workers of a process, not at every claim of each."""

from __future__ import annotations

import asyncio
import logging
import socket

import pytest

import driftq
from driftq.client.transport.sansio import RetryOptions
from driftq.client.worker import worker_loop
from driftq.client.worker.runner import run_async

GIVES_UP = RetryOptions(timeout_ms=1_000, deadline_ms=1_000, first_contact_ms=0)


@driftq.worker("orders", group="billing")
async def work(message: driftq.AsyncMessage) -> None: ...


@driftq.task("report.v1", topic="orders", cron="0 9 * * *")
async def report() -> None: ...


def test_claims_that_fail_again_and_again_are_reported_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(worker_loop, "RETRY_S", 0.001)
    claims = 0
    asked = worker_loop.claim_flow

    async def run() -> None:
        nonlocal claims
        stop = asyncio.Event()

        def counted(*arguments, **options):
            nonlocal claims
            claims += 1
            if claims == 20:
                stop.set()
            return asked(*arguments, **options)

        monkeypatch.setattr(worker_loop, "claim_flow", counted)
        with socket.socket() as closed:  # bound, but it does not listen
            closed.bind(("127.0.0.1", 0))
            async with driftq.connect_async(f"http://127.0.0.1:{closed.getsockname()[1]}", retry=GIVES_UP) as broker:
                await asyncio.wait_for(run_async(work, report, broker=broker, stop=stop), 30)

    with caplog.at_level(logging.WARNING, "driftq.worker"):
        asyncio.run(run())
    (lost,) = [record.getMessage() for record in caplog.records]
    assert lost.startswith("waiting for the broker: no broker answers at http://127.0.0.1:")
    assert claims >= 20
