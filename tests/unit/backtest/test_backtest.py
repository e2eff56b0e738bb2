"""A recorded log under other policies: figures that can be computed by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from driftq.backtest.policy import BadPolicies, Policy, load_policies
from driftq.backtest.recorded_messages import Ending, RecordedAttempt, RecordedMessage, recorded_figures
from driftq.backtest.run import Options, backtest
from driftq.wire.message import RetryPolicy

START_MS = 1_700_000_000_000


def message(
    number: int, at_ms: int, *endings: Ending, work_ms: int = 100, wait_ms: int = 0, **fields
) -> RecordedMessage:
    """A message whose attempts began a second apart."""
    attempts = []
    for index, ending in enumerate(endings):
        started_ms = START_MS + at_ms + wait_ms + index * 1_000
        attempts.append(RecordedAttempt(started_ms, started_ms + work_ms, ending))
    return RecordedMessage(0, number, START_MS + at_ms, tuple(attempts), **fields)


def retry(attempts: int, backoff_ms: int = 1_000) -> RetryPolicy:
    return RetryPolicy(max_attempts=attempts, backoff_ms=backoff_ms, max_backoff_ms=60_000, jitter="none")


def test_more_workers_wait_less_and_work_as_much():
    burst = [message(number, 0, "acked") for number in range(8)]

    one, four = (backtest(burst, Policy(name=str(workers), workers=workers)) for workers in (1, 4))

    assert (one.wait_max_ms, four.wait_max_ms) == (700, 100)
    assert one.work_ms == four.work_ms == 800
    assert (one.acked, one.dead, one.open, one.unseen) == (8, 0, 0, 0)


def test_a_policy_with_more_attempts_saves_what_succeeded_later_and_no_more():
    log = [
        message(0, 0, "acked"),
        message(1, 0, "failed", "failed", "acked"),
        message(2, 0, "failed", "failed", "dead"),
    ]

    two, three, nine = (backtest(log, Policy(name=str(limit), retry=retry(limit))) for limit in (2, 3, 9))

    assert [(figures.acked, figures.dead) for figures in (two, three, nine)] == [(1, 2), (2, 1), (2, 1)]
    assert [figures.unseen for figures in (two, three, nine)] == [0, 0, 6]
    assert nine.attempts == 1 + 3 + 9


def test_a_record_under_its_own_policy_has_its_own_figures():
    log = [message(0, 0, "failed", "acked"), message(1, 5_000, "acked"), message(2, 9_000, "failed", "dead")]

    again = backtest(log, Policy(name="recorded", retry=retry(2, 900)))  # 100 ms of work, then 900 of backoff

    assert again == recorded_figures(log)


def test_failures_by_time_end_when_they_ended_in_the_record():
    outage = [message(0, 0, "failed", "failed", "failed", "acked")]  # it was over after three seconds
    slow = Policy(name="slow", retry=retry(2, 4_000))

    by_number = backtest(outage, slow)
    by_time = backtest(outage, slow, Options(failures="time"))

    assert (by_number.acked, by_number.dead) == (0, 1)
    assert (by_time.acked, by_time.dead) == (1, 0)


def test_in_a_fair_topic_a_small_tenant_does_not_wait_for_a_large_one():
    log = [message(number, 0, "acked", tenant_id="large") for number in range(50)]
    log += [message(50 + number, 10, "acked", tenant_id="small") for number in range(2)]

    plain, fair = (backtest(log, Policy(name=f"fair {fair!r}", fair=fair)) for fair in ("", "tenant"))

    assert plain.tenant_wait_p95_ms["small"] > 4_900
    assert fair.tenant_wait_p95_ms["small"] < 500
    assert plain.work_ms == fair.work_ms


def test_rules_route_to_workers_of_a_label(tmp_path: Path):
    (tmp_path / "rules.toml").write_text('[[rule]]\nmatch = { tenant = "vip" }\nroute = { label = "vip" }\n')
    (tmp_path / "policies.toml").write_text(
        'hourly_price = 3.6\n[[policy]]\nname = "lane"\nrules = "rules.toml"\nworkers = { "" = 1, vip = 1 }\n'
    )
    log = [message(number, 0, "acked", tenant_id="large") for number in range(50)]
    log += [message(50, 10, "acked", tenant_id="vip")]
    policies = load_policies(str(tmp_path / "policies.toml"))

    figures = backtest(log, policies.policy[0])

    assert figures.tenant_wait_p95_ms["vip"] < 200
    assert figures.cost(policies.hourly_price) == pytest.approx(5.1 * 3.6 / 3_600)


def test_lost_workers_and_rejected_messages_stay_what_they_were():
    log = [message(0, 0, "expired", "acked"), message(1, 0, "rejected")]

    figures = backtest(log, Policy(name="short leases", lease_ms=2_000, retry=retry(5)))

    assert (figures.acked, figures.dead, figures.open) == (1, 1, 0)
    assert figures.done_p95_ms == 2_000 + 1_000 + 100
    assert figures.work_ms == 2_000 + 100 + 100


def test_work_that_takes_longer_than_a_lease_keeps_it():
    idle_beside_it = Policy(name="p", lease_ms=1_000, workers=2)  # a lease that ended would be claimed again

    figures = backtest([message(0, 0, "acked", work_ms=90_000)], idle_beside_it)

    assert (figures.acked, figures.attempts) == (1, 1)


def test_what_never_ends_is_open_at_the_horizon():
    figures = backtest([message(0, 0, "failed", "dead")], Policy(name="endless"), Options(horizon_ms=60_000))

    assert (figures.acked, figures.dead, figures.open) == (0, 0, 1)
    assert figures.unseen == figures.attempts - 2 > 0


def test_the_same_seed_gives_the_same_figures():
    log = [message(number, number * 50, "failed", "failed", "acked") for number in range(40)]
    policy = Policy(name="jitter", workers=40, retry=RetryPolicy(5, 1_000, 60_000, "full"))

    first, again, other = (backtest(log, policy, Options(seed=seed)) for seed in (1, 1, 2))

    assert first == again != other


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "policy"),
        ("[[policy]]\nname = 'a'\nretries = 3", "retries"),
        ("[[policy]]\nname = 'a'\n[[policy]]\nname = 'a'", "same name"),
        ("[[policy]]\nname = 'a'\nworkers = 0", "workers"),
        ("policy = 3 3", "policies.toml"),
    ],
)
def test_policies_that_are_wrong_are_refused(tmp_path: Path, text: str, says: str):
    path = tmp_path / "policies.toml"
    path.write_text(text)
    with pytest.raises(BadPolicies, match=says):
        load_policies(str(path))


def test_rules_for_another_topic_are_refused(tmp_path: Path):
    (tmp_path / "rules.toml").write_text('[[rule]]\nroute = { target_topic = "elsewhere" }\n')
    with pytest.raises(BadPolicies, match="another topic"):
        backtest([], Policy(name="p", rules=str(tmp_path / "rules.toml")))
