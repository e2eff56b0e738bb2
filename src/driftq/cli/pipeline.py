"""`driftq pipeline`: run pipelines on Spark, see what there is, and ask what happened in a run."""

from __future__ import annotations

import sys
from typing import Any

import click

from driftq.cli import output
from driftq.cli.command import Invocation, as_json_option, asks, topic_names, wants_json
from driftq.cli.exit_codes import Exit, fail

NO_SPARK = "Spark is not installed. Install it with: pip install 'driftq[spark]' (Java comes with it)"


@click.group()
def command() -> None:
    """Run pipelines on Spark: archive, audit, metrics and more."""


@command.command("list")
@as_json_option
def list_(as_json: bool) -> None:
    """The pipelines there are.

    Example: driftq pipeline list
    """
    from driftq.spark.pipelines.configuration import PIPELINES

    if wants_json(as_json):
        output.document({name: known.summary for name, known in PIPELINES.items()})
        return
    width = max(map(len, PIPELINES))
    for name, known in PIPELINES.items():
        click.echo(f"{name:<{width}}  {known.summary}")


def _told(function: Any) -> Any:
    """What a pipeline can be told on the command line; everything else is in its file, or given by --set."""
    for option in reversed(
        (
            click.option("--topic", "topics", multiple=True, shell_complete=topic_names, help="Read it (repeatable)."),
            click.option("--table", metavar="DIR", help="The table to write, or to audit."),
            click.option("--to", "target_topic", metavar="TOPIC", shell_complete=topic_names, help="Write to it."),
            click.option("--once", is_flag=True, help="Work off what is there now, then end."),
            click.option("--checkpoint", metavar="DIR", help="Where progress is kept."),
            click.option("--master", metavar="URL", help="The Spark master (default: all cores of this machine)."),
            click.option("--set", "assignments", metavar="NAME=VALUE", multiple=True, help="Any setting: see `show`."),
        )
    ):
        function = option(function)
    return function


def _configured(asked: Invocation, pipeline: str, assignments: tuple[str, ...], words: dict[str, Any]) -> Any:
    from driftq.settings.loader import SettingsError
    from driftq.spark.pipelines.configuration import load

    names = {
        "topics": "source.topics", "table": "sink.table", "target_topic": "sink.topic", "once": "pipeline.once",
        "checkpoint": "pipeline.checkpoint", "master": "pipeline.master",
    }  # fmt: skip
    values = {names[name]: value for name, value in words.items() if value}
    server = {"source.url": asked.place.url, "source.token": asked.place.token}
    if asked.place.origin.endswith(("--url", "--context")):
        values |= server  # said here and now, so it wins over the file
    try:
        return load(pipeline, assignments, values, server)
    except SettingsError as error:
        raise click.UsageError(str(error)) from None


@command.command()
@click.argument("pipeline", metavar="NAME|FILE.toml")
@_told
@asks
def show(asked: Invocation, pipeline: str, assignments: tuple[str, ...], **words: Any) -> None:
    """Print every setting of a pipeline as TOML, with what it means; a file to begin with. --json prints the values.

    Example: driftq pipeline show metrics --topic orders --table ./tables/metrics > metrics.toml
    """
    from driftq.spark.pipelines.configuration import toml_lines

    lines = list(toml_lines(_configured(asked, pipeline, assignments, words)))
    if asked.as_json:
        import tomllib

        output.document(tomllib.loads("\n".join(lines)))
        return
    for line in lines:
        click.echo(line)


@command.command()
@click.argument("pipeline", metavar="NAME|FILE.toml")
@_told
@asks
def run(asked: Invocation, pipeline: str, assignments: tuple[str, ...], **words: Any) -> None:
    """Run a pipeline until it is done or stopped with Ctrl-C; start it again to go on.

    \b
    Examples:
      driftq pipeline run archive --topic orders --table ./tables/orders
      driftq pipeline run audit --topic orders --table ./tables/orders
      driftq pipeline run metrics.toml --once
    """
    configuration = _configured(asked, pipeline, assignments, words)
    needs_spark()
    from driftq.settings.loader import SettingsError
    from driftq.spark.java import NoJava
    from driftq.spark.pipelines.query_monitor import QueryFailed
    from driftq.spark.pipelines.run import run_pipeline

    try:
        code = run_pipeline(configuration, output.remark, click.echo)
    except SettingsError as error:
        raise click.UsageError(str(error)) from None
    except NoJava as error:
        fail(Exit.NOTHING_THERE, str(error))
    except QueryFailed as error:
        fail(Exit.FAILED, str(error), "What was committed stays. Start it again to go on where it stopped.")
    if code:
        sys.exit(code)


@command.command()
@click.argument("run_id", metavar="RUN")
@click.option("--table", metavar="DIR", required=True, help="The table that the pipeline `runs` writes.")
def story(run_id: str, table: str) -> None:
    """What happened in an agent run, step by step.

    Example: driftq pipeline story RUN --table ./tables/runs
    """
    needs_spark()
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


def needs_spark() -> None:
    try:
        import pandas  # type: ignore[import-untyped]  # noqa: F401
        import pyarrow  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError:
        fail(Exit.NOTHING_THERE, NO_SPARK)
