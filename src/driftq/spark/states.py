"""What became of messages in a group, as columns beside them: one question for a range, not one for a message.

The state is that of the moment in which a task asks, and a task asks while it reads: two rows of one query may be a
moment apart. Knows no Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlencode

import numpy as np
import pyarrow as pa

from driftq.client.blocking import Transport
from driftq.client.calls import get, segment
from driftq.client.errors import NotFound
from driftq.spark.offsets import Range
from driftq.spark.options import BadOption
from driftq.wire.admin import StatesInfo

WAITING, SETTLED, LEASED, RETRYING, DELAYED = "waiting", "settled", "leased", "retrying", "delayed"
WORDS = (WAITING, SETTLED, LEASED, RETRYING, DELAYED)
PAGE = 10_000


def state_arrays(transport: Transport, group: str, task: Range, first: int, end: int) -> dict[str, pa.Array]:
    """The columns of the queue's state for offsets [first, end)."""
    codes = np.zeros(end - first, dtype=np.int8)
    attempts = np.zeros(end - first, dtype=np.int32)
    errors: dict[int, str] = {}
    for page in _pages(transport, group, task, first, end):
        codes[: max(0, page.floor - first)] = WORDS.index(SETTLED)
        for low, high in page.settled:
            codes[max(0, low - first) : max(0, high - first)] = WORDS.index(SETTLED)
        pending = page.pending
        places = np.array(pending.offset, dtype=np.int64) - first
        codes[places] = [WORDS.index(word) if word in WORDS else WORDS.index(RETRYING) for word in pending.state]
        attempts[places] = pending.attempts
        errors |= {int(place): text for place, text in zip(places, pending.last_error, strict=True) if text}
    told = np.full(end - first, None, dtype=object)
    for place, text in errors.items():
        told[place] = text
    return {
        "queue_state": pa.array(WORDS, pa.string()).take(pa.array(codes)),
        # A settled message is only a part of a range by now: how often it was delivered is not known any more.
        "attempts": pa.array(attempts, pa.int32(), mask=codes == WORDS.index(SETTLED)),
        "last_error": pa.array(told, pa.string()),
    }


def _pages(transport: Transport, group: str, task: Range, first: int, end: int) -> Iterator[StatesInfo]:
    path = f"/v1/topics/{segment(task.topic)}/groups/{segment(group)}/states"
    while first < end:
        query = urlencode({"partition": task.partition, "offset": first, "end": end, "limit": PAGE})
        try:
            page = transport.ask(get(f"{path}?{query}", StatesInfo))
        except NotFound as error:
            raise BadOption(f"queueState={group}: {error.message}") from None
        yield page
        if page.next_offset <= first:
            return
        first = page.next_offset
