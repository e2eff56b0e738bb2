"""`driftq pipeline`: list, configure and run pipelines on Spark, and show what happened in a run."""

from __future__ import annotations

import sys
from typing import Any

import click

from driftq.cli import output
from driftq.cli.command import Invocation, as_json_option, broker_command, json_requested, topic_names
from driftq.cli.exit_codes import Exit, fail
from driftq.extras import require


@click.group()
def command() -> None:
    """Run pipelines on Spark: archive, audit, metrics and more."""


@command.command("list")
@as_json_option
def list_(as_json: bool) -> None:
    """List the pipelines.

    Example: driftq pipeline list
    """
    from driftq.spark.pipelines.settings import PIPELINES

    if json_requested(as_json):
        output.document({name: spec.summary for name, spec in PIPELINES.items()})
        return
    width = max(map(len, PIPELINES))
    for name, spec in PIPELINES.items():
        click.echo(f"{name:<{width}}  {spec.summary}")


def _pipeline_options(function: Any) -> Any:
    """Options for the most common settings; all others are set in a file, or with --set."""
    for option in reversed(
        (
            click.option(
                "--topic", "topics", multiple=True, shell_complete=topic_names, help="Topic to read (repeatable)."
            ),
            click.option("--table", metavar="DIR", help="Table to write, or to audit."),
            click.option(
                "--to", "target_topic", metavar="TOPIC", shell_complete=topic_names, help="Topic to write to."
            ),
            click.option("--once", is_flag=True, help="Process the available messages, then stop."),
            click.option("--checkpoint", metavar="DIR", help="Folder for the progress of the query."),
            click.option("--audit-every", metavar="10m", help="Audit an archive at this interval while it runs."),
            click.option("--master", metavar="URL", help="Spark master (default: all cores of this machine)."),
            click.option(
                "--set", "assignments", metavar="NAME=VALUE", multiple=True, help="Set any setting; `show` lists them."
            ),
        )
    ):
        function = option(function)
    return function


def _configured(invocation: Invocation, pipeline: str, assignments: tuple[str, ...], options: dict[str, Any]) -> Any:
    from driftq.settings.loader import SettingsError
    from driftq.spark.pipelines.settings import load

    names = {
        "topics": "source.topics", "table": "sink.table", "target_topic": "sink.topic", "once": "pipeline.once",
        "checkpoint": "pipeline.checkpoint", "master": "pipeline.master", "audit_every": "archive.audit_every",
    }  # fmt: skip
    values = {names[name]: value for name, value in options.items() if value}
    address = invocation.address
    server = {"source.url": address.url, "source.token": address.token, "source.token_file": address.token_file}
    server |= {f"source.{name}": path for name, path in address.tls_files._asdict().items() if path}
    if invocation.address.origin.endswith(("--url", "--context")):
        values |= server  # given on the command line, so it wins over the file
    try:
        return load(pipeline, assignments, values, server)
    except SettingsError as error:
        raise click.UsageError(str(error)) from None


@command.command(short_help="Print every setting of a pipeline as TOML.")
@click.argument("pipeline", metavar="NAME|FILE.toml")
@_pipeline_options
@broker_command
def show(invocation: Invocation, pipeline: str, assignments: tuple[str, ...], **options: Any) -> None:
    """Print every setting of a pipeline as TOML, with comments, as a file to start from. --json prints the values.

    Example: driftq pipeline show metrics --topic orders --table ./tables/metrics > metrics.toml
    """
    from driftq.spark.pipelines.settings import toml_lines

    lines = list(toml_lines(_configured(invocation, pipeline, assignments, options)))
    if invocation.as_json:
        import tomllib

        output.document(tomllib.loads("\n".join(lines)))
        return
    for line in lines:
        click.echo(line)


@command.command()
@click.argument("pipeline", metavar="NAME|FILE.toml")
@_pipeline_options
@broker_command
def run(invocation: Invocation, pipeline: str, assignments: tuple[str, ...], **options: Any) -> None:
    """Run a pipeline until it is done or stopped with Ctrl-C. Start it again to continue.

    \b
    Examples:
      driftq pipeline run archive --topic orders --table ./tables/orders
      driftq pipeline run audit --topic orders --table ./tables/orders
      driftq pipeline run metrics.toml --once
    """
    configuration = _configured(invocation, pipeline, assignments, options)
    require_spark()
    from driftq.settings.loader import SettingsError
    from driftq.spark.java import NoJava
    from driftq.spark.pipelines.query_monitor import QueryFailed
    from driftq.spark.pipelines.registry import run_pipeline

    try:
        code = run_pipeline(configuration, output.note, click.echo)
    except SettingsError as error:
        raise click.UsageError(str(error)) from None
    except NoJava as error:
        fail(Exit.NOTHING_THERE, str(error))
    except QueryFailed as error:
        fail(Exit.FAILED, str(error), "What was committed stays. Start it again to continue where it stopped.")
    if code:
        sys.exit(code)


@command.command()
@click.argument("run_id", metavar="RUN")
@click.option("--table", metavar="DIR", required=True, help="Table of the pipeline `runs`.")
def story(run_id: str, table: str) -> None:
    """Show what happened in an agent run, step by step.

    Example: driftq pipeline story RUN --table ./tables/runs
    """
    require_spark()
    from driftq.spark.java import NoJava
    from driftq.spark.pipelines.runs import NoStory, read_story
    from driftq.spark.tables import TableDamaged

    try:
        lines = read_story(run_id, table)
    except (NoJava, NoStory) as error:
        fail(Exit.NOTHING_THERE, str(error))
    except TableDamaged as error:
        fail(Exit.DAMAGED, str(error))
    if not lines:
        fail(Exit.NOTHING_THERE, f"there is no run {run_id!r} in {table}")
    for line in lines:
        click.echo(line)


@command.command(short_help="Compare policies on a recorded log.")
@click.option("--topic", required=True, shell_complete=topic_names, help="Topic with a history.")
@click.option("--group", required=True, help="Group whose work was recorded.")
@click.option("--policies", metavar="FILE.toml", required=True, help="Policies to compare.")
@click.option("--table", metavar="DIR", help="Read an archive of the topic and its history instead of the broker.")
@click.option("--from", "from_time", metavar="TIME", help="Only messages since this time: 2030-01-01T00:00:00Z.")
@click.option("--to", "to_time", metavar="TIME", help="Only messages before this time.")
@click.option(
    "--failures", type=click.Choice(["attempts", "time"]), default="attempts", show_default=True,
    help="How a failure of the record counts: by the number of the attempt, or by the time since the first one.",
)  # fmt: skip
@click.option("--seed", default=1, show_default=True, help="For the jitter of retries.")
@click.option("--plot", metavar="FILE.svg", help="Write a picture.")
@click.option("--master", metavar="URL", default="local[*]", show_default=True, help="Spark master.")
@broker_command
def backtest(invocation: Invocation, topic: str, group: str, policies: str, **options: Any) -> None:
    """Compare policies on a recorded log: waits, dead letters and cost.

    The log passes through the broker's own rules again, once for each policy.

    \b
    Example:
      driftq pipeline backtest --topic orders --group billing --policies policies.toml --plot compared.svg
    """
    require_spark()
    from driftq.backtest.policy import BadPolicies
    from driftq.cli.backtest import compare
    from driftq.settings.loader import SettingsError
    from driftq.spark.java import NoJava
    from driftq.spark.tables import NoTable

    try:
        compared = compare(invocation, topic, group, policies, options)
    except (BadPolicies, SettingsError) as error:
        raise click.UsageError(str(error)) from None
    except (NoJava, NoTable) as error:
        fail(Exit.NOTHING_THERE, str(error))
    if compared is None:
        fail(Exit.NOTHING_THERE, f"the history of {topic} has no finished attempts of group {group}")
    if invocation.as_json:
        output.document([figures._asdict() for figures in compared.figures])
        return
    for line in compared.lines:
        click.echo(line)


@command.command(short_help="Convert a table of an earlier version to Delta.")
@click.option("--table", metavar="DIR", required=True, help="Table that an earlier version of DriftQ wrote.")
@click.option("--master", metavar="URL", default="local[*]", show_default=True, help="Spark master.")
def convert(table: str, master: str) -> None:
    """Convert a table of an earlier version to the Delta format, in its folder. Stop its pipeline first.

    The rows are compared with what was committed. Where the table continues, and which batches it has, is kept. After
    an interruption, run it again.

    Example: driftq pipeline convert --table ./tables/orders
    """
    require_spark()
    from driftq.spark.java import NoJava
    from driftq.spark.pipelines.query_monitor import quiet_session
    from driftq.spark.tables import NoTable, TableBusy, TableDamaged, TableRefused
    from driftq.spark.tables import convert as convert_table

    try:
        with quiet_session(master, "driftq-convert") as spark:
            rows = convert_table(spark, table)
    except (NoJava, NoTable) as error:
        fail(Exit.NOTHING_THERE, str(error))
    except TableBusy as error:
        fail(Exit.IN_USE, str(error))
    except (TableDamaged, TableRefused) as error:
        fail(Exit.DAMAGED, str(error))
    click.echo(f"{table} is a Delta table with {rows:,} rows")


def require_spark() -> None:
    require("a pipeline", "spark")
