"""Messages that a settle call names: neighbours under one token are one run."""

from __future__ import annotations

import pytest

from driftq.core.model.commands import Held
from driftq.server.deliveries import SETTLE_MAX, held_runs
from driftq.server.http import BadRequest
from driftq.wire.claims import HeldItem


def test_neighbours_under_one_token_become_one_run():
    items = [HeldItem(0, 3, token="a"), HeldItem(0, 4, 6, "a"), HeldItem(0, 6, token="b"), HeldItem(1, 7, token="b")]
    assert held_runs(items) == (Held(0, 3, 6, "a"), Held(0, 6, 7, "b"), Held(1, 7, 8, "b"))


@pytest.mark.parametrize(
    "items", [[], [HeldItem(0, 5, 5)], [HeldItem(0, 5, 4)], [HeldItem(0, at) for at in range(SETTLE_MAX + 1)]]
)
def test_a_call_names_some_messages_and_not_too_many(items):
    with pytest.raises(BadRequest):
        held_runs(items)
