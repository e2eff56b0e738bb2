"""`driftq ack`, `nack`, `reject`, `release`, `extend`: settle or extend claims by hand."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import click
import msgspec

from driftq.cli import output
from driftq.cli.command import Invocation, broker_command, group_argument, topic_argument
from driftq.cli.exit_codes import Exit, fail
from driftq.cli.param_types import DURATION, RUN, OffsetRun
from driftq.client.claims import LeaseHolder
from driftq.wire.claims import Delivered


def _claim_options(function: Callable[..., None]) -> Callable[..., None]:
    function = click.option("--token", default="", help="Token of the claim, as `driftq claim` printed it.")(function)
    function = click.option("--owner", default="", help="Owner of the claim, instead of a token.")(function)
    function = click.argument("claimed", nargs=-1, required=True, metavar="PARTITION:OFFSET...")(function)
    return topic_argument(group_argument(function))


class _Claim(NamedTuple):
    """A message that was claimed, perhaps by another process."""

    holder: LeaseHolder
    partition: int
    offset: int
    token: str
    result_json: bytes = b""
    progress_json: bytes = b""


def _settle(
    invocation: Invocation,
    method: str,
    done: str,
    *,
    topic: str,
    group: str,
    claimed: tuple[str, ...],
    token: str,
    owner: str,
    result: bytes = b"",
    **more: Any,
) -> None:
    """Settle in one call. Refused messages are printed, and the exit code says so."""
    holder = LeaseHolder(topic, group, owner)
    claims = [_Claim(holder, item.partition, item.offset, item.token, result) for item in _delivered(claimed, token)]
    if not claims:
        fail(Exit.BAD_INPUT, "there is no message on standard input", as_json=invocation.as_json)
    reply = getattr(invocation.broker, method)(claims, **more)
    if invocation.as_json:
        output.document(reply)
    else:
        for refusal in reply.refused:
            output.note(f"{refusal.partition}:{refusal.offset} was refused: {refusal.message}")
        click.echo(f"{len(claims) - len(reply.refused)} {done}")
    if reply.refused:
        hint = "If the lease has expired, another worker may hold the message: claim it again."
        if not (token or owner):
            hint = "Name the claim: --token TOKEN, as `driftq claim` printed it, or --owner NAME."
        fail(Exit.REFUSED, f"{len(reply.refused)} of {len(claims)} were refused", hint, as_json=invocation.as_json)


def _delivered(claimed: Iterable[str], token: str) -> Iterator[Delivered]:
    """The messages of the arguments; `-` reads what `claim --json` printed."""
    for text in claimed:
        if text == "-":
            yield from _from_input()
            continue
        run: OffsetRun = RUN.convert(text, None, None)
        yield from (Delivered(run.partition, offset, token=token) for offset in range(run.offset, run.end))


def _from_input() -> Iterator[Delivered]:
    for number, line in enumerate(sys.stdin.buffer, 1):
        if not line.strip():
            continue
        try:
            yield msgspec.json.decode(line, type=Delivered)
        except msgspec.MsgspecError as error:
            fail(Exit.BAD_INPUT, f"line {number} is not a message as `driftq claim --json` prints it: {error}")


def _json_bytes(context: click.Context, parameter: click.Parameter, text: str | None) -> bytes:
    try:
        return msgspec.json.encode(msgspec.json.decode(text)) if text is not None else b""
    except msgspec.DecodeError as error:
        raise click.BadParameter(f"it is not JSON: {error}") from None


@click.command()
@_claim_options
@click.option("--result", callback=_json_bytes, metavar="JSON", help="The result, for callers that wait for it.")
@broker_command
def ack(invocation: Invocation, **options: Any) -> None:
    """Mark claimed messages as done.

    Name messages as PARTITION:OFFSET or PARTITION:FIRST-LAST; - reads what `claim --json` printed.

    Example: driftq ack orders billing 0:12 0:20-25 --token TOKEN
    """
    _settle(invocation, "ack", "done", **options)


@click.command()
@_claim_options
@click.option("--reason", default="", help="Error; the next worker and the dead letter show it.")
@click.option("--delay", "delay_ms", type=DURATION, help="Retry after this delay (default: the retry policy's).")
@broker_command
def nack(invocation: Invocation, **options: Any) -> None:
    """Report that claimed messages failed: they are retried, or become dead letters.

    Example: driftq nack orders billing 0:12 --token TOKEN --reason "card declined" --delay 5m
    """
    _settle(invocation, "nack", "failed", **options)


@click.command()
@_claim_options
@click.option("--reason", default="", help="Why it should not be retried.")
@broker_command
def reject(invocation: Invocation, **options: Any) -> None:
    """Move claimed messages to the dead letters without a retry.

    Example: driftq reject orders billing 0:12 --token TOKEN --reason "no such user"
    """
    _settle(invocation, "reject", "rejected", **options)


@click.command()
@_claim_options
@click.option("--delay", "delay_ms", type=DURATION, help="Deliver again after this delay.")
@broker_command
def release(invocation: Invocation, **options: Any) -> None:
    """Give claimed messages back without counting an attempt.

    Example: driftq release orders billing 0:12 --token TOKEN
    """
    _settle(invocation, "release", "released", **options)


@click.command()
@_claim_options
@click.option("--lease", "lease_ms", type=DURATION, help="Length of the lease from now (default: the topic's).")
@broker_command
def extend(invocation: Invocation, **options: Any) -> None:
    """Extend the lease of claimed messages.

    Example: driftq extend orders billing 0:12 --token TOKEN --lease 10m
    """
    _settle(invocation, "extend", "extended", **options)
