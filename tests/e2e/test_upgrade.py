"""Folders that an older version repaired: it closed gaps in the journal with the facts `HoleMade` and `RecordsLost`.

`repaired_folders.tar.xz` was written by that version. In `journal` the facts are in the journal; in `snapshot` a
snapshot was taken since. In both, offsets 5 and 6 of the topic and of the stream were lost.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from driftq.repair.verify import verify
from driftq.storage.disk import OsDisk
from driftq.wire.streams import token
from tests.support.server import running

ARCHIVE = Path(__file__).parents[1] / "unit" / "repair" / "repaired_folders.tar.xz"
LOST = (5, 6)


@pytest.fixture(params=["journal", "snapshot"])
def folder(request, tmp_path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / request.param


def test_the_folder_is_sound(folder):
    assert not verify(OsDisk(), str(folder)).findings


@pytest.mark.parametrize("starts", [1, 2], ids=["first start", "second start"])
def test_groups_pass_over_the_gap_and_reads_report_it(folder, starts):
    for number in range(starts):
        with running(str(folder)) as server:
            check_topic(server, f"group-{number}", 20 if folder.name == "journal" else 326)
            check_stream(server)
            assert server.stop() == 0
    assert not verify(OsDisk(), str(folder)).findings


def check_topic(server, group: str, end: int) -> None:
    claim = {"topic": "orders", "group": group, "owner": "w", "max": 1_000}
    messages = server.call("POST", "/v1/claim", claim).json()["messages"]
    assert [message["offset"] for message in messages] == [offset for offset in range(end) if offset not in LOST]
    assert all(message["value"] == f"order {message['offset']}" for message in messages)
    gap = server.call("GET", "/v1/topics/orders/partitions/0/records?offset=5")
    assert (gap.status, gap.json()["next_offset"]) == (410, 7)


def check_stream(server) -> None:
    assert server.call("GET", "/v1/stream/s/a?offset=-1").body == b"<0><1><2><3><4>"
    gap = server.call("GET", f"/v1/stream/s/a?offset={token(5)}")
    assert (gap.status, gap.headers["stream-next-offset"]) == (410, token(7))
    rest = server.call("GET", f"/v1/stream/s/a?offset={token(7)}").body
    assert rest == b"".join(b"<%d>" % number for number in range(7, 20))
