"""`driftq produce`: messages from arguments, files, lines or NDJSON; one by one, in batches, or through a producer."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import click

from driftq.cli import messages, showing
from driftq.cli.asking import Asked, asks, fail, topic_argument
from driftq.cli.exits import Exit

if TYPE_CHECKING:
    from driftq.wire.queue import ProduceItem

BATCH = 500
FAILURES_SHOWN = 10


class Source(NamedTuple):
    """Where a value came from, for a complaint about it."""

    name: str
    value: Any
    words: dict[str, Any]


@click.command()
@topic_argument
@click.argument("values", nargs=-1)
@click.option("--file", "files", type=click.File("rb"), multiple=True, help="A file that is one message (- is stdin).")
@click.option("--lines", type=click.File("rb"), help="A file of one message a line (- is stdin; the default).")
@click.option("--ndjson", type=click.File("rb"), help="A file of one JSON object a line, with a message's fields.")
@click.option("--packed", is_flag=True, help="For bulk: batched, pipelined, each message written once.")
@click.option("--compress", is_flag=True, help="With --packed: zstd.")
@messages.message_options
@asks
def command(
    asked: Asked,
    topic: str,
    values: tuple[str, ...],
    files: tuple[IO[bytes], ...],
    lines: IO[bytes] | None,
    ndjson: IO[bytes] | None,
    packed: bool,
    compress: bool,
    **words: Any,
) -> None:
    """Send messages. A message is on disk when this says so.

    VALUES are messages. Without any, each line of standard input is one. An object of --ndjson has the fields of the
    HTTP API: value (text or any JSON), value_base64, key, task, id, priority, delay_ms, not_before, timeout_ms,
    envelope.

    \b
    Examples:
      driftq produce orders hello --key user:1 --idempotency-key order-1
      driftq produce emails '{"to": "ann"}' --task email.send.v1 --delay 10m
      zcat events.gz | driftq produce events --packed
      driftq produce orders --ndjson orders.ndjson
    """
    if not (values or files or lines or ndjson):
        if sys.stdin.isatty():
            showing.remark("Reading messages from this terminal, one a line; Ctrl-D ends it.")
        lines = sys.stdin.buffer
    alone = len(values) + len(files) == 1 and not (lines or ndjson)
    if not alone and (words["idempotency_key"] or words["id"]):
        raise click.UsageError("an idempotency key or an id is one message's; with --ndjson each line can have its own")
    said = messages.said_of(words)
    sources = _sources(values, files, lines, ndjson, said)
    if packed:
        _send_packed(asked, topic, sources, words["partition"], compress)
    elif len(values) == 1 and not (files or lines or ndjson):
        _send_one(asked, topic, values[0], said)
    else:
        _send_batches(asked, topic, sources)


def _sources(
    values: Iterable[str],
    files: Iterable[IO[bytes]],
    lines: IO[bytes] | None,
    ndjson: IO[bytes] | None,
    said: dict[str, Any],
) -> Iterator[Source]:
    for value in values:
        yield Source("argument", value, said)
    for file in files:
        yield Source(file.name, file.read(), said)
    for number, text in enumerate(lines or (), 1):
        yield Source(f"line {number}", text.rstrip(b"\r\n"), said)
    for number, text in enumerate(ndjson or (), 1):
        if text.strip():
            yield _source_of(f"line {number}", text, said)


def _source_of(name: str, text: bytes, said: dict[str, Any]) -> Source:
    """A line of NDJSON: what it says goes over what the command line says."""
    import msgspec

    from driftq.wire.queue import ProduceItem

    try:
        found = msgspec.json.decode(text, type=dict[str, Any])
        if not isinstance(found.get("value", ""), str):
            found["value"] = msgspec.json.encode(found["value"]).decode()
        item = msgspec.convert(found, ProduceItem)
        value = _value_of(item)
    except (msgspec.MsgspecError, ValueError) as error:
        fail(Exit.BAD_INPUT, f"{name} is not a message: {error}", "Nothing of this line and those after it was sent.")
    given = {
        field: getattr(item, field)
        for field in ("key", "envelope", "id", "task", "priority", "delay_ms", "not_before", "timeout_ms")
        if getattr(item, field)
    }
    return Source(name, value, said | given)


def _value_of(item: ProduceItem) -> Any:
    import base64

    if item.value_base64 is not None:
        return base64.b64decode(item.value_base64, validate=True)
    if item.value is None:
        raise ValueError("it has no value")
    return item.value


def _send_one(asked: Asked, topic: str, value: str, said: dict[str, Any]) -> None:
    sent = asked.broker.send(topic, value, **said)
    if asked.as_json:
        showing.document(sent)
        return
    again = " (sent before: nothing changed)" if sent.duplicate else ""
    click.echo(f"{sent.routed_topic} {sent.partition}:{sent.offset}{again}")


def _send_batches(asked: Asked, topic: str, sources: Iterator[Source]) -> None:
    from driftq.client.calls import item

    produced, failed = 0, 0
    with showing.progress(f"producing to {topic}", None) as advance:
        while batch := list(islice(sources, BATCH)):
            items = [item(each.value, **each.words) for each in batch]
            reply = asked.broker.send_many(topic, items)
            produced += reply.produced
            for source, result in zip(batch, reply.results, strict=True):
                if result.status >= 300:
                    failed += 1
                    if failed <= FAILURES_SHOWN:
                        showing.remark(f"{source.name} was refused: {result.message}")
            advance(len(batch))
    _report(asked, topic, produced, failed)


def _send_packed(asked: Asked, topic: str, sources: Iterator[Source], partition: int | None, compress: bool) -> None:
    from driftq.client.errors import NotWritten

    producer = asked.broker.producer(topic, compress=compress)
    failed = 0
    try:
        with showing.progress(f"producing to {topic}", None) as advance:
            while batch := list(islice(sources, BATCH)):
                for each in batch:
                    producer.send(each.value, partition=partition, **_without_partition(each.words))
                advance(len(batch))
            producer.close()
    except NotWritten as error:
        failed = error.count
        showing.remark(str(error))
    except BaseException:
        producer.close(timeout_s=30)
        raise
    _report(asked, topic, producer.written_count, failed)


def _without_partition(words: dict[str, Any]) -> dict[str, Any]:
    """A producer is told the partition by itself."""
    import msgspec

    envelope = words.get("envelope")
    if envelope is None or envelope.partition_override is None:
        return words
    return words | {"envelope": msgspec.structs.replace(envelope, partition_override=None)}


def _report(asked: Asked, topic: str, produced: int, failed: int) -> None:
    if asked.as_json:
        showing.document({"topic": topic, "produced": produced, "failed": failed})
    else:
        click.echo(f"{topic}: {produced} produced" + (f", {failed} refused" if failed else ""))
    if failed:
        fail(Exit.REFUSED, f"{failed} messages were not produced", as_json=asked.as_json)
