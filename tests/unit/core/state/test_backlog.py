"""A group's lag: what it has left to do, without the tasks that it never claims."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from driftq.core.model import commands as c
from driftq.core.model import facts as f
from driftq.core.state.backlog import lag_of
from driftq.core.state.jobs import claims
from driftq.core.state.lane_lag import PLAIN, lane_lags
from tests.support.broker_fixture import BrokerFixture, held, offsets, produce

TASKS = ("", "mail", "sms")


@pytest.mark.parametrize("seed", range(20))
def test_lag_is_what_a_count_of_every_message_says(seed):
    random = Random(seed)
    fixture = BrokerFixture(seed=seed)
    fixture.topic()
    for _ in range(120):
        match random.randrange(5):
            case 0 | 1:
                task, later = random.choice(TASKS), random.random() < 0.2
                marks = (f.RecordSchedule(0, 0, task, not_before_ms=fixture.now_ms + 50 if later else 0),)
                fixture.do(produce("v", marks=marks if task or later else ()))
            case 2:
                fixture.do(c.Cancel("t", 0, random.randrange(60)))
            case 3:
                claimed = fixture.claim(3, group=random.choice("gh"), task=random.choice(("mail", "mail", "sms")))
                if claimed.deliveries and random.random() < 0.8:
                    group = fixture.broker.state.groups[claimed.group_id].name
                    fixture.do(c.Ack("t", group, "w", held(*offsets(claimed), token=claimed.token)))
            case _:
                fixture.advance(20)
        state = fixture.broker.state
        for group in state.groups.values():
            progress = group.progress[0]
            log = state.logs[progress.log_id]
            left = [offset for offset in range(log.start, log.end) if not progress.is_settled(offset)]
            wanted = [offset for offset in left if claims(group, log, offset)]
            lag = lag_of(group, log)
            assert (lag.messages, lag.unclaimed) == (len(wanted), len(left) - len(wanted))
            lanes = list(lane_lags(progress, log))[-1]
            assert lanes is not None
            assert {key: lag.messages for key, lag in lanes.items()} == Counter(
                log.lanes.key_of(offset) or PLAIN for offset in left
            )
            assert sum(lag.in_flight for lag in lanes.values()) == progress.in_flight
            assert sum(lag.waiting for lag in lanes.values()) == progress.resting
