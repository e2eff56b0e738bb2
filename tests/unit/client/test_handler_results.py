"""The table from what a handler returns or raises to how its message is settled."""

from __future__ import annotations

import pytest

from driftq.client.errors import Busy
from driftq.client.worker.handler_results import (
    ACK,
    REASON_CHARACTERS_MAX,
    Reject,
    Release,
    Retry,
    SettleAction,
    error_summary,
    settlement_for,
)


@pytest.mark.parametrize(
    ("error", "settlement"),
    [
        (None, ACK),
        (Retry(), SettleAction("nack/batch", "retry")),
        (Retry(after_ms=500, reason="later"), SettleAction("nack/batch", "later", 500)),
        (Reject("bad"), SettleAction("reject", "bad")),
        (Release(after_ms=7), SettleAction("release", delay_ms=7)),
        (Busy("held", retry_after_ms=900), SettleAction("release", delay_ms=900)),
        (ValueError("no"), SettleAction("nack/batch", "ValueError: no")),
        (KeyError(), SettleAction("nack/batch", "KeyError")),
    ],
)
def test_what_a_handler_raises_decides_the_settlement(error, settlement):
    assert settlement_for(error) == settlement


@pytest.mark.parametrize(
    ("settlement", "fields"),
    [
        (ACK, {}),
        (SettleAction("nack/batch", "why", 5), {"reason": "why", "delay_ms": 5}),
        (SettleAction("release", "ignored", 5), {"delay_ms": 5}),
        (SettleAction("reject", "why"), {"reason": "why"}),
    ],
)
def test_a_call_has_only_the_fields_of_its_verb(settlement, fields):
    assert settlement.fields() == fields


def test_a_long_error_is_shortened():
    summary = error_summary(RuntimeError("x" * 10_000))
    assert len(summary) == REASON_CHARACTERS_MAX
    assert summary.endswith("…")
