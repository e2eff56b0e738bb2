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
    Settlement,
    error_summary,
    settlement_for,
)


@pytest.mark.parametrize(
    ("error", "settlement"),
    [
        (None, ACK),
        (Retry(), Settlement("nack/batch", "retry")),
        (Retry(after_ms=500, reason="later"), Settlement("nack/batch", "later", 500)),
        (Reject("bad"), Settlement("reject", "bad")),
        (Release(after_ms=7), Settlement("release", delay_ms=7)),
        (Busy("held", retry_after_ms=900), Settlement("release", delay_ms=900)),
        (ValueError("no"), Settlement("nack/batch", "ValueError: no")),
        (KeyError(), Settlement("nack/batch", "KeyError")),
    ],
)
def test_what_a_handler_raises_decides_the_settlement(error, settlement):
    assert settlement_for(error) == settlement


@pytest.mark.parametrize(
    ("settlement", "fields"),
    [
        (ACK, {}),
        (Settlement("nack/batch", "why", 5), {"reason": "why", "delay_ms": 5}),
        (Settlement("release", "ignored", 5), {"delay_ms": 5}),
        (Settlement("reject", "why"), {"reason": "why"}),
    ],
)
def test_a_call_has_only_the_fields_of_its_verb(settlement, fields):
    assert settlement.fields() == fields


def test_a_long_error_is_shortened():
    summary = error_summary(RuntimeError("x" * 10_000))
    assert len(summary) == REASON_CHARACTERS_MAX
    assert summary.endswith("…")
