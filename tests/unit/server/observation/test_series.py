"""Time series: rings of steps, which names have one, and the file that continues them."""

from __future__ import annotations

from driftq.server.observation.series import STEP_MS, STEPS_MAX, Ring, SeriesTable, seal


def ring(steps_max: int = 80) -> Ring:
    return Ring(("a", "b"), 10, steps_max)


def values(of: Ring, from_ms: int, until_ms: int, points: int = 1_000) -> list[float | None]:
    return of.values("a", of.window(from_ms, until_ms, points))


def test_a_step_that_was_not_measured_is_empty():
    numbers = ring()
    for at_ms in (100, 110, 140):
        numbers.put(at_ms, {"a": at_ms})
    assert values(numbers, 0, 1_000) == [100, 110, None, None, 140]
    assert numbers.window(0, 1_000, 1_000).start_ms == 100


def test_a_ring_keeps_the_last_steps():
    numbers = ring()
    for step in range(500):
        numbers.put(10 * step, {"a": step, "b": -step})
    assert values(numbers, 0, 10_000) == list(range(420, 500))
    assert all(len(column) <= 80 + 11 for column in numbers.columns.values())


def test_steps_are_averaged_to_the_number_of_points():
    numbers = ring()
    for step in range(8):
        numbers.put(10 * step, {"a": step})
    assert values(numbers, 0, 1_000, points=4) == [0.5, 2.5, 4.5, 6.5]
    assert numbers.window(0, 1_000, 4).step_ms == 20


def test_a_clock_that_was_set_starts_a_ring_again():
    numbers = ring()
    numbers.put(1_000, {"a": 1})
    numbers.put(500, {"a": 2})
    assert values(numbers, 0, 2_000) == [2]
    numbers.put(10**9, {"a": 3})
    assert values(numbers, 0, 10**10) == [3]


def test_names_that_are_gone_lose_their_series_and_active_ones_replace_quiet_ones():
    table = SeriesTable(names_max=2)
    quiet, busy = {"produced": 0.0}, {"produced": 1.0}
    table.put_topics(0, {("a",): quiet, ("b",): busy, ("c",): quiet})
    assert set(table.topics) == {("a",), ("b",)}
    table.put_topics(30_000, {("a",): quiet, ("b",): busy, ("c",): busy, ("d",): busy})
    assert set(table.topics) == {("b",), ("c",)}
    table.put_topics(60_000, {("c",): busy})
    assert set(table.topics) == {("c",)}


def test_a_file_continues_the_series_and_damage_is_ignored():
    table = SeriesTable()
    for step in range(5):
        table.totals.put(STEP_MS * step, {"produced": step})
    table.put_groups(0, {("t", "g"): {"lag": 7}})
    data = seal(table.pack())
    restored = SeriesTable()
    assert restored.restore(data)
    restored.totals.put(STEP_MS * 7, {"produced": 7})
    window = restored.totals.window(0, STEP_MS * STEPS_MAX, 100)
    assert restored.totals.values("produced", window) == [0, 1, 2, 3, 4, None, None, 7]
    group = restored.groups["t", "g"]
    assert group.values("lag", group.window(0, 1_000_000, 10)) == [7]
    for damaged in (data[:-1], data[:100], b"", data[:50] + b"x" + data[51:]):
        assert not restored.restore(damaged)
    assert restored.groups
