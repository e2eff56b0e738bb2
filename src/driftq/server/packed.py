"""What a packed batch from a client asks for. Its values and keys are never looked at; its heads are, because they are
copied into JSON answers as they are: each must be an envelope, a job or a routing, and nothing else.
"""

from __future__ import annotations

import msgspec

from driftq.core.facts import Mark
from driftq.server.http import BadRequest
from driftq.server.messages import check_envelope, mark_of
from driftq.wire.message import Head
from driftq.wire.records import HEADS, BadBatch, Header, unpack
from driftq.wire.times import from_rfc3339


class _ClientHead(Head, frozen=True, forbid_unknown_fields=True):
    """A head as a client may write it."""


_decoder = msgspec.json.Decoder(list[_ClientHead])


def marks_of(batch: bytes, header: Header) -> tuple[Mark, ...]:
    """The schedule of each record that has one. Raises `BadBatch` for heads that are not in order."""
    if not header.attributes & HEADS:
        return ()
    texts = [(index, record.head) for index, record in enumerate(unpack(batch, header)) if record.head]
    heads = _heads([text for _, text in texts])
    marks = (_mark(index, head) for (index, _), head in zip(texts, heads, strict=True))
    return tuple(mark for mark in marks if mark is not None)


def _heads(texts: list[bytes]) -> list[_ClientHead]:
    """All heads in one pass; the braces and the count make sure that none of them is more than one."""
    if not all(text.startswith(b"{") and text.endswith(b"}") for text in texts):
        raise BadBatch("a head is a JSON object without white space around it")
    try:
        heads = _decoder.decode(b"[" + b",".join(texts) + b"]")
    except msgspec.DecodeError as error:
        raise BadBatch(f"a head cannot be read: {error}") from None
    if len(heads) != len(texts) or any(head.dlq is not None for head in heads):
        raise BadBatch("a head is one JSON object with envelope, routing or job")
    return heads


def _mark(index: int, head: _ClientHead) -> Mark | None:
    deadline_ms = 0
    if head.envelope is not None:
        try:
            check_envelope(head.envelope)
            if head.envelope.deadline:
                deadline_ms = max(1, from_rfc3339(head.envelope.deadline))
        except (BadRequest, ValueError) as error:
            raise BadBatch(f"the envelope of record {index}: {error}") from None
    return mark_of(index, head.envelope, head.job, head.routing, deadline_ms)
