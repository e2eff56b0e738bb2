"""One suite for every object store (S3: tests/e2e/test_archive_s3.py), and what each reports when it cannot work."""

from __future__ import annotations

import contextlib
import errno
import os

import pytest

from driftq.storage.archive.cloud_objects import BadAddress, CloudObjects, open_object_store
from driftq.storage.archive.folder_objects import DIRECT_BYTES, PIECE_BYTES, FolderObjects
from driftq.storage.archive.object_store import MemoryObjects, ObjectExists, ObjectStoreError
from tests.support.faulty_objects import FaultyObjects
from tests.support.object_store_suite import CHECKS


@pytest.fixture(params=["memory", "folder", "faulty but healthy"])
def stores(request, tmp_path):
    if request.param == "folder":
        return FolderObjects(str(tmp_path)), FolderObjects(str(tmp_path))
    memory = MemoryObjects()
    if request.param == "memory":
        return memory, memory
    return FaultyObjects(memory, 1), memory


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_every_store_keeps_the_contract(stores, check):
    check(*stores)


def test_a_folder_that_is_not_there_is_not_taken_for_an_empty_archive(tmp_path):
    store = FolderObjects(str(tmp_path / "not-mounted"))
    calls = (
        lambda: store.put_new("a", b""),
        lambda: list(store.list("")),
        lambda: store.delete("a"),
        lambda: store.replace("m", b"", None),
    )
    for call in calls:
        with pytest.raises(ObjectStoreError) as failure:
            call()
        assert failure.value.reason == "no_bucket"
    assert not (tmp_path / "not-mounted").exists()


def test_an_object_has_its_name_only_when_it_is_on_the_device(tmp_path, monkeypatch):
    store = FolderObjects(str(tmp_path))

    def fail(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(ObjectStoreError) as failure:
        store.put_new("a/b", b"data")
    assert failure.value.reason == "full"
    monkeypatch.undo()
    assert list(store.list("")) == []
    assert list((tmp_path / ".tmp").iterdir()) == []
    store.put_new("a/b", b"data")
    with pytest.raises(ObjectExists):
        store.put_new("a/b", b"data")


@pytest.mark.parametrize("size", [DIRECT_BYTES, PIECE_BYTES, PIECE_BYTES + 1, 2 * PIECE_BYTES + 4_097])
@pytest.mark.parametrize("refused", ["nothing", "to open", "to write"])
def test_large_objects_are_written_past_the_page_cache_or_through_it(tmp_path, monkeypatch, size, refused):
    data = os.urandom(size)
    opened, written = os.open, os.pwrite

    def refuse(*_, **__):
        raise OSError(errno.EINVAL, "Invalid argument")

    def open_plain(path, flags, *rest, **more):
        return refuse() if flags & os.O_DIRECT else opened(path, flags, *rest, **more)

    def write_some(descriptor, view, start):
        return refuse() if start else written(descriptor, view, start) - 4_096

    if refused == "to open":
        monkeypatch.setattr(os, "open", open_plain)
    if refused == "to write":
        monkeypatch.setattr(os, "pwrite", write_some)
    store = FolderObjects(str(tmp_path))
    store.put_new("a/large", data)
    monkeypatch.undo()
    assert (tmp_path / "a" / "large").read_bytes() == data
    assert [row.size_bytes for row in store.list("")] == [size]


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("", "no address"),
        ("s3:bucket", "no address"),
        ("ftp://host/x", "s3://bucket/prefix"),
        ("s3://", "s3://bucket/prefix"),
        ("s3://key:secret@bucket/x", "environment"),
    ],
)
def test_a_bad_address_is_explained(url, part):
    with pytest.raises(BadAddress, match=part):
        open_object_store(url)


def test_an_address_chooses_the_store(tmp_path):
    assert isinstance(open_object_store(str(tmp_path)), FolderObjects)
    store = open_object_store("s3://bucket/some/prefix/")
    assert isinstance(store, CloudObjects)
    assert store.url == "s3://bucket/some/prefix"


def test_an_endpoint_that_does_not_answer_is_reported_as_such(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with pytest.raises(ObjectStoreError) as failure:
        open_object_store("s3://bucket/prefix").get("x")
    assert failure.value.reason == "unreachable"


def test_every_fault_happens_and_none_breaks_the_contract():
    store = FaultyObjects(MemoryObjects(), 7, chance=0.4)
    for number in range(300):
        while True:
            try:
                store.put_new(f"a/{number}", b"%d" % number)
            except ObjectStoreError:
                continue
            except ObjectExists:
                pass  # an earlier attempt got through
            break
        with contextlib.suppress(ObjectStoreError):
            list(store.list("a/"))
    assert [store.inner.get(f"a/{number}") for number in range(300)] == [b"%d" % number for number in range(300)]
    assert {"timeout", "5xx", "throttled", "partial write", "lost reply", "listing behind"} == set(store.counts)
