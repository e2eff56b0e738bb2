"""`driftq ack`, `nack`, `reject`, `release`, `extend`: the end, or the lengthening, of a claim made by hand."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import click
import msgspec

from driftq.cli import output
from driftq.cli.command import Invocation, asks, group_argument, topic_argument
from driftq.cli.exit_codes import Exit, fail
from driftq.cli.param_types import DURATION, RUN, OffsetRun
from driftq.client.claims import LeaseHolder
from driftq.wire.claims import Delivered


def _held_options(function: Callable[..., None]) -> Callable[..., None]:
    function = click.option("--token", default="", help="What the claim gave; it proves that the message is yours.")(
        function
    )
    function = click.option("--owner", default="", help="Without a token: in whose name it was claimed.")(function)
    function = click.argument("places", nargs=-1, required=True, metavar="PLACE...")(function)
    return topic_argument(group_argument(function))


class _Held(NamedTuple):
    """A message that was claimed, perhaps by another process."""

    holder: LeaseHolder
    delivered: Delivered


def _settle(
    asked: Invocation,
    word: str,
    done: str,
    *,
    topic: str,
    group: str,
    places: tuple[str, ...],
    token: str,
    owner: str,
    **more: Any,
) -> None:
    """One call; what was refused is named, and then the exit code says so."""
    holder = LeaseHolder(topic, group, owner)
    held = [_Held(holder, each) for each in _delivered(places, token)]
    if not held:
        fail(Exit.BAD_INPUT, "no message was named on standard input", as_json=asked.as_json)
    reply = getattr(asked.broker, word)(held, **more)
    if asked.as_json:
        output.document(reply)
    else:
        for each in reply.refused:
            output.remark(f"{each.partition}:{each.offset} was refused: {each.message}")
        click.echo(f"{len(held) - len(reply.refused)} {done}")
    if reply.refused:
        hint = "A claim that ran out may be another worker's now: claim again."
        if not (token or owner):
            hint = "Name the claim: --token TOKEN as `driftq claim` printed it, or --owner NAME."
        fail(Exit.REFUSED, f"{len(reply.refused)} of {len(held)} were refused", hint, as_json=asked.as_json)


def _delivered(places: Iterable[str], token: str) -> Iterator[Delivered]:
    """What the places name; `-` reads what `claim --json` printed."""
    for place in places:
        if place == "-":
            yield from _from_input()
            continue
        run: OffsetRun = RUN.convert(place, None, None)
        yield from (Delivered(run.partition, offset, token=token) for offset in range(run.offset, run.end))


def _from_input() -> Iterator[Delivered]:
    for number, line in enumerate(sys.stdin.buffer, 1):
        if not line.strip():
            continue
        try:
            yield msgspec.json.decode(line, type=Delivered)
        except msgspec.MsgspecError as error:
            fail(Exit.BAD_INPUT, f"line {number} is not a message as `driftq claim --json` prints it: {error}")


@click.command()
@_held_options
@asks
def ack(asked: Invocation, **words: Any) -> None:
    """Say that claimed messages are done.

    PLACE is PARTITION:OFFSET, a run PARTITION:FIRST-LAST, or - for what `claim --json` printed.

    Example: driftq ack orders billing 0:12 0:20-25 --token TOKEN
    """
    _settle(asked, "ack", "done", **words)


@click.command()
@_held_options
@click.option("--reason", default="", help="What went wrong; the next worker and the dead letter see it.")
@click.option("--delay", "delay_ms", type=DURATION, help="When to try again (default: as the retry policy says).")
@asks
def nack(asked: Invocation, **words: Any) -> None:
    """Say that claimed messages failed: they come again, or become dead letters.

    Example: driftq nack orders billing 0:12 --token TOKEN --reason "card declined" --delay 5m
    """
    _settle(asked, "nack", "failed", **words)


@click.command()
@_held_options
@click.option("--reason", default="", help="Why nobody should try again.")
@asks
def reject(asked: Invocation, **words: Any) -> None:
    """Make claimed messages dead letters at once.

    Example: driftq reject orders billing 0:12 --token TOKEN --reason "no such user"
    """
    _settle(asked, "reject", "rejected", **words)


@click.command()
@_held_options
@click.option("--delay", "delay_ms", type=DURATION, help="Not before this time has passed.")
@asks
def release(asked: Invocation, **words: Any) -> None:
    """Give claimed messages back; counts no attempt.

    Example: driftq release orders billing 0:12 --token TOKEN
    """
    _settle(asked, "release", "given back", **words)


@click.command()
@_held_options
@click.option("--lease", "lease_ms", type=DURATION, help="For how long from now (default: the topic's).")
@asks
def extend(asked: Invocation, **words: Any) -> None:
    """Keep claimed messages for longer.

    Example: driftq extend orders billing 0:12 --token TOKEN --lease 10m
    """
    _settle(asked, "extend", "kept", **words)
