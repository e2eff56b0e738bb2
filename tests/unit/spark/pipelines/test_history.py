"""The life of a step as a state machine: whatever order its events come in, and however they are cut into batches."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from driftq.spark.pipelines.history import StepEvent, Steps, advance, packed, rows, unpacked

LIFE = [
    StepEvent("produced", 3, 100, run_id="r1", step_id="s1", parent_step_id="s0", tenant_id="acme", task="t"),
    StepEvent("delivered", 3, 150, 1, "g", "w1", 1),
    StepEvent("failed", 3, 170, 2, "g", "w1", 1, "boom"),
    StepEvent("delivered", 3, 200, 3, "g", "w2", 2),
    StepEvent("acked", 3, 230, 4, "g", "w2", 2),
]


def step_rows(events: list[StepEvent]) -> list[dict[str, object]]:
    steps: Steps = {}
    return rows(steps, advance(steps, events))


def test_a_step_that_failed_once_and_then_succeeded_has_both_in_its_row() -> None:
    (row,) = step_rows(LIFE)

    assert row == {
        "offset": 3, "group": "g", "state": "succeeded", "attempts": 2, "failures": 1, "owner": "w2", "error": "boom",
        "started_ms": 150, "attempted_ms": 200, "ended_ms": 230, "busy_ms": 50, "version": 5, "run_id": "r1",
        "step_id": "s1", "parent_step_id": "s0", "tenant_id": "acme", "task": "t", "produced_ms": 100,
    }  # fmt: skip


def test_a_message_without_a_delivery_waits_under_no_group() -> None:
    (row,) = step_rows(LIFE[:1])

    assert (row["group"], row["state"], row["version"]) == ("", "waiting", 1)


def test_each_group_has_a_row_of_its_own() -> None:
    other = StepEvent("delivered", 3, 300, 5, "other", "w3", 1)

    group_rows = step_rows([*LIFE, other])

    assert [(row["group"], row["state"]) for row in group_rows] == [("g", "succeeded"), ("other", "running")]


def test_a_dead_step_keeps_the_error_it_died_of() -> None:
    (row,) = step_rows([*LIFE[:3], StepEvent("dead", 3, 180, 3, "g", "w1", 1, "boom")])

    assert (row["state"], row["error"], row["failures"]) == ("dead", "boom", 1)


def test_a_lost_lease_counts_as_a_failure_with_a_name_and_a_release_as_none() -> None:
    (expired,) = step_rows([*LIFE[:2], StepEvent("expired", 3, 190, 2, "g", "w1", 1)])
    (released,) = step_rows([*LIFE[:2], StepEvent("released", 3, 190, 2, "g", "w1", 1)])

    assert (expired["state"], expired["error"], expired["failures"]) == ("retrying", "ack_timeout", 1)
    assert (released["state"], released["failures"]) == ("waiting", 0)


@given(st.permutations(LIFE))
def test_the_order_of_rows_within_a_batch_does_not_matter(events: list[StepEvent]) -> None:
    assert step_rows(events) == step_rows(LIFE)


@given(st.lists(st.integers(0, len(LIFE)), max_size=4).map(sorted), st.booleans())
def test_however_the_life_is_cut_the_end_is_the_same_and_versions_only_grow(cuts: list[int], late: bool) -> None:
    """The message may come after its history: two logs are read at slightly different times."""
    events = [*LIFE[1:], LIFE[0]] if late else LIFE
    data, last, versions = b"", {}, []
    for first, end in zip([0, *cuts], [*cuts, len(events)]):
        steps = unpacked(data)
        for row in rows(steps, advance(steps, events[first:end])):
            versions.append(row["version"])
            last = row
        data = packed(steps)

    expected = step_rows(LIFE)[0]
    assert {**last, "version": 0} == {**expected, "version": 0}
    assert versions == sorted(set(versions))
