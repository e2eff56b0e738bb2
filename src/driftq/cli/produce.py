"""`driftq produce`: messages from arguments, files, lines or NDJSON; one by one, in batches, or through a producer."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, NoReturn

import click

from driftq.cli import messages, output
from driftq.cli.command import Invocation, asks, topic_argument
from driftq.cli.exit_codes import Exit, fail

if TYPE_CHECKING:
    from driftq.client.producer.accumulator import Receipt
    from driftq.client.producer.producer import Producer
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from driftq.wire.produce import ProduceItem


FAILURES_SHOWN = 10
GIVE_UP_MS = 30_000  # a message of --packed that is not stored by then
LATER = (429, 503)  # a message refused for now: what follows would be, too


@click.command()
@topic_argument
@click.argument("values", nargs=-1)
@click.option("--file", "files", type=click.File("rb"), multiple=True, help="A file that is one message (- is stdin).")
@click.option("--lines", type=click.File("rb"), help="A file of one message a line (- is stdin; the default).")
@click.option(
    "--ndjson", type=click.File("rb"), help="A file of one JSON object a line, with a message's fields (- is stdin)."
)
@click.option("--from-line", type=click.IntRange(1), default=1, help="Resume: skip the lines before this one.")
@click.option("--packed", is_flag=True, help="For bulk: batched, pipelined, each message written once.")
@click.option("--compress", is_flag=True, help="With --packed: zstd.")
@messages.message_options
@asks
def command(
    asked: Invocation,
    topic: str,
    values: tuple[str, ...],
    files: tuple[IO[bytes], ...],
    lines: IO[bytes] | None,
    ndjson: IO[bytes] | None,
    from_line: int,
    packed: bool,
    compress: bool,
    **words: Any,
) -> None:
    """Send messages. A message is on disk when this says so.

    VALUES are messages. Without any, each line of standard input is one. An object of --ndjson has the fields of the
    HTTP API: value (text or any JSON), value_base64, key, task, id, priority, delay_ms, not_before, timeout_ms,
    envelope.

    A line that is not a message ends the command. Everything before it is stored, and --from-line resumes there.

    \b
    Examples:
      driftq produce orders hello --key user:1 --idempotency-key order-1
      driftq produce emails '{"to": "ann"}' --task email.send.v1 --delay 10m
      zcat events.gz | driftq produce events --packed
      driftq produce orders --ndjson orders.ndjson
      driftq produce orders --ndjson orders.ndjson --from-line 1235
    """
    if not (values or files or lines or ndjson):
        if sys.stdin.isatty():
            output.remark("Reading messages from this terminal, one a line; Ctrl-D ends it.")
        lines = sys.stdin.buffer
    alone = len(values) + len(files) == 1 and not (lines or ndjson)
    if not alone and (words["idempotency_key"] or words["id"]):
        raise click.UsageError("an idempotency key or an id is one message's; with --ndjson each line can have its own")
    if from_line > 1 and (values or files or (lines and ndjson)):
        raise click.UsageError("--from-line is for one file of lines: --lines, --ndjson or standard input")
    said = messages.said_of(words)
    sources = read_sources(values, files, lines, ndjson, said, from_line)
    if packed:
        _send_packed(asked, topic, sources, words["partition"], compress)
    elif len(values) == 1 and not (files or lines or ndjson):
        _send_one(asked, topic, values[0], said)
    else:
        _send_batches(asked, topic, sources)


def _send_one(asked: Invocation, topic: str, value: str, said: dict[str, Any]) -> None:
    sent = asked.broker.send(topic, value, **said)
    if asked.as_json:
        output.document(sent)
        return
    again = " (sent before: nothing changed)" if sent.duplicate else ""
    click.echo(f"{sent.routed_topic} {sent.partition}:{sent.offset}{again}")


class _Sent:
    """How far a command has come, and what to say when it gets no further."""

    def __init__(self, asked: Invocation, topic: str) -> None:
        self._asked = asked
        self._topic = topic
        self.produced = 0
        self.failed = 0
        self.next_line = 0  # where to resume if the command is stopped now; 0 when messages are not lines
        self.unsent_line = 0  # the first line that is known not to be stored
        self.unsure_line = 0  # the last line that was sent and not answered
        self.stored_after = 0  # lines after the first unsent one that are stored all the same

    @contextmanager
    def resumable(self) -> Iterator[None]:
        """Whatever ends the sending early, the person learns where to resume."""
        from driftq.client.errors import DriftQError, OutcomeUnknown

        try:
            yield
        except BadLine as error:
            self.unsent_line = self.unsent_line or error.line
            self.show()
            self._end(Exit.BAD_INPUT, str(error), "\n  ".join(["Mend it, then resume.", *self.resume()]))
        except DriftQError as error:
            if not isinstance(error, OutcomeUnknown):
                self.unsure_line = 0
            for line in self.resume():
                error.add_note(line)
            raise
        except KeyboardInterrupt:
            for line in self.resume():
                output.remark(line)
            raise

    def resume(self) -> list[str]:
        line = self.unsent_line or self.next_line
        if not line:
            return []
        told = [f"Line {line} is the first that was not sent. Resume: the same command with --from-line {line}."]
        if self.unsure_line > line:
            told.append(f"Lines {line} to {self.unsure_line} may be stored: look before you send them again.")
        if self.stored_after:
            told.append(f"{self.stored_after} lines after it are stored already and would be stored again.")
        return told

    def refused(self, source: Source, reason: str) -> None:
        self.failed += 1
        if self.failed <= FAILURES_SHOWN:
            output.remark(f"{source.name} was refused: {reason}")

    def show(self) -> None:
        if self._asked.as_json:
            output.document({"topic": self._topic, "produced": self.produced, "failed": self.failed})
        else:
            refused = f", {self.failed} refused" if self.failed else ""
            click.echo(f"{self._topic}: {self.produced} produced{refused}")

    def report(self, code: Exit = Exit.REFUSED) -> None:
        self.show()
        if self.failed:
            self._end(code, f"{self.failed} messages were not produced", "\n  ".join(self.resume()))

    def _end(self, code: Exit, message: str, hint: str) -> NoReturn:
        details = {"line": self.unsent_line} if self.unsent_line else {}
        fail(code, message, hint, details=details, as_json=self._asked.as_json)


def _send_batches(asked: Invocation, topic: str, sources: Iterator[Source]) -> None:
    from driftq.client.calls.queue import item

    sent = _Sent(asked, topic)
    with sent.resumable(), output.progress(f"producing to {topic}", None) as advance:
        for batch in batches(sources):
            sent.next_line, sent.unsure_line = batch[0].line, batch[-1].line
            items = [item(each.value, **each.words) for each in batch]
            reply = asked.broker.send_many(topic, items)
            sent.produced += reply.produced
            refused = [(source, result) for source, result in zip(batch, reply.results) if result.status >= 300]
            for source, result in refused:
                sent.refused(source, result.message)
            advance(len(batch))
            if any(result.status in LATER for _, result in refused):
                sent.unsent_line, sent.unsure_line = refused[0][0].line, 0
                sent.stored_after = sum(each.line > sent.unsent_line for each in batch) - len(refused) + 1
                break  # the next ones would be refused, too
            sent.next_line, sent.unsure_line = _after(batch[-1]), 0
    sent.next_line = 0
    sent.report()


def _send_packed(
    asked: Invocation, topic: str, sources: Iterator[Source], partition: int | None, compress: bool
) -> None:
    from driftq.client.errors import Closed, NotConnected, NotWritten, OutcomeUnknown

    sent = _Sent(asked, topic)
    producer = asked.broker.producer(topic, compress=compress, delivery_timeout_ms=GIVE_UP_MS)
    waiting: deque[tuple[int, Receipt]] = deque()
    code = Exit.REFUSED
    with sent.resumable():
        try:
            with output.progress(f"producing to {topic}", None) as advance:
                for batch in batches(sources):
                    for each in batch:
                        waiting.append((each.line, _given(producer, each, partition)))
                        sent.next_line = _after(each)
                    _forget_stored(waiting)
                    advance(len(batch))
                    if producer.failed_count:
                        break
        finally:
            try:
                producer.close(timeout_s=2 * GIVE_UP_MS / 1_000)
            except NotWritten as error:
                output.remark(str(error))
                if all(isinstance(each, NotConnected | OutcomeUnknown | Closed) for each in error.failed):
                    code = Exit.UNREACHABLE
            _count_packed(sent, waiting, producer.written_count)
    sent.next_line = 0
    sent.report(code)


def _after(source: Source) -> int:
    return source.line + 1 if source.line else 0


def _given(producer: Producer, source: Source, partition: int | None) -> Receipt:
    from driftq.client.errors import InvalidCall

    try:
        return producer.send(source.value, partition=partition, **_without_partition(source.words))
    except InvalidCall as error:
        if source.line:
            raise BadLine(source.line, error.message) from None
        raise


def _forget_stored(waiting: deque[tuple[int, Receipt]]) -> None:
    while waiting and waiting[0][1].done and waiting[0][1].error is None:
        waiting.popleft()


def _count_packed(sent: _Sent, waiting: deque[tuple[int, Receipt]], written: int) -> None:
    """Which lines did not arrive, once the producer is closed."""
    from driftq.client.errors import OutcomeUnknown

    failed = [(line, receipt) for line, receipt in waiting if receipt.error is not None]
    sent.produced, sent.failed = written, len(failed)
    if failed:
        sent.unsent_line = failed[0][0]
        sent.unsure_line = max((line for line, each in failed if isinstance(each.error, OutcomeUnknown)), default=0)
        sent.stored_after = sum(line > sent.unsent_line and each.error is None for line, each in waiting)


def _without_partition(words: dict[str, Any]) -> dict[str, Any]:
    """A producer is told the partition by itself."""
    import msgspec

    envelope = words.get("envelope")
    if envelope is None or envelope.partition_override is None:
        return words
    return words | {"envelope": msgspec.structs.replace(envelope, partition_override=None)}


# --- Messages for `driftq produce`: arguments, whole files, lines and NDJSON, each with its place for a complaint ---


BATCH = 500
SALVAGED = ("offset", "timestamp_ms", "key_base64", "routing", "dlq")  # what `driftq repair salvage` adds: ignored
FIELDS = ("key", "envelope", "id", "task", "priority", "delay_ms", "not_before", "timeout_ms")


class Source(NamedTuple):
    """A message as it was read. `line` is 0 for what is not a line of a file or a pipe."""

    name: str
    line: int
    value: Any
    words: dict[str, Any]


class BadLine(Exception):
    """A line that is not a message. Nothing of it, and nothing after it, was read."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"line {line} is not a message: {reason}")
        self.line = line


def read_sources(
    values: Iterable[str],
    files: Iterable[IO[bytes]],
    lines: IO[bytes] | None,
    ndjson: IO[bytes] | None,
    said: dict[str, Any],
    first_line: int = 1,
) -> Iterator[Source]:
    """Every message, in order; of lines those from `first_line` on."""
    for value in values:
        yield Source("argument", 0, value, said)
    for file in files:
        yield Source(file.name, 0, file.read(), said)
    for number, text in enumerate(lines or (), 1):
        if number >= first_line:
            yield Source(f"line {number}", number, text.rstrip(b"\r\n"), said)
    for number, text in enumerate(ndjson or (), 1):
        if number >= first_line and text.strip():
            yield _source_of(number, text, said)


def batches(found: Iterable[Source]) -> Iterator[list[Source]]:
    """The messages in batches. What was read before a bad line is a batch, too; then `BadLine` is raised."""
    batch: list[Source] = []
    try:
        for source in found:
            batch.append(source)
            if len(batch) == BATCH:
                yield batch
                batch = []
    except BadLine:
        if batch:
            yield batch
        raise
    if batch:
        yield batch


def _source_of(line: int, text: bytes, said: dict[str, Any]) -> Source:
    """A line of NDJSON: its fields win over those of the command line."""
    import msgspec

    from driftq.wire.produce import ProduceItem

    try:
        found = msgspec.json.decode(text, type=dict[str, Any])
        for name in SALVAGED:
            found.pop(name, None)
        if not isinstance(found.get("value", ""), str):
            found["value"] = msgspec.json.encode(found["value"]).decode()
        item = msgspec.convert(found, ProduceItem)
        value = _value_of(item)
    except (msgspec.MsgspecError, ValueError) as error:
        raise BadLine(line, str(error)) from None
    given = {field: getattr(item, field) for field in FIELDS if getattr(item, field)}
    return Source(f"line {line}", line, value, said | given)


def _value_of(item: ProduceItem) -> Any:
    import base64

    if item.value_base64 is not None:
        return base64.b64decode(item.value_base64, validate=True)
    if item.value is None:
        raise ValueError("it has no value")
    return item.value
