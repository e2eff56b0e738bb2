"""Policies side by side."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from driftq.backtest.policy import Policy
from driftq.backtest.recorded_messages import recorded_figures
from driftq.backtest.report import duration, picture, table_lines
from driftq.backtest.run import backtest
from tests.unit.backtest.test_backtest import message

LOG = [message(number, 0, "acked", tenant_id=f"t{number % 2}", work_ms=1_800_000) for number in range(4)]
COMPARED = [recorded_figures(LOG), backtest(LOG, Policy(name="one worker", workers=1))]


def test_the_table_has_a_line_for_each_policy_and_a_price_only_if_there_is_one():
    head, first, second = table_lines(COMPARED)
    assert head.split()[:4] == ["policy", "acked", "dead", "open"]
    assert (first.split()[0], second.split()[:2]) == ("recorded", ["one", "worker"])
    assert "cost" not in head
    assert table_lines(COMPARED, 2.0)[1].endswith("4.00")
    assert len({len(line) for line in table_lines(COMPARED)}) == 1


def test_the_picture_has_a_panel_for_each_figure_and_each_tenant():
    texts = [
        "".join(text.itertext())
        for text in ElementTree.fromstring(picture("p", COMPARED, 2.0)).iter()
        if text.tag.endswith("}text")
    ]
    titles = [text.split(" 95")[0] for text in texts if text.startswith(("Wait", "Time", "Dead", "Cost"))]
    assert titles == ["Wait", "Time to ack", "Dead letters", "Cost at 2 an hour", "Wait of t0", "Wait of t1"]
    assert texts.count("one worker") == 6


def test_durations_have_a_unit():
    assert [duration(ms) for ms in (0, 999, 1_000, 90_000, 7_200_000)] == [
        "0 ms",
        "999 ms",
        "1.00 s",
        "1.50 min",
        "2.00 h",
    ]
