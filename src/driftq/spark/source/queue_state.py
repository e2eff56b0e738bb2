"""The state of messages in a consumer group as Arrow columns: the option `queueState`.

The broker reports states by range of offsets, so one call serves thousands of rows. Knows no Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import numpy as np
import pyarrow as pa

from driftq.client.calls.queue import get, segment
from driftq.client.errors import NotFound
from driftq.spark.source.options import BadOption
from driftq.wire.groups import StatesInfo

if TYPE_CHECKING:
    from driftq.client.transport.sync_transport import Transport
    from driftq.spark.source.offsets import OffsetRange

WAITING, SETTLED, LEASED, RETRYING, DELAYED = "waiting", "settled", "leased", "retrying", "delayed"
STATES = (WAITING, SETTLED, LEASED, RETRYING, DELAYED)
PAGE_OFFSETS = 10_000


def state_arrays(transport: Transport, group: str, task: OffsetRange, first: int, end: int) -> dict[str, pa.Array]:
    """The columns `queue_state`, `attempts` and `last_error` for offsets [first, end)."""
    codes = np.zeros(end - first, dtype=np.int8)
    attempts = np.zeros(end - first, dtype=np.int32)
    errors: dict[int, str] = {}
    for page in _pages(transport, group, task, first, end):
        codes[: max(0, page.floor - first)] = STATES.index(SETTLED)
        for low, high in page.settled:
            codes[max(0, low - first) : max(0, high - first)] = STATES.index(SETTLED)
        pending = page.pending
        indices = np.array(pending.offset, dtype=np.int64) - first
        codes[indices] = [STATES.index(state) if state in STATES else STATES.index(RETRYING) for state in pending.state]
        attempts[indices] = pending.attempts
        errors |= {int(index): text for index, text in zip(indices, pending.last_error, strict=True) if text}
    last_errors = np.full(end - first, None, dtype=object)
    for index, text in errors.items():
        last_errors[index] = text
    return {
        "queue_state": pa.array(STATES, pa.string()).take(pa.array(codes)),
        # Settled messages are kept as ranges: how often each was delivered is no longer known.
        "attempts": pa.array(attempts, pa.int32(), mask=codes == STATES.index(SETTLED)),
        "last_error": pa.array(last_errors, pa.string()),
    }


def _pages(transport: Transport, group: str, task: OffsetRange, first: int, end: int) -> Iterator[StatesInfo]:
    path = f"/v1/topics/{segment(task.topic)}/groups/{segment(group)}/states"
    while first < end:
        query = urlencode({"partition": task.partition, "offset": first, "end": end, "limit": PAGE_OFFSETS})
        try:
            page = transport.execute(get(f"{path}?{query}", StatesInfo))
        except NotFound as error:
            raise BadOption(f"queueState={group}: {error.message}") from None
        yield page
        if page.next_offset <= first:
            return
        first = page.next_offset
