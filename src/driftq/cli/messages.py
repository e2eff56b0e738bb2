"""Messages on the command line: how one is printed, and the options that describe one. Knows no transport."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from driftq.cli import output
from driftq.cli.param_types import AHEAD, DURATION, PAIR

if TYPE_CHECKING:
    from driftq.wire.claims import Delivered
    from driftq.wire.message import Envelope, StoredMessage

raw_option = click.option("--raw", is_flag=True, help="Print only the values, one per line.")


def as_object(topic: str, message: Delivered | StoredMessage) -> dict[str, Any]:
    """A message as one JSON object, with the field names of the API; empty fields are left out."""
    import msgspec

    every: dict[str, Any] = msgspec.to_builtins(message)
    blank = (None, "", 0)
    fields = {name: value for name, value in every.items() if value not in blank or name in ("partition", "offset")}
    if message.value_base64 is None:
        fields["value"] = message.value
    return {"topic": topic, **fields}


def raw(message: Delivered | StoredMessage) -> bytes:
    return base64.b64decode(message.value_base64) if message.value_base64 is not None else message.value.encode()


def show(topic: str, message: Delivered | StoredMessage, *, as_json: bool, only_value: bool = False) -> None:
    """Print one message: as JSON, as its bytes, or as a line with its offset and value."""
    if as_json:
        output.line(as_object(topic, message))
        return
    if only_value:
        sys.stdout.flush()
        sys.stdout.buffer.write(raw(message) + b"\n")
        return
    labels = [f"{message.partition}:{message.offset}"]
    labels += [f"key={message.key}"] if message.key else []
    labels += [f"task={message.job.task}"] if message.job is not None and message.job.task else []
    labels += [f"id={message.job.id}"] if message.job is not None and message.job.id else []
    attempts = getattr(message, "attempts", 0)  # a message that was read without a claim has none
    labels += [f"attempt {attempts}"] if attempts > 1 else []
    prefix = output.printable(" ".join(labels))
    if output.is_terminal():
        prefix = click.style(prefix, dim=True)
    click.echo(f"{prefix}  {output.printable(text_of(message))}")


def text_of(message: Delivered | StoredMessage) -> str:
    if message.value_base64 is None:
        return message.value
    return f"({len(raw(message))} bytes, not text; use --raw or --json)"


_OPTIONS = (
    click.option("--key", "-k", default="", help="Key; messages with the same key keep their order."),
    click.option("--idempotency-key", default="", metavar="KEY", help="A repeat with this key has no effect."),
    click.option("--task", default="", help="Name of the handler."),
    click.option("--id", "id", default="", help="Id of the job."),
    click.option("--priority", type=click.IntRange(0, 9), default=0, help="0 to 9; higher is delivered first."),
    click.option("--delay", "delay_ms", type=DURATION, default=0, help="Deliver after this delay."),
    click.option("--not-before", type=AHEAD, help="Deliver at this time (RFC 3339, or 10m from now)."),
    click.option("--timeout", "timeout_ms", type=DURATION, default=0, help="Time limit of a worker."),
    click.option("--deadline", type=AHEAD, help="Expires at this time (RFC 3339, or 10m from now)."),
    click.option("--tenant", default="", help="Tenant."),
    click.option("--label", "labels", type=PAIR, multiple=True, help="Label (repeatable)."),
    click.option("--run-id", default="", help="Id of the run."),
    click.option("--step-id", default="", help="Id of the step."),
    click.option("--parent-step-id", default="", help="Id of the parent step."),
    click.option("--target-topic", default="", metavar="TOPIC", help="Store in this topic instead."),
    click.option("--partition", type=click.IntRange(0), help="Store in this partition."),
    click.option(
        "--max-attempts", type=click.IntRange(0), default=0, help="Deliveries before it becomes a dead letter."
    ),
    click.option("--backoff", "backoff_ms", type=DURATION, default=0, help="First backoff between attempts."),
    click.option("--max-backoff", "max_backoff_ms", type=DURATION, default=0, help="Longest backoff."),
)


def message_options(function: Callable[..., None]) -> Callable[..., None]:
    """Adds the options that describe a message."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


ENVELOPE_OPTIONS = (
    "idempotency_key", "deadline", "tenant", "labels", "run_id", "step_id", "parent_step_id", "target_topic",
    "partition", "max_attempts", "backoff_ms", "max_backoff_ms",
)  # fmt: skip


def send_arguments(options: dict[str, Any]) -> dict[str, Any]:
    """The options as arguments of `send`: an envelope, and the fields beside it."""
    options = dict(options)
    envelope = _envelope({name: options.pop(name) for name in ENVELOPE_OPTIONS})
    arguments = {name: value for name, value in options.items() if value}
    return arguments | ({"envelope": envelope} if envelope is not None else {})


def _envelope(options: dict[str, Any]) -> Envelope | None:
    from driftq.wire.message import Envelope, RetryPolicy

    retry = RetryPolicy(options["max_attempts"], options["backoff_ms"], options["max_backoff_ms"])
    envelope = Envelope(
        run_id=options["run_id"],
        step_id=options["step_id"],
        parent_step_id=options["parent_step_id"],
        tenant_id=options["tenant"],
        idempotency_key=options["idempotency_key"],
        target_topic=options["target_topic"],
        partition_override=options["partition"],
        deadline=options["deadline"] or "",
        retry_policy=retry if retry != RetryPolicy() else None,
        labels=dict(options["labels"]) or None,
    )
    return envelope if envelope != Envelope() else None
