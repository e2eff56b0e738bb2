"""Times as people and protocols write them."""

from __future__ import annotations

import pytest

from driftq.wire.fields import from_rfc3339, to_rfc3339


@pytest.mark.parametrize(
    ("at_ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000+00:00"),
        (1_700_000_000_123, "2023-11-14T22:13:20.123+00:00"),
        (-1, "1969-12-31T23:59:59.999+00:00"),
    ],
)
def test_times_are_written_with_their_zone_and_read_back(at_ms, text):
    assert to_rfc3339(at_ms) == text
    assert from_rfc3339(text) == at_ms


@pytest.mark.parametrize(
    "text",
    [
        "2023-11-14T22:13:20Z",
        "2023-11-14t22:13:20z",
        "2023-11-14T22:13:20.0Z",
        "2023-11-14T22:13:20.000000999Z",
        "2023-11-14T23:13:20+01:00",
        "2023-11-14T16:43:20-05:30",
    ],
)
def test_every_way_to_write_one_moment_is_that_moment(text):
    assert from_rfc3339(text) == 1_700_000_000_000


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "2023-11-14",
        "2023-11-14T22:13:20",
        "2023-11-14 22:13:20Z",
        "2023-11-14T22:13Z",
        "2023-13-14T22:13:20Z",
        "2023-02-30T22:13:20Z",
        "2023-11-14T25:13:20Z",
        "2023-11-14T22:13:20+1:00",
        "20231114T221320Z",
        "2023-11-14T22:13:20Z ",
        "٢٠٢٣-11-14T22:13:20Z",
    ],
)
def test_anything_else_is_a_value_error(text):
    with pytest.raises(ValueError, match=r".+"):
        from_rfc3339(text)
