"""Messages on a command line: how one is printed, and the options that make one. Knows no transport."""

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

raw_option = click.option("--raw", is_flag=True, help="Only the values, each with a line end.")


def as_object(topic: str, message: Delivered | StoredMessage) -> dict[str, Any]:
    """A message as one JSON object, with the names of the wire; what says nothing is left out."""
    import msgspec

    fields: dict[str, Any] = msgspec.to_builtins(message)
    blank = (None, "", 0)
    shown = {name: value for name, value in fields.items() if value not in blank or name in ("partition", "offset")}
    if message.value_base64 is None:
        shown["value"] = message.value
    return {"topic": topic, **shown}


def raw(message: Delivered | StoredMessage) -> bytes:
    return base64.b64decode(message.value_base64) if message.value_base64 is not None else message.value.encode()


def show(topic: str, message: Delivered | StoredMessage, *, as_json: bool, only_value: bool = False) -> None:
    """One message: an object, its bytes, or a line that says where it is and what."""
    if as_json:
        output.line(as_object(topic, message))
        return
    if only_value:
        sys.stdout.flush()
        sys.stdout.buffer.write(raw(message) + b"\n")
        return
    marks = [f"{message.partition}:{message.offset}"]
    marks += [f"key={message.key}"] if message.key else []
    marks += [f"task={message.job.task}"] if message.job is not None and message.job.task else []
    marks += [f"id={message.job.id}"] if message.job is not None and message.job.id else []
    attempts = getattr(message, "attempts", 0)  # a message that was only looked at has none
    marks += [f"attempt {attempts}"] if attempts > 1 else []
    front = output.printable(" ".join(marks))
    if output.is_terminal():
        front = click.style(front, dim=True)
    click.echo(f"{front}  {output.printable(text_of(message))}")


def text_of(message: Delivered | StoredMessage) -> str:
    if message.value_base64 is None:
        return message.value
    return f"({len(raw(message))} bytes that are not text; --raw or --json shows them)"


_OPTIONS = (
    click.option("--key", "-k", default="", help="Messages with one key keep their order."),
    click.option("--idempotency-key", default="", metavar="KEY", help="Sent again under this key, nothing happens."),
    click.option("--task", default="", help="The name of the handler."),
    click.option("--id", "id", default="", help="The id of the job."),
    click.option("--priority", type=click.IntRange(0, 9), default=0, help="0 to 9, the highest first."),
    click.option("--delay", "delay_ms", type=DURATION, default=0, help="Not before this time has passed."),
    click.option("--not-before", type=AHEAD, help="Not before this moment (a time, or 10m from now)."),
    click.option("--timeout", "timeout_ms", type=DURATION, default=0, help="How long a worker may take."),
    click.option("--deadline", type=AHEAD, help="Not after this moment (a time, or 10m from now)."),
    click.option("--tenant", default="", help="For whom it is."),
    click.option("--label", "labels", type=PAIR, multiple=True, help="A label; more than one may be given."),
    click.option("--run-id", default="", help="The run it belongs to."),
    click.option("--step-id", default="", help="The step of the run."),
    click.option("--parent-step-id", default="", help="The step before."),
    click.option("--target-topic", default="", metavar="TOPIC", help="Store it in this topic instead."),
    click.option("--partition", type=click.IntRange(0), help="Store it in this partition."),
    click.option("--max-attempts", type=click.IntRange(0), default=0, help="Deliveries before it is a dead letter."),
    click.option("--backoff", "backoff_ms", type=DURATION, default=0, help="The first pause between attempts."),
    click.option("--max-backoff", "max_backoff_ms", type=DURATION, default=0, help="The longest pause."),
)


def message_options(function: Callable[..., None]) -> Callable[..., None]:
    """Everything that can be said about a message beside its value."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


ENVELOPE_WORDS = (
    "idempotency_key", "deadline", "tenant", "labels", "run_id", "step_id", "parent_step_id", "target_topic",
    "partition", "max_attempts", "backoff_ms", "max_backoff_ms",
)  # fmt: skip


def said_of(words: dict[str, Any]) -> dict[str, Any]:
    """The options as arguments of `send`: an envelope, and what stands beside it."""
    words = dict(words)
    envelope = _envelope({name: words.pop(name) for name in ENVELOPE_WORDS})
    said = {name: value for name, value in words.items() if value}
    return said | ({"envelope": envelope} if envelope is not None else {})


def _envelope(words: dict[str, Any]) -> Envelope | None:
    from driftq.wire.message import Envelope, RetryPolicy

    retry = RetryPolicy(words["max_attempts"], words["backoff_ms"], words["max_backoff_ms"])
    made = Envelope(
        run_id=words["run_id"],
        step_id=words["step_id"],
        parent_step_id=words["parent_step_id"],
        tenant_id=words["tenant"],
        idempotency_key=words["idempotency_key"],
        target_topic=words["target_topic"],
        partition_override=words["partition"],
        deadline=words["deadline"] or "",
        retry_policy=retry if retry != RetryPolicy() else None,
        labels=dict(words["labels"]) or None,
    )
    return made if made != Envelope() else None
