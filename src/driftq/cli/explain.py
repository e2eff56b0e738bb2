"""`driftq explain` and `driftq route`: what the server would do, and why, without doing it."""

from __future__ import annotations

from typing import Any

import click

from driftq.cli import messages, output
from driftq.cli.command import Invocation, asks, group_names, topic_argument
from driftq.cli.param_types import RUN, OffsetRun


@click.command()
@topic_argument
@click.argument("place", type=RUN, metavar="PLACE")
@click.option("--group", "-g", default="", shell_complete=group_names, help="Only for this group (default: for all).")
@click.option("--task", default="", help="As if a claim asked for this task.")
@click.option("--label", default="", help="As if a claim asked for this label.")
@asks
def explain(asked: Invocation, topic: str, place: OffsetRun, group: str, task: str, label: str) -> None:
    """Every gate that keeps a message from being delivered now, and when each opens. PLACE is PARTITION:OFFSET.

    Example: driftq explain orders 0:12 --group billing
    """
    found = asked.broker.explain(topic, place.partition, place.offset, group=group, task=task, label=label)
    if asked.as_json:
        output.document(found)
        return
    click.echo(output.printable(f"{topic} {place.partition}:{place.offset}  {found['summary']}"))
    for gate in found["gates"]:
        _show_gate(gate)
    for each in found["groups"]:
        attempts = f", attempt {each['attempts']}" if each.get("attempts") else ""
        state = "can be claimed now" if each["claimable"] else each["state"]
        click.echo(output.printable(f"\ngroup {each['group']}: {state}{attempts}"))
        for gate in each.get("gates", ()):
            _show_gate(gate)
    backlog = found.get("backlog")
    if backlog is not None:
        click.echo(
            output.printable(
                f"\nproducers: {backlog['messages']:,} of {backlog['messages_max']:,} messages wait for group "
                f"{backlog['group']} ({backlog['used']:.0%} of the limit)"
            )
        )
        for command in backlog.get("commands", ()):
            click.echo(output.printable(f"  {command}"))


def _show_gate(gate: dict[str, Any]) -> None:
    click.echo(output.printable(f"  {gate['gate']:<12}  {gate['why']}"))
    at = f" ({gate['opens_at']})" if gate.get("opens_at") else ""
    click.echo(output.printable(f"  {'':<12}  opens when {gate['opens_when']}{at}"))


@click.command()
@topic_argument
@click.argument("value")
@messages.message_options
@asks
def route(asked: Invocation, topic: str, value: str, **words: Any) -> None:
    """Where a message would go, and why, without sending it. Takes the options of `produce`.

    Example: driftq route inbox '{"kind": "refund"}' --key user:1
    """
    found = asked.broker.route(topic, value, **messages.said_of(words))
    if asked.as_json:
        output.document(found)
        return
    partition = found.get("partition")
    output.fields(
        [
            ("to", f"{found['routed_topic']}" + (f", partition {partition}" if partition is not None else "")),
            ("router", f"{found['router']}: {found['result']}"),
            ("label", found.get("label")),
            ("refused", (found.get("refused") or {}).get("message")),
        ]
    )
    for line in found["explanation"]:
        click.echo(output.printable(f"  {line}"))
