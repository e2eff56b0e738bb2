"""`driftq streams`: create, append to, read, follow, trim and delete durable streams."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal

import click

from driftq.cli import output
from driftq.cli.command import Invocation, broker_command, confirm, stream_names, yes_option
from driftq.cli.output import until_reader_closes
from driftq.cli.param_types import DURATION, SIZE, Moment
from driftq.cli.watch import watchable

if TYPE_CHECKING:
    from driftq.client.calls.streams import ReadChunk

LIST_MAX = 1_000
START = "-1"
path_argument = click.argument("path", shell_complete=stream_names)
offset_option = click.option(
    "--offset", default=START, metavar="TOKEN", help="Start at this offset (default: the start)."
)


@click.group()
def command() -> None:
    """Create, append to, read and follow durable streams."""


@command.command("list")
@click.argument("prefix", default="", shell_complete=stream_names)
@click.option(
    "--count", "-n", type=click.IntRange(1), default=LIST_MAX, show_default=True, help="Maximum number of streams."
)
@broker_command
@watchable
def list_(invocation: Invocation, prefix: str, count: int) -> None:
    """List all streams, or those whose path starts with PREFIX.

    Example: driftq streams list runs/
    """
    streams = list(invocation.broker.streams.iterate(prefix, limit=count))
    if invocation.as_json:
        output.document(streams)
        return
    header = ("STREAM", "TYPE", "END", "CREATED", "")
    rows = (
        (info.stream, info.content_type, info.next_offset, info.created_at, "closed" if info.closed else "")
        for info in streams
    )
    output.table(header, rows, "No streams.")


@command.command()
@path_argument
@click.option(
    "--type",
    "content_type",
    default="text/plain",
    show_default=True,
    help="Content type; application/json keeps message boundaries.",
)
@click.option("--ttl", "ttl_ms", type=DURATION, help="Delete the stream when it was not used for this long.")
@click.option(
    "--expires",
    "expires_at",
    type=Moment(ahead=True),
    help="Delete the stream at this time (RFC 3339, or 1d from now).",
)
@click.option("--retention", "retention_ms", type=DURATION, default=0, help="Keep only data younger than this.")
@click.option("--retention-bytes", type=SIZE, default=0, help="Keep only this much data.")
@click.option("--fork", "forked_from", default="", metavar="PATH", help="Start with the data of another stream.")
@click.option("--fork-offset", default="", metavar="TOKEN", help="Fork at this offset (default: its end).")
@broker_command
def create(
    invocation: Invocation, path: str, content_type: str, ttl_ms: int | None, retention_ms: int, **options: Any
) -> None:
    """Create a stream. Repeating the command has no effect.

    Example: driftq streams create runs/7/tokens --type application/json --ttl 1d
    """
    ttl_s = ttl_ms // 1_000 if ttl_ms is not None else None
    stream = invocation.broker.stream(path, content_type)
    info = stream.create(ttl_s=ttl_s, retention_s=retention_ms // 1_000, **options)
    if invocation.as_json:
        output.document(info._asdict())
        return
    click.echo(f"{info.path}: {'created' if info.created else 'exists'}, {info.content_type}")


@command.command()
@path_argument
@broker_command
def show(invocation: Invocation, path: str) -> None:
    """Show the type, end and lifetime of a stream.

    Example: driftq streams show runs/7/tokens
    """
    info = invocation.broker.stream(path).describe()
    if invocation.as_json:
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
@click.option("--close", is_flag=True, help="Then close the stream permanently.")
@click.option("--if-match", default="", metavar="TOKEN", help="Append only if the stream ends at this offset.")
@broker_command
def append(invocation: Invocation, path: str, values: tuple[str, ...], close: bool, if_match: str) -> None:
    """Append VALUES, or standard input.

    In a JSON stream each value is one message, and so is each line of standard input. In other streams standard input
    is appended as it arrives.

    \b
    Examples:
      driftq streams append runs/7/tokens '{"token": "a"}' '{"token": "b"}'
      make 2>&1 | driftq streams append builds/42 --close
    """
    stream = invocation.broker.stream(path)
    stream.content_type = stream.describe().content_type
    if not values and not close and sys.stdin.isatty():
        output.note("Reading from this terminal; Ctrl-D ends it.")
    if values:
        end = stream.append(*(value.encode() for value in values), if_match=if_match, close=close)
    elif not sys.stdin.isatty() or not close:
        end = _append_input(stream, if_match, close)
    else:
        end = stream.close()
    if invocation.as_json:
        output.document(end._asdict())
        return
    click.echo(f"{path}: ends at {end.next_offset}" + (", closed" if end.closed else ""))


def _append_input(stream: Any, if_match: str, close: bool) -> Any:
    """Append data as soon as it arrives: another client may follow the stream."""
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
@broker_command
def read(invocation: Invocation, path: str, offset: str) -> None:
    """Print a stream from an offset to its end.

    A JSON stream is printed with one message per line, any other as it is. With --json each chunk is an object with its
    offset. The end offset is printed on stderr.

    Example: driftq streams read runs/7/tokens
    """
    stream = invocation.broker.stream(path)
    while True:
        chunk = stream.read(offset)
        _show(invocation, chunk)
        offset = chunk.next_offset
        if chunk.up_to_date:
            break
    if not invocation.as_json:
        output.flush()
        output.note(f"ends at {offset}" + (", closed" if chunk.closed else ""))


@command.command()
@path_argument
@offset_option
@click.option("--live", type=click.Choice(["auto", "sse", "long-poll"]), default="auto", help="How to wait for data.")
@broker_command
def follow(invocation: Invocation, path: str, offset: str, live: Literal["auto", "sse", "long-poll"]) -> None:
    """Print a stream and follow it, until it is closed or Ctrl-C.

    Example: driftq streams follow builds/42
    """
    with until_reader_closes():
        for chunk in invocation.broker.stream(path).follow(offset, live=live):
            _show(invocation, chunk)
            output.flush()


def _show(invocation: Invocation, chunk: ReadChunk) -> None:
    from driftq.wire.streams import is_json

    if chunk.empty:
        return
    if invocation.as_json:
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
@broker_command
def trim(invocation: Invocation, path: str, before: str) -> None:
    """Remove everything before an offset.

    Example: driftq streams trim builds/42 0000000000000000_0000000000000100
    """
    result = invocation.broker.stream(path).trim(before)
    if invocation.as_json:
        output.document(result)
    else:
        click.echo(f"{path}: trimmed")


@command.command()
@path_argument
@yes_option
@broker_command
def delete(invocation: Invocation, path: str, yes: bool) -> None:
    """Delete a stream and everything in it.

    Example: driftq streams delete builds/42 --yes
    """
    confirm(f"Delete the stream {path}", yes)
    invocation.broker.stream(path).delete()
    if invocation.as_json:
        output.document({"path": path, "status": "deleted"})
    else:
        click.echo(f"{path}: deleted")
