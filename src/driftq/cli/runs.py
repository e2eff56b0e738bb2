"""`driftq runs`: messages and streams that share a run id."""

from __future__ import annotations

import click

from driftq.cli import output
from driftq.cli.command import Invocation, broker_command
from driftq.cli.watch import watchable


@click.group()
def command() -> None:
    """List and show runs: messages and streams that share a run id."""


@command.command("list")
@click.option("--state", default="", help="Only runs in this state: running, waiting, failed, cancelled or done.")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="How many.")
@broker_command
@watchable
def list_(invocation: Invocation, state: str, limit: int) -> None:
    """List the runs of the last day, the newest first.

    Example: driftq runs list --state failed
    """
    runs = invocation.broker.runs.list(state=state, limit=limit)
    if invocation.as_json:
        output.document(runs)
        return
    rows = (
        (
            run.run_id, run.state, run.steps, " ".join(f"{name}:{count}" for name, count in run.states.items()),
            run.streams, run.began_at, run.changed_at,
        )
        for run in runs
    )  # fmt: skip
    header = ("RUN", "STATE", "STEPS", "STATES", "STREAMS", "BEGAN", "CHANGED")
    output.table(header, rows, "No runs. Send messages with a run id: driftq produce TOPIC VALUE --run-id RUN")


@command.command()
@click.argument("run_id", metavar="RUN")
@broker_command
def show(invocation: Invocation, run_id: str) -> None:
    """Show the steps of a run as a tree.

    Example: driftq runs show run-7
    """
    run = invocation.broker.runs.describe(run_id)
    if invocation.as_json:
        output.document(run)
        return
    output.fields(
        [
            ("run", run.run_id),
            ("state", run.state),
            ("began", run.began_at),
            ("changed", run.changed_at),
            ("streams", ", ".join(run.streams)),
            ("steps not shown", run.omitted or ""),
        ]
    )
    click.echo()
    rows = (
        (
            "  " * step.depth + (step.step_id or step.task or "message"), step.state,
            f"{step.topic} {step.partition}:{step.offset}", step.task, step.attempts, step.owner,
            output.shortened(step.error),
        )
        for step in run.steps
    )  # fmt: skip
    output.table(("STEP", "STATE", "MESSAGE", "TASK", "ATTEMPTS", "OWNER", "ERROR"), rows)
