"""Backlog, costs, quality and backtests over a real broker."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from pyspark.sql import functions as F

from driftq.settings.loader import SettingsError
from driftq.spark.pipelines import backlog, costs, quality
from driftq.spark.pipelines.query_monitor import Stop
from driftq.spark.tables import open_table
from tests.spark.test_pipelines import configured, run_to_end, values_of
from tests.spark.test_pipelines_frames import messages

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
EVENTS = [  # second, event, offset, attempt
    (5, "delivered", 0, 1), (6, "delivered", 1, 1), (7, "acked", 0, 1), (8, "failed", 1, 1),
    (9, "delivered", 2, 1), (10, "released", 2, 1), (20, "delivered", 1, 2), (21, "dead", 1, 2),
]  # fmt: skip


def history_rows():
    for number, (second, event, offset, attempt) in enumerate(EVENTS):
        at = (NOON + timedelta(seconds=second)).isoformat()
        value = {"event": event, "topic": "orders", "partition": 0, "offset": offset, "group": "g", "owner": "w"}
        value |= {"attempt": attempt, "at": at, "error": "broken" if event in ("failed", "dead") else ""}
        yield {"topic": "orders.history", "offset": number, "value": json.dumps(value).encode()}


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        (0.5, {0: None}),
        (6.5, {0: "leased", 1: "leased", 2: "waiting"}),
        (8, {0: "settled", 1: "retrying", 2: "waiting"}),
        (10, {0: "settled", 1: "retrying", 2: "waiting"}),
        (60, {0: "settled", 1: "dead", 2: "waiting"}),
    ],
)
def test_the_state_of_each_message_is_that_of_its_last_event_by_then(spark, second, expected) -> None:
    rows = messages(spark, {}, {}, {}, *history_rows())

    rows_found = backlog.states(rows, F.lit(NOON + timedelta(seconds=second))).collect()

    if second < 5:
        assert [(row["offset"], row["group"], row["state"]) for row in rows_found] == [(0, None, "waiting")]
        return
    assert {row["offset"]: row["state"] for row in rows_found} == expected
    (one,) = (row for row in rows_found if row["offset"] == 1)
    assert (one["error"], one["owner"]) == ((None, "w") if second < 8 else ("broken", None))


def test_the_depth_over_time_adds_up(spark) -> None:
    rows = messages(spark, {}, {}, {}, *history_rows())

    series = backlog.depths(rows, "5 seconds").orderBy("at").collect()

    assert [(row["waiting"], row["leased"], row["retrying"]) for row in series] == [
        (3, 0, 0),  # until 12:00:05
        (0, 1, 1),  # until 12:00:10
        (1, 0, 1),
        (1, 0, 0),
    ]


def test_a_backtest_and_a_backlog_of_a_real_history(server, broker, spark, tmp_path) -> None:
    broker.topics.create("orders", history=True, retry={"max_attempts": 2, "backoff_ms": 1})
    for number in range(4):
        broker.send("orders", str(number), tenant="acme")
    first, second, third = broker.claim("orders", "billing", max=3)
    first.ack()
    second.reject("wrong")
    third.nack("busy", delay_ms=0)
    broker.claim("orders", "billing", max=1)[0].ack()
    (tmp_path / "policies.toml").write_text('[[policy]]\nname = "once"\nretry = { max_attempts = 1, backoff_ms = 1 }\n')
    lines: list[str] = []

    backlog.run_backlog(
        spark, configured(server, tmp_path, "backlog", source__topics=("orders",)), Stop(), lines.append
    )
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "driftq.cli.main", "pipeline", "backtest", "--url", server.url, "--json"),
            *("--topic", "orders", "--group", "billing", "--master", "local[1]"),
            *("--policies", str(tmp_path / "policies.toml"), "--plot", str(tmp_path / "compared.svg")),
        ],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip

    assert [line.split()[:4] for line in lines] == [
        ["1", "dead", "orders", "billing"],
        ["2", "settled", "orders", "billing"],
        ["1", "waiting", "orders", "billing"],
    ]  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    recorded, once = json.loads(ended.stdout)
    assert (recorded["acked"], recorded["dead"], recorded["attempts"]) == (2, 1, 4)
    assert (once["acked"], once["dead"], once["attempts"]) == (1, 2, 3)
    assert (tmp_path / "compared.svg").read_text().startswith("<svg")


def test_costs_are_exact_and_models_without_a_price_are_counted(spark, server, broker, tmp_path) -> None:
    (tmp_path / "prices.toml").write_text('[[price]]\nmodel = "a*"\ninput = 0.1\noutput = 0.3\ncall = 0.002\n')
    prices = costs.load_prices(str(tmp_path / "prices.toml"))
    used = [{"model": "a1", "usage": {"input_tokens": 1, "output_tokens": 2}}] * 3 + [{"model": "b"}, {"other": 1}]
    rows = messages(spark, *({"value": json.dumps(one).encode(), "tenant_id": "acme"} for one in used))

    usage = costs.usage(rows, "$.model", "$.usage.input_tokens", "$.usage.output_tokens")
    rows_found = {row["model"]: row for row in costs.summed(costs.priced(usage, prices)).collect()}

    assert sorted(rows_found) == ["a1", "b"]
    assert rows_found["a1"]["cost"] == Decimal("0.0060021")
    assert (rows_found["a1"]["calls"], rows_found["a1"]["output_tokens"], rows_found["a1"]["unpriced"]) == (3, 6, 0)
    assert (rows_found["b"]["cost"], rows_found["b"]["unpriced"]) == (0, 1)
    (tmp_path / "wrong.toml").write_text('[[price]]\nmodel = "a"\ninputs = 1\n')
    with pytest.raises(SettingsError, match="inputs"):
        costs.load_prices(str(tmp_path / "wrong.toml"))


def test_rows_that_break_a_rule_are_in_the_other_topic_with_the_reason_once(spark, server, broker, tmp_path) -> None:
    (tmp_path / "rules.toml").write_text(
        '[[rule]]\nname = "total"\ncheck = "body.total >= 0"\nreason = "negative"\n'
        '[[rule]]\nname = "tenant"\ncheck = "tenant_id != \'\'"\n'
    )
    for topic in ("orders", "clean", "clean.rejected"):
        broker.topics.create(topic)
    for value in ('{"total": 1}', '{"total": -1}', '{"total": null}', "broken"):
        broker.send("orders", value, key="k", tenant="acme", labels={"colour": "red"})
    broker.send("orders", '{"total": -3}')
    config = configured(
        server, tmp_path, "quality", source__topics=("orders",), sink__topic="clean",
        quality__rules=str(tmp_path / "rules.toml"), quality__schema="total DOUBLE",
    )  # fmt: skip

    run_to_end(spark, config)
    run_to_end(spark, config)

    assert values_of(broker, "clean") == ['{"total": 1}']
    rejected = {message.text: message.envelope.labels for message in broker.claim("clean.rejected", "g", max=9)}
    assert {text: (labels[quality.RULE], labels[quality.REASON]) for text, labels in rejected.items()} == {
        '{"total": -1}': ("total", "negative"),
        '{"total": null}': ("total", "negative"),
        "broken": ("schema", "the value does not fit the schema"),
        '{"total": -3}': ("total; tenant", "negative; tenant_id != ''"),
    }
    assert (rejected["broken"]["colour"], rejected["broken"][quality.ORIGIN]) == ("red", "orders/0/3")
    with pytest.raises(SettingsError, match="that it reads"):
        run_to_end(spark, configured(
            server, tmp_path, "quality", source__topics=("clean",), sink__topic="clean",
            quality__rules=str(tmp_path / "rules.toml"),
        ))  # fmt: skip


def test_costs_are_written_when_their_window_has_ended(spark, server, broker, tmp_path) -> None:
    (tmp_path / "prices.toml").write_text('[[price]]\nmodel = "*"\ncall = 0.5\n')
    broker.topics.create("usage")
    for _ in range(4):
        broker.send("usage", {"model": "m"})
    config = configured(
        server, tmp_path, "costs", source__topics=("usage",), sink__table=str(tmp_path / "costs"),
        costs__prices=str(tmp_path / "prices.toml"), costs__window="1 millisecond", costs__watermark="1 millisecond",
    )  # fmt: skip
    run_to_end(spark, config)
    broker.send("usage", {"model": "m"})
    run_to_end(spark, config)

    rows = open_table(spark, config.sink.table).read().collect()

    assert (sum(row["calls"] for row in rows), sum(row["cost"] for row in rows)) == (4, 2)
