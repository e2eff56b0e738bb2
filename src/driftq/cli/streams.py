"""`driftq streams`: durable streams by their path."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal

import click

from driftq.cli import output
from driftq.cli.command import Invocation, asks, confirmed, stream_names, yes_option
from driftq.cli.output import while_read
from driftq.cli.param_types import DURATION, SIZE, Moment

if TYPE_CHECKING:
    from driftq.client.calls.streams import ReadChunk

PAGE = 1_000
START = "-1"
path_argument = click.argument("path", shell_complete=stream_names)
offset_option = click.option("--offset", default=START, metavar="TOKEN", help="Go on here (default: the start).")


@click.group()
def command() -> None:
    """Create, append to, read and follow durable streams."""


@command.command("list")
@click.argument("prefix", default="", shell_complete=stream_names)
@click.option("--count", "-n", type=click.IntRange(1), default=PAGE, show_default=True, help="At most so many.")
@asks
def list_(asked: Invocation, prefix: str, count: int) -> None:
    """Streams by path, all or those that begin with PREFIX.

    Example: driftq streams list runs/
    """
    found = list(asked.broker.streams.iterate(prefix, limit=count))
    if asked.as_json:
        output.document(found)
        return
    header = ("STREAM", "TYPE", "END", "CREATED", "")
    rows = (
        (each.stream, each.content_type, each.next_offset, each.created_at, "closed" if each.closed else "")
        for each in found
    )
    output.table(header, rows, "No streams.")


@command.command()
@path_argument
@click.option(
    "--type", "content_type", default="text/plain", show_default=True, help="application/json keeps messages apart."
)
@click.option("--ttl", "ttl_ms", type=DURATION, help="Deleted when nobody used it for this long.")
@click.option(
    "--expires", "expires_at", type=Moment(ahead=True), help="Deleted at this moment (a time, or 1d from now)."
)
@click.option("--retention", "retention_ms", type=DURATION, default=0, help="Keep only what is younger.")
@click.option("--retention-bytes", type=SIZE, default=0, help="Keep only so much.")
@click.option("--fork", "forked_from", default="", metavar="PATH", help="Begin with what another stream has.")
@click.option("--fork-offset", default="", metavar="TOKEN", help="Up to here (default: its end).")
@asks
def create(
    asked: Invocation, path: str, content_type: str, ttl_ms: int | None, retention_ms: int, **words: Any
) -> None:
    """Make a stream. The same again changes nothing.

    Example: driftq streams create runs/7/tokens --type application/json --ttl 1d
    """
    ttl_s = ttl_ms // 1_000 if ttl_ms is not None else None
    stream = asked.broker.stream(path, content_type)
    info = stream.create(ttl_s=ttl_s, retention_s=retention_ms // 1_000, **words)
    if asked.as_json:
        output.document(info._asdict())
        return
    click.echo(f"{info.path}: {'created' if info.created else 'exists'}, {info.content_type}")


@command.command()
@path_argument
@asks
def show(asked: Invocation, path: str) -> None:
    """Type, end and lifetime of a stream.

    Example: driftq streams show runs/7/tokens
    """
    info = asked.broker.stream(path).describe()
    if asked.as_json:
        output.document({name: value for name, value in info._asdict().items() if name != "created"})
        return
    output.fields(
        [
            ("stream", info.path),
            ("type", info.content_type),
            ("end", info.next_offset),
            ("closed", info.closed),
            ("ttl", output.age(info.ttl_s * 1_000) if info.ttl_s is not None else ""),
            ("expires", info.expires_at),
        ]
    )


@command.command()
@path_argument
@click.argument("values", nargs=-1)
@click.option("--close", is_flag=True, help="And close the stream for ever.")
@click.option("--if-match", default="", metavar="TOKEN", help="Only if the stream ends here.")
@asks
def append(asked: Invocation, path: str, values: tuple[str, ...], close: bool, if_match: str) -> None:
    """Append VALUES, or what comes on standard input.

    In a JSON stream each value is JSON and one message, on standard input each line. Elsewhere bytes are bytes, and
    what comes on standard input is appended as it comes.

    \b
    Examples:
      driftq streams append runs/7/tokens '{"token": "a"}' '{"token": "b"}'
      make 2>&1 | driftq streams append builds/42 --close
    """
    stream = asked.broker.stream(path)
    stream.content_type = stream.describe().content_type
    if not values and not close and sys.stdin.isatty():
        output.remark("Reading from this terminal; Ctrl-D ends it.")
    if values:
        end = stream.append(*(each.encode() for each in values), if_match=if_match, close=close)
    elif not sys.stdin.isatty() or not close:
        end = _append_input(stream, if_match, close)
    else:
        end = stream.close()
    if asked.as_json:
        output.document(end._asdict())
        return
    click.echo(f"{path}: ends at {end.next_offset}" + (", closed" if end.closed else ""))


def _append_input(stream: Any, if_match: str, close: bool) -> Any:
    """Whatever is there is appended at once: somebody may be following."""
    from driftq.client.calls.streams import AppendReply
    from driftq.wire.streams import is_json

    end = AppendReply("")
    source = sys.stdin.buffer
    lines = is_json(stream.content_type)
    while data := (source.readline() if lines else source.read1(1 << 18)):  # type: ignore[union-attr]
        if lines and not data.strip():
            continue
        end = stream.append(data.strip() if lines else data, if_match=if_match)
        if_match = end.next_offset if if_match else ""
    if close:
        return stream.close()
    return end if end.next_offset else AppendReply(stream.describe().next_offset)


@command.command()
@path_argument
@offset_option
@asks
def read(asked: Invocation, path: str, offset: str) -> None:
    """What is in a stream, from an offset to the end.

    A JSON stream is printed as one message a line; any other as it is. With --json each piece is an object with its
    offset. The offset to go on from is said on stderr.

    Example: driftq streams read runs/7/tokens
    """
    stream = asked.broker.stream(path)
    while True:
        chunk = stream.read(offset)
        _show(asked, chunk)
        offset = chunk.next_offset
        if chunk.up_to_date:
            break
    if not asked.as_json:
        output.flush()
        output.remark(f"ends at {offset}" + (", closed" if chunk.closed else ""))


@command.command()
@path_argument
@offset_option
@click.option("--live", type=click.Choice(["auto", "sse", "long-poll"]), default="auto", help="How to wait.")
@asks
def follow(asked: Invocation, path: str, offset: str, live: Literal["auto", "sse", "long-poll"]) -> None:
    """What is in a stream and then what comes, until it is closed or Ctrl-C.

    Example: driftq streams follow builds/42
    """
    with while_read():
        for chunk in asked.broker.stream(path).follow(offset, live=live):
            _show(asked, chunk)
            output.flush()


def _show(asked: Invocation, chunk: ReadChunk) -> None:
    from driftq.wire.streams import is_json

    if chunk.empty:
        return
    if asked.as_json:
        data: dict[str, Any] = {"messages": chunk.json()} if is_json(chunk.content_type) else _plain(chunk.data)
        output.line({**data, "next_offset": chunk.next_offset, "closed": chunk.closed})
    elif is_json(chunk.content_type):
        for message in chunk.json():
            output.line(message)
    elif output.is_terminal():
        click.echo(output.printable(chunk.data.decode("utf-8", "backslashreplace")), nl=False)
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(chunk.data)


def _plain(data: bytes) -> dict[str, Any]:
    import base64

    try:
        return {"data": data.decode()}
    except UnicodeDecodeError:
        return {"data_base64": base64.b64encode(data).decode("ascii")}


@command.command()
@path_argument
@click.argument("before", metavar="TOKEN")
@asks
def trim(asked: Invocation, path: str, before: str) -> None:
    """Forget everything before an offset.

    Example: driftq streams trim builds/42 0000000000000000_0000000000000100
    """
    found = asked.broker.stream(path).trim(before)
    if asked.as_json:
        output.document(found)
    else:
        click.echo(f"{path}: trimmed")


@command.command()
@path_argument
@yes_option
@asks
def delete(asked: Invocation, path: str, yes: bool) -> None:
    """Delete a stream and everything in it.

    Example: driftq streams delete builds/42 --yes
    """
    confirmed(f"Delete the stream {path}", yes)
    asked.broker.stream(path).delete()
    if asked.as_json:
        output.document({"path": path, "status": "deleted"})
    else:
        click.echo(f"{path}: deleted")
