"""What a group has left to do in each lane of a partition.

    lane          of the lane from the floor on    less what is settled    = lag
    plain         8                                3                       5, of them 1 in flight, 1 waiting
    task "pdf"    4                                4                       nothing: left out

Messages are counted by two searches for each lane and for each settled range. Only what was delivered or waits for its
time is looked at message by message, so `lane_lags` is a generator of steps.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count as numbered
from typing import TYPE_CHECKING

from driftq.core.model.facts import LaneKey

if TYPE_CHECKING:
    from driftq.core.state.logs import Log
    from driftq.core.state.progress import Progress

PLAIN = LaneKey(0, "", "")
STEP_LOOKS = 200  # messages and ranges that are looked at before others get a turn


@dataclass
class LaneLag:
    """Messages of one lane that are not settled. `oldest` is the first that was never delivered; -1 without one."""

    messages: int = 0
    in_flight: int = 0
    waiting: int = 0
    oldest: int = -1

    @property
    def undelivered(self) -> int:
        return max(0, self.messages - self.in_flight - self.waiting)


def lane_lags(progress: Progress, log: Log) -> Iterator[dict[LaneKey, LaneLag] | None]:
    """Lanes with something left to do, after a None for each step."""
    lags = _from_the_floor(progress, log)
    settled: Counter[LaneKey] = Counter()
    end = progress.floor
    for look in numbered():
        if look % STEP_LOOKS == 0:
            yield None
        settled_range = progress.settled.above(end)
        if settled_range is None:
            break
        first, end = max(end, settled_range[0]), settled_range[1]
        settled.update(_lanes_of(log, first, end))
    for key, number in settled.items():
        if key in lags:
            lags[key].messages -= number
    pending = [(offset, True) for first, end, _ in progress.held for offset in range(first, end)]
    pending += [(offset, entry.held) for offset, entry in progress.entries.changed()]
    pending += [(offset, False) for offset in progress.entries.delayed]
    for look, (offset, is_held) in enumerate(pending):
        if look % STEP_LOOKS == 0:
            yield None
        lag = lags.get(log.lanes.key_of(offset) or PLAIN)
        if lag is not None:
            lag.in_flight += is_held
            lag.waiting += not is_held
    yield {key: lag for key, lag in lags.items() if lag.messages > 0}


def _from_the_floor(progress: Progress, log: Log) -> dict[LaneKey, LaneLag]:
    """All messages at or above the floor by lane. Delayed messages without a task have an explicit lane with the key of
    plain messages."""
    floor, cursor = progress.floor, max(progress.cursor, progress.floor)
    explicit = len(log.lanes.offsets) - bisect_left(log.lanes.offsets, floor)
    lags = {PLAIN: LaneLag(max(0, log.end - floor - explicit), oldest=cursor if cursor < log.end else -1)}
    for key, lane in log.lanes.by_key.items():
        lag = lags.setdefault(key, LaneLag())
        lag.messages += len(lane.offsets) - bisect_left(lane.offsets, floor)
        at = bisect_left(lane.offsets, max(progress.lane_cursors.get(key, 0), floor))
        if at < len(lane.offsets):
            oldest = lane.offsets[at]
            lag.oldest = min(oldest, lag.oldest) if lag.oldest >= 0 else oldest
    return lags


def _lanes_of(log: Log, first: int, end: int) -> dict[LaneKey, int]:
    """How many of the messages [first, end) are in each lane."""
    lanes = log.lanes
    low = bisect_left(lanes.offsets, first)
    high = bisect_left(lanes.offsets, end, low)
    counts = {PLAIN: end - first - (high - low)}
    for number, count in Counter(lanes.numbers[low:high]).items():
        key = lanes.keys[number]
        counts[key] = counts.get(key, 0) + count
    return counts
