"""Keys go where existing clients expect them."""

from __future__ import annotations

import pytest

from driftq.wire.partitions import fnv1a, partition_of


@pytest.mark.parametrize(("key", "partition"), [("a", 4), ("order-123", 2), ("user:1", 3), ("user:2", 6), ("日本", 1)])
def test_known_keys_go_to_known_partitions_of_eight(key, partition):
    assert partition_of(key.encode(), 8) == partition


@pytest.mark.parametrize(("text", "number"), [(b"", 0x811C9DC5), (b"a", 0xE40C292C), (b"foobar", 0xBF9CF968)])
def test_the_hash_is_fnv1a_with_32_bits(text, number):
    assert fnv1a(text) == number


def test_the_empty_key_goes_to_partition_0():
    assert {partition_of(b"", count) for count in range(1, 100)} == {0}
    assert partition_of(b"anything", 1) == 0
