"""W3C trace context: the `traceparent` of a request becomes the message's, so that a consumer can go on with the trace.

What the envelope says itself wins. A header that is not a traceparent is ignored, as the standard asks.
"""

from __future__ import annotations

import re
from typing import TypeVar

from msgspec.structs import replace

from driftq.wire.message import Envelope
from driftq.wire.queue import ProduceItem

HEADER = b"traceparent"
_PARENT = re.compile(
    rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[\x21-\x7e]{1,200})?"
)

Item = TypeVar("Item", bound=ProduceItem)


def traced(item: Item, header: bytes) -> Item:
    """The message with the request's trace in its envelope, unless it has one."""
    header = header.strip(b" \t")
    envelope = item.envelope
    if (envelope is not None and envelope.traceparent) or not is_traceparent(header):
        return item
    return replace(item, envelope=replace(envelope or Envelope(), traceparent=header.decode("ascii")))


def is_traceparent(text: bytes) -> bool:
    found = _PARENT.fullmatch(text)
    # Only later versions may carry more than the four fields.
    return found is not None and (found[1] is None or text[:2] != b"00")
