"""What every object store must do. Each check gets an empty store, and a second one onto the same objects."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from driftq.storage.archive.object_store import ObjectExists, ObjectMissing, ObjectStore, VersionChanged

Check = Callable[[ObjectStore, ObjectStore], None]
RACERS = 8


def check_an_object_is_read_as_it_was_written(store: ObjectStore, other: ObjectStore) -> None:
    data = bytes(range(256)) * 4_099
    store.put_new("a/b/c", data)
    assert other.get("a/b/c") == data
    assert other.get_range("a/b/c", 1_000, 300) == data[1_000:1_300]
    assert other.get_range("a/b/c", len(data) - 5, 50) == data[-5:]
    store.put_new("a/empty", b"")
    assert other.get("a/empty") == b""


def check_a_key_is_taken_once(store: ObjectStore, other: ObjectStore) -> None:
    store.put_new("k/1", b"first")
    for writer in (store, other):
        with pytest.raises(ObjectExists):
            writer.put_new("k/1", b"second")
    assert other.get("k/1") == b"first"


def check_one_of_many_writers_wins_a_key(store: ObjectStore, other: ObjectStore) -> None:
    def write(number: int) -> bool:
        try:
            (store, other)[number % 2].put_new("race/key", b"%d" % number)
        except ObjectExists:
            return False
        return True

    with ThreadPoolExecutor(RACERS) as pool:
        won = list(pool.map(write, range(RACERS)))
    assert won.count(True) == 1
    assert store.get("race/key") == b"%d" % won.index(True)


def check_what_is_not_there_is_missing(store: ObjectStore, other: ObjectStore) -> None:
    for call in (store.get, store.get_versioned, lambda key: store.get_range(key, 0, 1)):
        with pytest.raises(ObjectMissing):
            call("no/such")
    assert list(store.list("no/")) == []


def check_a_listing_is_sorted_and_of_its_prefix(store: ObjectStore, other: ObjectStore) -> None:
    for key in ("j/2", "j/10", "j/deep/1", "jj/1", "i/1"):
        store.put_new(key, b"x" * len(key))
    assert [(row.key, row.size_bytes) for row in other.list("j/")] == [("j/10", 4), ("j/2", 3), ("j/deep/1", 8)]
    assert {row.key for row in other.list("")} >= {"j/2", "jj/1", "i/1"}


def check_a_deleted_object_is_gone_and_deleting_is_idempotent(store: ObjectStore, other: ObjectStore) -> None:
    store.put_new("d/1", b"x")
    for _ in range(2):
        other.delete("d/1")
    with pytest.raises(ObjectMissing):
        store.get("d/1")
    store.put_new("d/1", b"y")
    assert other.get("d/1") == b"y"


def check_only_the_known_version_is_replaced(store: ObjectStore, other: ObjectStore) -> None:
    first = store.replace("manifest", b"1", None)
    with pytest.raises(VersionChanged):
        other.replace("manifest", b"x", None)
    assert other.get_versioned("manifest") == (b"1", first)
    second = other.replace("manifest", b"2", first)
    with pytest.raises(VersionChanged):
        store.replace("manifest", b"zombie", first)
    assert store.get_versioned("manifest") == (b"2", second)
    with pytest.raises(VersionChanged):
        store.replace("never/there", b"x", first)


def check_one_of_many_replaces_wins(store: ObjectStore, other: ObjectStore) -> None:
    version = store.replace("m", b"start", None)

    def replace(number: int) -> bool:
        try:
            (store, other)[number % 2].replace("m", b"%d" % number, version)
        except VersionChanged:
            return False
        return True

    with ThreadPoolExecutor(RACERS) as pool:
        won = list(pool.map(replace, range(RACERS)))
    assert won.count(True) == 1
    assert store.get("m") == b"%d" % won.index(True)


CHECKS: dict[str, Check] = {name: value for name, value in globals().items() if name.startswith("check_")}
