"""What commands print: tables and fields as text, or JSON, on stdout; progress and notes on stderr.

On a terminal a table fits its width, and control characters in messages are escaped. In a pipe lines are not cut, and
there is no colour. This module knows no command and no server.
"""

from __future__ import annotations

import importlib.util
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
    """One JSON document; indented on a terminal."""
    text = msgspec.json.encode(value)
    click.echo((msgspec.json.format(text, indent=2) if is_terminal() else text).decode())


def line(value: Any) -> None:
    """One of many JSON documents, on a line of its own."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")


def flush() -> None:
    sys.stdout.flush()


def note(text: str) -> None:
    """A line on stderr, which is not part of the output."""
    click.echo(text, err=True)


def printable(text: str) -> str:
    """On a terminal, escape control characters, which could move the cursor or change colours."""
    if text.isprintable() or not is_terminal():
        return text
    return "".join(
        char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode() for char in text
    )


def shortened(text: str, size: int = 60) -> str:
    """A text on one line, for a cell of a table."""
    flat = " ".join(text.split())
    return flat if len(flat) <= size or not is_terminal() else f"{flat[: size - 1]}…"


def cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if is_terminal() else str(value)
    return printable(str(value)) if value is not None else ""


def table(header: Sequence[str], rows: Iterable[Row], empty: str = "") -> None:
    """Rows under a header. `empty` is printed on stderr if there are no rows."""
    cells = [list(row) for row in rows]
    if not cells:
        if empty:
            note(empty)
        return
    if is_terminal() and _has_rich():
        _rich_table(header, cells)
        return
    texts = [[cell(value) for value in row] for row in cells]
    widths = [max(map(len, column)) for column in zip(header, *texts, strict=True)]
    for row in (header, *texts):
        click.echo("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def _has_rich() -> bool:
    """Whether tables can be fitted to the terminal. A client installs without it."""
    return importlib.util.find_spec("rich") is not None


def _rich_table(header: Sequence[str], rows: list[list[object]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for index, name in enumerate(header):
        numbers = all(isinstance(row[index], int) and not isinstance(row[index], bool) for row in rows)
        table.add_column(name, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell(value)) for value in row))
    Console().print(table)


def fields(pairs: Iterable[tuple[str, object]]) -> None:
    """Names and values, one pair a line."""
    lines = [(name, cell(value)) for name, value in pairs if value not in (None, "")]
    width = max((len(name) for name, _ in lines), default=0)
    for name, text in lines:
        click.echo(f"{name:<{width}}  {text}")


def age(ms: int) -> str:
    """A duration for people: 1.5 h, 12 s."""
    for size, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s")):
        if ms >= size:
            return f"{ms / size:.1f} {unit}" if ms < 10 * size else f"{ms // size} {unit}"
    return f"{ms} ms"


def duration(ms: int) -> str:
    """A duration as it is given on the command line, exactly: 90m, 366d, 1500ms."""
    for unit_ms, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s")):
        if ms and not ms % unit_ms:
            return f"{ms // unit_ms}{unit}"
    return f"{ms}ms"


def size(count: int) -> str:
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1_000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1_000
    return f"{amount:.1f} TB"


@contextmanager
def progress(title: str, total: int | None, *, unit: str = "messages") -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr, if that is a terminal; yields `advance(count)`."""
    if not sys.stderr.isatty() or not _has_rich():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    front = BarColumn() if total is not None else SpinnerColumn()
    columns = (TextColumn(title), front, MofNCompleteColumn(), TextColumn(unit), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda count: bar.advance(task, count)


# --- a pipe whose reader closes it ---


POLL_MS = 200
GRACE_S = 0.2  # time for a command that writes to notice the closed pipe itself, and to clean up


class ReaderLeft(Exception):
    """The reader of the pipe closed it while nothing was written."""


@contextmanager
def until_reader_closes() -> Iterator[None]:
    """Raises `ReaderLeft` when the reader of stdout closes the pipe. Otherwise `driftq tail orders | head -1` would
    wait for another message before it notices."""
    if not _is_pipe():
        yield
        return
    done, closed = threading.Event(), threading.Event()
    poller = threading.Thread(target=_poll_pipe, args=(done, closed, threading.get_ident()), daemon=True)
    poller.start()
    try:
        try:
            yield
        finally:
            done.set()
            poller.join()
    except KeyboardInterrupt:
        if closed.is_set():
            raise ReaderLeft from None
        raise


def _is_pipe() -> bool:
    if threading.current_thread() is not threading.main_thread() or not hasattr(select, "poll"):
        return False
    try:
        return stat.S_ISFIFO(os.fstat(sys.stdout.fileno()).st_mode)
    except (OSError, ValueError):
        return False


def _poll_pipe(done: threading.Event, closed: threading.Event, main: int) -> None:
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)  # POLLERR is always reported
    while not done.is_set():
        if poll.poll(POLL_MS):
            if not done.wait(GRACE_S):
                closed.set()
                signal.pthread_kill(main, signal.SIGINT)  # every command handles this interrupt
            return
