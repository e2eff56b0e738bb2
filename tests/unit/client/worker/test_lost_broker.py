"""A broker that does not answer is reported once in a while, not at every claim."""

from __future__ import annotations

import asyncio
import logging
import socket

import pytest

import driftq
from driftq.client.transport.sansio import RetryOptions
from driftq.client.worker import worker_loop

GIVES_UP = RetryOptions(timeout_ms=1_000, deadline_ms=1_000, first_contact_ms=0)


@driftq.worker("orders", group="billing")
async def work(message: driftq.AsyncMessage) -> None: ...


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
            if claims == 10:
                stop.set()
            return asked(*arguments, **options)

        monkeypatch.setattr(worker_loop, "claim_flow", counted)
        with socket.socket() as closed:  # bound, but it does not listen
            closed.bind(("127.0.0.1", 0))
            async with driftq.connect_async(f"http://127.0.0.1:{closed.getsockname()[1]}", retry=GIVES_UP) as broker:
                await asyncio.wait_for(work.run_async(broker, stop=stop), 30)

    with caplog.at_level(logging.WARNING, "driftq.worker"):
        asyncio.run(run())
    reports = [record for record in caplog.records if "cannot claim from orders" in record.getMessage()]
    assert (claims, len(reports)) == (10, 1)
