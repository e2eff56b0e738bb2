"""The fair queue: shares and flows that always have work get the same, a light flow goes first, none starves."""

from __future__ import annotations

import collections

from hypothesis import given
from hypothesis import strategies as st

from driftq.server.http.fair_queue import SHARES_KEPT, FairQueue, Flow

COST_MAX = 20
costs = st.lists(st.integers(1, COST_MAX), min_size=200, max_size=200)


def served_costs(queue: FairQueue[str], costs_in_turn: list[int], keys: dict[str, str]) -> dict[str, int]:
    """Serve flows that always have more work, and add up what each got."""
    totals: dict[str, int] = collections.Counter()
    for cost in costs_in_turn:
        flow = queue.pop()
        assert flow is not None
        totals[flow.owner] += cost
        queue.charge(flow, cost)
        queue.push(flow, keys[flow.owner])
    return totals


@given(costs_in_turn=costs, flow_count=st.integers(1, 12))
def test_flows_that_always_have_work_get_the_same_cost(costs_in_turn, flow_count):
    keys = {f"flow {number}": "one key" for number in range(flow_count)}
    queue: FairQueue[str] = FairQueue()
    for owner, key in keys.items():
        queue.push(Flow(owner), key)
    totals = served_costs(queue, costs_in_turn, keys)
    amounts = [totals[owner] for owner in keys]
    assert max(amounts) - min(amounts) <= 2 * COST_MAX


@given(costs_in_turn=costs, flow_counts=st.lists(st.integers(1, 8), min_size=2, max_size=4))
def test_shares_that_always_have_work_get_the_same_cost_however_many_flows_they_have(costs_in_turn, flow_counts):
    keys = {f"{key}/{number}": f"key {key}" for key, count in enumerate(flow_counts) for number in range(count)}
    queue: FairQueue[str] = FairQueue()
    for owner, key in keys.items():
        queue.push(Flow(owner), key)
    totals = served_costs(queue, costs_in_turn, keys)
    by_key = [sum(totals[owner] for owner in keys if keys[owner] == f"key {key}") for key in range(len(flow_counts))]
    assert max(by_key) - min(by_key) <= 2 * COST_MAX


@given(costs_in_turn=costs, heavy_count=st.integers(1, 12), own_key=st.booleans(), after=st.integers(0, 50))
def test_a_flow_that_was_idle_is_served_before_any_other_is_served_twice(costs_in_turn, heavy_count, own_key, after):
    keys = {f"heavy {number}": "a key" for number in range(heavy_count)}
    queue: FairQueue[str] = FairQueue()
    for owner, key in keys.items():
        queue.push(Flow(owner), key)
    served_costs(queue, costs_in_turn[:after], keys)
    light = Flow("light")
    queue.push(light, "own key" if own_key else "a key")
    for _ in range(3):
        served: list[str] = []
        while (flow := queue.pop()) is not light:
            assert flow is not None
            served.append(flow.owner)
            queue.charge(flow, costs_in_turn[len(served)])
            queue.push(flow, keys[flow.owner])
        assert len(served) == len(set(served))
        queue.charge(light, 1)
        served_costs(queue, costs_in_turn[50:150], keys)  # it is idle for long enough to owe nothing
        queue.push(light, "own key" if own_key else "a key")


class Model:
    """Flows that come and go: the sets that the queue must agree with."""

    def __init__(self) -> None:
        self.queue: FairQueue[int] = FairQueue()
        self.flows = [Flow(number) for number in range(6)]
        self.waiting: set[int] = set()


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["push", "pop", "remove", "charge"]), st.integers(0, 5), st.integers(0, 2)),
        max_size=120,
    )
)
def test_the_queue_holds_exactly_the_flows_that_were_pushed_and_serves_them_all(steps):
    model = Model()
    for action, number, extra in steps:
        flow = model.flows[number]
        match action:
            case "push":
                model.queue.push(flow, f"key {extra}")
                model.waiting.add(number)
            case "remove":
                model.queue.remove(flow)
                model.waiting.discard(number)
            case "charge":
                model.queue.charge(flow, extra * 10)
            case "pop":
                popped = model.queue.pop()
                assert (popped is not None) == bool(model.waiting), "work-conserving"
                if popped is not None:
                    model.waiting.remove(popped.owner)
        assert len(model.queue) == len(model.waiting)
        assert {flow.owner for flow in model.flows if flow.is_waiting} == model.waiting
    rest = [flow.owner for flow in iter(model.queue.pop, None)]
    assert sorted(rest) == sorted(model.waiting), "each of them once"


def test_shares_that_owe_nothing_are_forgotten():
    queue: FairQueue[int] = FairQueue()
    steady = Flow(-1)
    queue.push(steady, "steady")
    for number in range(20 * SHARES_KEPT):
        queue.push(Flow(number), f"key {number}")
        for _ in range(2):
            flow = queue.pop()
            assert flow is not None
            queue.charge(flow, 1)
            if flow is steady:
                queue.push(steady, "steady")
    assert len(queue._shares) <= 4 * SHARES_KEPT


def test_a_flow_that_was_served_while_no_other_waited_owes_nothing():
    queue: FairQueue[str] = FairQueue()
    alone, other = Flow("alone"), Flow("other")
    queue.push(alone, "a key")
    for _ in range(3):
        assert queue.pop() is alone
        queue.charge(alone, 1_000)
        queue.push(alone, "a key")
    queue.push(other, "a key")
    assert queue.pop() is alone, "they are equal, and it came first"
