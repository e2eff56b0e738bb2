"""The body of `driftq pipeline backtest`: reads the record with Spark, and runs each policy on it.

Spark does not know the broker's rules, and the rules know no Spark, so the two meet here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from driftq.backtest.policy import load_policies
from driftq.backtest.recorded_messages import RecordedMessage, messages_of, recorded_figures, workers_seen
from driftq.backtest.report import picture, table_lines
from driftq.backtest.run import Options, backtest
from driftq.settings.loader import SettingsError
from driftq.wire.fields import from_rfc3339

if TYPE_CHECKING:
    from driftq.backtest.figures import Figures
    from driftq.cli.command import Invocation


class Comparison(NamedTuple):
    figures: Sequence[Figures]
    lines: Sequence[str]


def compare(
    invocation: Invocation, topic: str, group: str, policies: str, options: Mapping[str, Any]
) -> Comparison | None:
    """None if nothing was recorded. Raises `BadPolicies` and `SettingsError` before Spark starts."""
    chosen = load_policies(policies)
    for policy in chosen.policy:
        policy.router()
    between = [_time_ms(name, options[name]) for name in ("from_time", "to_time")]
    messages = _read(invocation, topic, group, options, between, any(policy.rules for policy in chosen.policy))
    if not messages:
        return None
    workers = workers_seen(messages)
    how = Options(workers, options["failures"], options["seed"])
    figures = [recorded_figures(messages), *(backtest(messages, policy, how) for policy in chosen.policy)]
    if options["plot"]:
        title = f"{topic}, group {group}: policies compared"
        Path(options["plot"]).write_text(picture(title, figures, chosen.hourly_price), encoding="utf-8")
    head = f"{topic}, group {group}: {len(messages):,} messages, at most {workers:,} attempts at a time"
    return Comparison(figures, [head, *table_lines(figures, chosen.hourly_price)])


def _read(
    invocation: Invocation,
    topic: str,
    group: str,
    options: Mapping[str, Any],
    between: Sequence[int | None],
    values: bool,
) -> list[RecordedMessage]:
    from pyspark.sql import functions as F

    from driftq.spark.pipelines.io import read_recorded
    from driftq.spark.pipelines.query_monitor import quiet_session
    from driftq.spark.pipelines.recorded_attempts import collected, recorded
    from driftq.spark.pipelines.settings import load

    address = invocation.address
    server = {"source.url": address.url, "source.token": address.token, "source.topics": (topic,)}
    server["source.token_file"] = address.token_file
    server |= {f"source.{name}": path for name, path in address.tls_files._asdict().items() if path}
    with quiet_session(options["master"], "driftq-backtest") as spark:
        frame = recorded(read_recorded(spark, load("backlog", values=server), options["table"] or ""), group)
        first_ms, end_ms = between
        if first_ms is not None:
            frame = frame.where(F.col("produced_ms") >= first_ms)
        if end_ms is not None:
            frame = frame.where(F.col("produced_ms") < end_ms)
        return messages_of(collected(frame, values=values))


def _time_ms(name: str, text: str | None) -> int | None:
    try:
        return from_rfc3339(text) if text else None
    except ValueError:
        flag = "--" + name.removesuffix("_time")
        raise SettingsError(f"{flag}: a time like 2030-01-01T00:00:00Z is expected, not {text!r}") from None
