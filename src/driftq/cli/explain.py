"""`driftq explain` and `driftq route`: what the server would do with a message, and why, without doing it."""

from __future__ import annotations

from typing import Any

import click

from driftq.cli import messages, output
from driftq.cli.command import Invocation, broker_command, group_names, topic_argument
from driftq.cli.param_types import RUN, OffsetRun
from driftq.wire.server_info import NEVER


@click.command()
@topic_argument
@click.argument("message", type=RUN)
@click.option(
    "--group", "-g", default="", shell_complete=group_names, help="Only for this group (default: all groups)."
)
@click.option("--task", default="", help="As for a claim of this task.")
@click.option("--label", default="", help="As for a claim of this label.")
@broker_command
def explain(invocation: Invocation, topic: str, message: OffsetRun, group: str, task: str, label: str) -> None:
    """Explain why a message is not delivered now: every gate that holds it, and when that gate opens.

    Example: driftq explain orders 0:12 --group billing
    """
    explanation = invocation.broker.explain(
        topic, message.partition, message.offset, group=group, task=task, label=label
    )
    if invocation.as_json:
        output.document(explanation)
        return
    summary = explanation["summary"]
    click.echo(output.printable(f"{topic} {message.partition}:{message.offset}  {summary}"))
    for gate in explanation["gates"]:
        _show_gate(gate, summary)
    for state_of_group in explanation["groups"]:
        attempts = f", attempt {state_of_group['attempts']}" if state_of_group.get("attempts") else ""
        state = "can be claimed now" if state_of_group["claimable"] else _text_of(state_of_group["state"])
        click.echo(output.printable(f"\ngroup {state_of_group['group']}: {state}{attempts}"))
        for gate in state_of_group.get("gates", ()):
            _show_gate(gate, summary)
    backlog = explanation.get("backlog")
    if backlog is not None:
        click.echo(
            output.printable(
                f"\nproducers: {backlog['messages']:,} of {backlog['messages_max']:,} messages wait for group "
                f"{backlog['group']} ({backlog['used']:.0%} of the limit)"
            )
        )
        for command in backlog.get("commands", ()):
            click.echo(output.printable(f"  {command}"))


def _show_gate(gate: dict[str, Any], summary: str) -> None:
    """Its reason is left out if the summary has given it."""
    at = f" ({gate['opens_at']})" if gate.get("opens_at") else ""
    opens = "never opens" if gate["opens_when"] == NEVER else f"opens when {gate['opens_when']}{at}"
    for name, line in enumerate([opens] if gate["why"] == summary else [gate["why"], opens]):
        click.echo(output.printable(f"  {'' if name else _text_of(gate['gate']):<12}  {line}"))


def _text_of(state: str) -> str:
    """The API's "resting" is "waiting" for people; see the glossary."""
    return "waiting" if state == "resting" else state


@click.command()
@topic_argument
@click.argument("value")
@messages.message_options
@broker_command
def route(invocation: Invocation, topic: str, value: str, **options: Any) -> None:
    """Show where a message would be routed, and why, without sending it. Takes the options of `produce`.

    Example: driftq route inbox '{"kind": "refund"}' --key user:1
    """
    decision = invocation.broker.route(topic, value, **messages.send_arguments(options))
    if invocation.as_json:
        output.document(decision)
        return
    partition = decision.get("partition")
    output.fields(
        [
            ("to", f"{decision['routed_topic']}" + (f", partition {partition}" if partition is not None else "")),
            ("router", f"{decision['router']}: {decision['result']}"),
            ("label", decision.get("label")),
            ("refused", (decision.get("refused") or {}).get("message")),
        ]
    )
    for line in decision["explanation"]:
        click.echo(output.printable(f"  {line}"))
