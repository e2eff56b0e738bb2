"""The longest pauses of a load, and their causes."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import pytest

from bench.pauses import Look, Observer, Probe, Wait, pauses
from tests.support.wait import until_now


@dataclass
class Observed:
    """One request of 40 ms, due at 10 s, and what was observed in that time."""

    late_s: float = 0.0
    cpu_s: float = 0.001
    core_wait_s: float = 0.001
    probes: list[Probe] = field(default_factory=list)

    def cause(self) -> str:
        waits = [Wait(10.0, 10.04, self.late_s, "ack"), Wait(20.0, 20.001, 0.0, "produce")]
        looks = [Look(9.99, 5.0, 1.0), Look(10.05, 5.0 + self.cpu_s, 1.0 + self.core_wait_s)]
        (pause,) = pauses(waits, looks, self.probes, 8.0, 1)
        assert (pause.at_s, round(pause.wait_ms, 3), pause.requests) == (2.0, 40.0, 1)
        return pause.cause


@pytest.mark.parametrize(
    ("observed", "cause"),
    [
        (Observed(cpu_s=0.030), "work of the server (ack)"),
        (Observed(cpu_s=0.030, core_wait_s=0.025), "the server waited for a core"),
        (Observed(cpu_s=0.030, late_s=0.025), "the load generator was late"),
        (Observed(probes=[Probe(10.01, 10.035)]), "the disk"),
        (Observed(probes=[Probe(9.0, 9.9)]), "several (ack)"),
        (Observed(cpu_s=0.010, core_wait_s=0.010), "several (ack)"),
    ],
)
def test_what_took_half_of_a_wait_is_its_cause(observed, cause):
    assert observed.cause() == cause


def test_requests_that_waited_together_are_one_pause():
    waits = [Wait(1.0, 1.05, 0, "a"), Wait(1.01, 1.05, 0, "b"), Wait(2.0, 2.03, 0, "c"), Wait(3.0, 3.001, 0, "d")]
    longest = pauses(waits, [], [], 0.0, 3)
    assert [(pause.at_s, pause.requests) for pause in longest] == [(1.0, 2), (2.0, 1), (3.0, 1)]


def test_the_observer_sees_work_and_syncs_and_leaves_no_file(tmp_path):
    with Observer(os.getpid(), tmp_path) as observer:
        until_now(lambda: len(observer.probes) >= 2 and sum(range(50_000)) > 0, 20)
    assert observer.looks[-1].cpu_s > observer.looks[0].cpu_s
    assert all(probe.ended_s > probe.began_s for probe in observer.probes)
    assert not list(tmp_path.iterdir())
