"""Which partition a message without a key gets when its producer asks for any: each topic's partitions in turn.

The choice is made before the command, so the core stays free of chance. A request that is repeated may get another
partition; an idempotency key makes the repeat a duplicate of the first all the same. Knows no engine.
"""

from __future__ import annotations

import random
from typing import Literal

ANY: Literal["any"] = "any"
TOPICS_MAX = 10_000  # remembered; beyond that the turns begin anew


class PartitionSpread:
    """The turns of all topics. Each begins at random, so that servers that restart often still spread."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def next(self, topic: str, partitions: int) -> int:
        last = self._last.get(topic)
        if last is None:
            if len(self._last) >= TOPICS_MAX:
                self._last.clear()
            last = random.randrange(partitions)
        partition = self._last[topic] = (last + 1) % partitions
        return partition
