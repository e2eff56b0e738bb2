"""What commands print: tables and fields for people, JSON for programs, progress and remarks on stderr.

On a terminal a table fits its width and what a stranger wrote cannot move the cursor. Into a pipe go whole lines
without colour or padding of numbers. This module knows no command and no server.
"""

from __future__ import annotations

import os
import select
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click
import msgspec

Row = Sequence[object]


def is_terminal() -> bool:
    return sys.stdout.isatty()


def document(value: Any) -> None:
    """One JSON document; on a terminal with line breaks."""
    text = msgspec.json.encode(value)
    click.echo((msgspec.json.format(text, indent=2) if is_terminal() else text).decode())


def line(value: Any) -> None:
    """One of many JSON documents, on a line of its own, at once."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")


def flush() -> None:
    sys.stdout.flush()


def remark(text: str) -> None:
    """For the person at the terminal, never part of the output."""
    click.echo(text, err=True)


def printable(text: str) -> str:
    """On a terminal nothing that could move the cursor or change its colour."""
    if text.isprintable() or not is_terminal():
        return text
    return "".join(
        each if each.isprintable() or each in "\n\t" else each.encode("unicode_escape").decode() for each in text
    )


def shortened(text: str, size: int = 60) -> str:
    """One line of a text, for a cell of a table."""
    flat = " ".join(text.split())
    return flat if len(flat) <= size or not is_terminal() else f"{flat[: size - 1]}…"


def cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if is_terminal() else str(value)
    return printable(str(value)) if value is not None else ""


def table(header: Sequence[str], rows: Iterable[Row], nothing: str = "") -> None:
    """Rows under a header. `nothing` is said to the person when there is no row."""
    found = [list(row) for row in rows]
    if not found:
        if nothing:
            remark(nothing)
        return
    if is_terminal():
        _fitted(header, found)
        return
    texts = [[cell(value) for value in row] for row in found]
    widths = [max(map(len, column)) for column in zip(header, *texts, strict=True)]
    for row in (header, *texts):
        click.echo("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def _fitted(header: Sequence[str], rows: list[list[object]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for index, name in enumerate(header):
        numbers = all(isinstance(row[index], int) and not isinstance(row[index], bool) for row in rows)
        shown.add_column(name, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        shown.add_row(*(Text(cell(value)) for value in row))
    Console().print(shown)


def fields(pairs: Iterable[tuple[str, object]]) -> None:
    """Names and values, one pair a line."""
    shown = [(name, cell(value)) for name, value in pairs if value not in (None, "")]
    width = max((len(name) for name, _ in shown), default=0)
    for name, text in shown:
        click.echo(f"{name:<{width}}  {text}")


def age(ms: int) -> str:
    """A duration as people say it."""
    for size, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s")):
        if ms >= size:
            return f"{ms / size:.1f} {unit}" if ms < 10 * size else f"{ms // size} {unit}"
    return f"{ms} ms"


def size(count: int) -> str:
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1_000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1_000
    return f"{amount:.1f} TB"


@contextmanager
def progress(what: str, total: int | None, *, unit: str = "messages") -> Iterator[Callable[[int], None]]:
    """A bar on stderr while work goes on, if a person is looking; `advance(count)` moves it."""
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    front = BarColumn() if total is not None else SpinnerColumn()
    columns = (TextColumn(what), front, MofNCompleteColumn(), TextColumn(unit), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)


# --- Whoever reads what a command prints into a pipe, and what happens when they leave while there is nothing to
# print


LOOK_MS = 200
GRACE_S = 0.2  # for a command that writes: it meets the closed pipe by itself, and puts things in order


class ReaderLeft(Exception):
    """Nobody reads any more, and nothing was written that would have told."""


@contextmanager
def while_read() -> Iterator[None]:
    """Raises `ReaderLeft` when the pipe behind the output is closed. Otherwise `driftq tail orders | head -1` would
    wait for one more message only to find that nobody wants it."""
    if not _is_pipe():
        yield
        return
    over, left = threading.Event(), threading.Event()
    looking = threading.Thread(target=_look, args=(over, left, threading.get_ident()), daemon=True)
    looking.start()
    try:
        try:
            yield
        finally:
            over.set()
            looking.join()
    except KeyboardInterrupt:
        if left.is_set():
            raise ReaderLeft from None
        raise


def _is_pipe() -> bool:
    if threading.current_thread() is not threading.main_thread() or not hasattr(select, "poll"):
        return False
    try:
        return stat.S_ISFIFO(os.fstat(sys.stdout.fileno()).st_mode)
    except (OSError, ValueError):
        return False


def _look(over: threading.Event, left: threading.Event, main: int) -> None:
    looker = select.poll()
    looker.register(sys.stdout.fileno(), 0)  # errors are told unasked
    while not over.is_set():
        if looker.poll(LOOK_MS):
            if not over.wait(GRACE_S):
                left.set()
                signal.pthread_kill(main, signal.SIGINT)  # the interrupt that every command can bear
            return
