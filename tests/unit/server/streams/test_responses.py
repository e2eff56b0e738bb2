"""The cursor of a live read always advances, so that a cache cannot repeat an old response."""

from __future__ import annotations

from driftq.server.streams.responses import next_cursor


def test_a_cursor_always_advances():
    current = next_cursor(None)
    assert next_cursor("0") == current
    assert int(next_cursor(current)) > int(current)
    assert int(next_cursor(str(int(current) + 5))) > int(current) + 5
    assert next_cursor("nonsense") == current
