"""`--watch`: a command repeats what it shows.

On a terminal each round replaces the one before. In a pipe rounds follow each other as plain lines, with an empty line
between; with --json each round is one line. Ctrl-C ends it, and so does a reader that closes the pipe. A server that is
away for a while is reported, and asked again.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from driftq.cli import output
from driftq.cli.param_types import DURATION

if TYPE_CHECKING:
    from driftq.cli.command import Invocation

CLEAR = "\x1b[2J\x1b[H"


def watchable(function: Callable[..., None]) -> Callable[..., None]:
    """Decorator, below `broker_command`: adds `--watch` and `--every`."""

    @click.option("--watch", is_flag=True, help="Repeat it until Ctrl-C.")
    @click.option("--every", "every_ms", type=DURATION, default="2s", help="With --watch: how often (2s).")
    @functools.wraps(function)
    def call(invocation: Invocation, *, watch: bool, every_ms: int, **options: Any) -> None:
        if watch:
            repeat(functools.partial(function, invocation, **options), every_ms, as_json=invocation.as_json)
        else:
            function(invocation, **options)

    return call


def repeat(show: Callable[[], None], every_ms: int, *, as_json: bool) -> None:
    """Show until the caller interrupts it. An error of the first round is the caller's: it may be a wrong address."""
    from driftq.client.errors import NotConnected, OutcomeUnknown, ServerFailed, Unavailable

    is_live, rounds = output.is_terminal(), 0
    with output.until_reader_closes():
        try:
            while True:
                if is_live:
                    click.echo(CLEAR, nl=False)
                elif rounds and not as_json:
                    click.echo()
                try:
                    show()
                except (NotConnected, OutcomeUnknown, ServerFailed, Unavailable) as error:
                    if not rounds:
                        raise
                    output.note(str(error).partition(";")[0])
                rounds += 1
                output.flush()
                time.sleep(every_ms / 1_000)
        except KeyboardInterrupt:
            if is_live:
                click.echo()
            sys.stdout.flush()
