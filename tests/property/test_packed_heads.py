"""Heads that a client packed: any bytes are refused, or every JSON view of the record parses."""

from __future__ import annotations

import json

from hypothesis import example, given
from hypothesis import strategies as st

from driftq.core.model.replies import Rejected
from driftq.server.deliveries import content
from driftq.server.packed_batch import PackedBatch, read_packed
from driftq.wire.message import Head, read_head
from driftq.wire.records import Record, pack, unpack

MIB = 1 << 20
PIECES = (
    b"{", b"}", b"{}", b" ", b"\n", b"\r\n", b",", b":", b"[", b"]", b"null", b"1", b"-1", b"1e400", b"9" * 30, b"NaN",
    b'"', b'"envelope"', b'"routing"', b'"job"', b'"dlq"', b'"run_id"', b'"priority"', b'"not_before_ms"', b'"label"',
    b'"meta"', b'"x"', b"\xff", b"\x00", b"\\", b'"\\ud800"', b'{"envelope":{"run_id":"r"}}', b'{"job":{"task":"t"}}',
)  # fmt: skip
pieces = st.lists(st.one_of(st.sampled_from(PIECES), st.binary(max_size=4)), max_size=12).map(b"".join)
names = st.sampled_from(["envelope", "routing", "job", "run_id", "labels", "deadline", "task", "priority", "meta", "x"])
value = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=3)),
    max_leaves=6,
)
objects = st.tuples(st.dictionaries(names, value, max_size=3), st.sampled_from([None, 1])).map(
    lambda drawn: json.dumps(drawn[0], indent=drawn[1]).encode()
)
some_heads = st.lists(st.one_of(pieces, objects), min_size=1, max_size=4)


@given(some_heads)
@example([b"{}"])
@example([b'{\n"envelope":{\n"run_id":"r"}}'])
@example([b'{"envelope":{"run_id":"}', b'{"}}', b"{},{}"])  # three objects in all, but not one in each head
@example([b'{"job":{"x":"\xff"}}'])
@example([b'{"envelope":{"run_id":"\xff"}}'])
@example([b'{"job":{"x":' + b"[" * 2_000 + b"]" * 2_000 + b"}}"])
@example([b'{"job":{"not_before_ms":99999999999999999999}}'])
def test_heads_are_refused_or_every_view_of_them_parses(heads):
    batch = pack([Record(b"v", b"k", head) for head in heads])
    packed = read_packed(batch, MIB, MIB)
    if isinstance(packed, Rejected):
        return
    for record in unpack(batch):
        shown = b'{"offset":0' + content(record) + b"}"
        assert b"\n" not in shown
        parsed = json.loads(shown)
        assert (parsed["key"], parsed["value"]) == ("k", "v")
        assert "error" not in parsed, "an accepted head can be shown"


@given(some_heads)
def test_a_head_that_was_stored_unchecked_is_shown_or_replaced_by_an_error(heads):
    for head in heads:
        shown = b'{"offset":0' + content(Record(b"v", b"k", head)) + b"}"
        assert b"\n" not in shown
        parsed = json.loads(shown)
        assert (parsed["key"], parsed["value"]) == ("k", "v")
        assert ("message" in parsed) == (parsed.get("error") == "DATA_CORRUPT")
        assert isinstance(read_head(head), Head), "the broker's rules can read it too"


def test_a_batch_that_declares_more_than_fits_is_refused_before_it_is_unpacked():
    batch = pack([Record(b"v", head=b" " * MIB), Record(b"v")], compress=True)
    assert len(batch) < 1_000
    packed = read_packed(batch, MIB, MIB)
    assert isinstance(packed, Rejected)
    assert packed.details == {"limit_bytes": MIB}


def test_heads_in_order_are_accepted():
    heads = [
        b"",
        b"{}",
        b'{"envelope":{"tenant_id":"a"},"job":{"task":"t","priority":3}}',
        b'{"routing":{"label":"l"}}',
    ]
    packed = read_packed(pack([Record(b"v", head=head) for head in heads]), MIB, MIB)
    assert isinstance(packed, PackedBatch)
    assert [(mark.index, mark.priority, mark.task, mark.label, mark.tenant) for mark in packed.schedules] == [
        (2, 3, "t", "", "a"),
        (3, 0, "", "l", ""),
    ]
