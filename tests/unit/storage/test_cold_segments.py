"""Which parts of an object are fetched for a read of a segment that is only in the archive."""

from __future__ import annotations

import pytest

from driftq.storage.cold_segments import LONG_WINDOW_BYTES, WINDOW_BYTES, ColdRange, contiguous_runs, windows_from
from driftq.storage.log_segment import BatchRun, LogSegment

RUN = 32 << 10
COUNT = 400  # runs, of 10 records each: about 12.5 MiB


def segment_of(count=COUNT):
    segment = LogSegment("/data/logs/1/00000000000000000000.log", 0)
    for number in range(count):
        segment.runs.append(BatchRun(10 * number, segment.size_bytes, RUN, number))
        segment.size_bytes += RUN
    segment.firsts = [run.first_offset for run in segment.runs]
    segment.end_offset = 10 * count
    return segment


@pytest.mark.parametrize(
    ("size_bytes", "window_bytes"), [(2, WINDOW_BYTES), (WINDOW_BYTES, WINDOW_BYTES), (4 << 20, LONG_WINDOW_BYTES)]
)
@pytest.mark.parametrize("index", [0, 45, 200, COUNT - 1])
def test_windows_are_whole_and_hold_what_is_wanted(size_bytes, window_bytes, index):
    segment = segment_of()
    windows = windows_from(segment, index, size_bytes, segment.end_offset)
    runs = [run for window in windows for run in window.runs]
    first = segment.runs.index(runs[0])
    assert runs == segment.runs[first : first + len(runs)]
    assert runs[0].position <= segment.runs[index].position
    wanted_end = min(segment.runs[index].position + size_bytes, segment.size_bytes)
    assert runs[-1].position + runs[-1].size_bytes >= wanted_end
    assert all(window.size_bytes <= window_bytes + RUN for window in windows)
    assert len({window.position // window_bytes for window in windows}) == len(windows)


def test_a_reader_that_gets_the_bytes_itself_gets_one_range():
    segment = segment_of()
    runs, end_offset = ColdRange(1, 457, segment, 45).wanting(10 * RUN, 4_000).runs()
    assert runs == segment.runs[45:55]
    assert end_offset == 550


def test_such_a_range_ends_where_the_reader_does_and_with_the_segment():
    segment = segment_of()
    runs, end_offset = ColdRange(1, 457, segment, 45).wanting(10 * RUN, 473).runs()
    assert (runs, end_offset) == (segment.runs[45:48], 473)
    runs, end_offset = ColdRange(1, 3_995, segment, 399).wanting(10 * RUN, 9_000).runs()
    assert (runs, end_offset) == (segment.runs[399:], 4_000)
    runs, end_offset = ColdRange(1, 457, segment, 45).wanting(1, 9_000).runs()
    assert (runs, end_offset) == (segment.runs[45:46], 460)


def test_such_a_range_has_no_gap():
    segment = segment_of()
    segment.runs[50].position += 8
    assert contiguous_runs(segment.runs, 45, 20 * RUN, 9_000) == segment.runs[45:50]
