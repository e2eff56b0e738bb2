"""`driftq produce`: send messages from arguments, files, lines or NDJSON, singly, in batches, or through a producer."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, NoReturn

import click

from driftq.cli import messages, output
from driftq.cli.command import Invocation, broker_command, topic_argument
from driftq.cli.exit_codes import Exit, fail

if TYPE_CHECKING:
    from driftq.client.producer.producer import Producer
    from driftq.client.producer.producer_batch import Receipt
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from driftq.wire.produce import ProduceItem


FAILURES_SHOWN = 10
DELIVERY_TIMEOUT_MS = 30_000  # of a message with --packed
BUSY_STATUSES = (429, 503)  # the next messages would be refused, too


@click.command()
@topic_argument
@click.argument("values", nargs=-1)
@click.option("--file", "files", type=click.File("rb"), multiple=True, help="File with one message (- is stdin).")
@click.option("--lines", type=click.File("rb"), help="File with one message per line (- is stdin; the default).")
@click.option("--ndjson", type=click.File("rb"), help="File with one JSON object per line (- is stdin).")
@click.option("--from-line", type=click.IntRange(1), default=1, help="Skip the lines before this one, to resume.")
@click.option("--packed", is_flag=True, help="For bulk: batched and pipelined, each message written once.")
@click.option("--compress", is_flag=True, help="Compress with zstd (with --packed).")
@messages.message_options
@broker_command
def command(
    invocation: Invocation,
    topic: str,
    values: tuple[str, ...],
    files: tuple[IO[bytes], ...],
    lines: IO[bytes] | None,
    ndjson: IO[bytes] | None,
    from_line: int,
    packed: bool,
    compress: bool,
    **options: Any,
) -> None:
    """Send messages. The command reports messages that are on disk.

    Each of VALUES is a message; without any, each line of standard input is one. An object of --ndjson has the fields
    of the HTTP API: value (text or any JSON), value_base64, key, task, id, priority, delay_ms, not_before, timeout_ms,
    envelope.

    The command stops at a line that is not a message. All lines before it are stored; --from-line resumes there.

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
            output.note("Reading messages from the terminal, one per line; Ctrl-D ends.")
        lines = sys.stdin.buffer
    single = len(values) + len(files) == 1 and not (lines or ndjson)
    if not single and (options["idempotency_key"] or options["id"]):
        raise click.UsageError(
            "an idempotency key or an id belongs to one message; with --ndjson each line can have its own"
        )
    if from_line > 1 and (values or files or (lines and ndjson)):
        raise click.UsageError("--from-line is for one file of lines: --lines, --ndjson or standard input")
    arguments = messages.send_arguments(options)
    sources = read_sources(values, files, lines, ndjson, arguments, from_line)
    if packed:
        _send_packed(invocation, topic, sources, options["partition"], compress)
    elif len(values) == 1 and not (files or lines or ndjson):
        _send_one(invocation, topic, values[0], arguments)
    else:
        _send_batches(invocation, topic, sources)


def _send_one(invocation: Invocation, topic: str, value: str, arguments: dict[str, Any]) -> None:
    sent = invocation.broker.send(topic, value, **arguments)
    if invocation.as_json:
        output.document(sent)
        return
    duplicate = " (duplicate: nothing changed)" if sent.duplicate else ""
    click.echo(f"{sent.routed_topic} {sent.partition}:{sent.offset}{duplicate}")


class _Progress:
    """How many messages were sent, and at which line to resume if the command stops early."""

    def __init__(self, invocation: Invocation, topic: str) -> None:
        self._invocation = invocation
        self._topic = topic
        self.produced = 0
        self.failed = 0
        self.next_line = 0  # where to resume if the command is stopped now; 0 when messages are not lines
        self.unsent_line = 0  # the first line that is known not to be stored
        self.unsure_line = 0  # the last line that was sent and not answered
        self.stored_after = 0  # lines after the first unsent one that are stored all the same

    @contextmanager
    def resumable(self) -> Iterator[None]:
        """If sending stops early, print at which line to resume."""
        from driftq.client.errors import DriftQError, OutcomeUnknown

        try:
            yield
        except BadLine as error:
            self.unsent_line = self.unsent_line or error.line
            self.show()
            self._end(Exit.BAD_INPUT, str(error), "\n  ".join(["Fix it, then resume.", *self.resume()]))
        except DriftQError as error:
            if not isinstance(error, OutcomeUnknown):
                self.unsure_line = 0
            for line in self.resume():
                error.add_note(line)
            raise
        except KeyboardInterrupt:
            for line in self.resume():
                output.note(line)
            raise

    def resume(self) -> list[str]:
        line = self.unsent_line or self.next_line
        if not line:
            return []
        hints = [f"Line {line} is the first that was not sent. Resume: the same command with --from-line {line}."]
        if self.unsure_line > line:
            hints.append(f"Lines {line} to {self.unsure_line} may be stored: check before you send them again.")
        if self.stored_after:
            hints.append(f"{self.stored_after} lines after it are already stored and would be stored again.")
        return hints

    def refused(self, source: Source, reason: str) -> None:
        self.failed += 1
        if self.failed <= FAILURES_SHOWN:
            output.note(f"{source.name} was refused: {reason}")

    def show(self) -> None:
        if self._invocation.as_json:
            output.document({"topic": self._topic, "produced": self.produced, "failed": self.failed})
        else:
            refused = f", {self.failed} refused" if self.failed else ""
            click.echo(f"{self._topic}: {self.produced} produced{refused}")

    def report(self, code: Exit = Exit.REFUSED) -> None:
        self.show()
        if self.failed:
            were = "message was" if self.failed == 1 else "messages were"
            self._end(code, f"{self.failed} {were} not produced", "\n  ".join(self.resume()))

    def _end(self, code: Exit, message: str, hint: str) -> NoReturn:
        details = {"line": self.unsent_line} if self.unsent_line else {}
        fail(code, message, hint, details=details, as_json=self._invocation.as_json)


def _send_batches(invocation: Invocation, topic: str, sources: Iterator[Source]) -> None:
    from driftq.client.calls.queue import item

    sent = _Progress(invocation, topic)
    with sent.resumable(), output.progress(f"producing to {topic}", None) as advance:
        for batch in batches(sources):
            sent.next_line, sent.unsure_line = batch[0].line, batch[-1].line
            items = [item(source.value, **source.arguments) for source in batch]
            reply = invocation.broker.send_many(topic, items)
            sent.produced += reply.produced
            refused = [(source, result) for source, result in zip(batch, reply.results) if result.status >= 300]
            for source, result in refused:
                sent.refused(source, result.message)
            advance(len(batch))
            if any(result.status in BUSY_STATUSES for _, result in refused):
                sent.unsent_line, sent.unsure_line = refused[0][0].line, 0
                sent.stored_after = sum(source.line > sent.unsent_line for source in batch) - len(refused) + 1
                break  # the next ones would be refused, too
            sent.next_line, sent.unsure_line = _after(batch[-1]), 0
    sent.next_line = 0
    sent.report()


def _send_packed(
    invocation: Invocation, topic: str, sources: Iterator[Source], partition: int | None, compress: bool
) -> None:
    from driftq.client.errors import Closed, NotConnected, NotWritten, OutcomeUnknown

    sent = _Progress(invocation, topic)
    producer = invocation.broker.producer(topic, compress=compress, delivery_timeout_ms=DELIVERY_TIMEOUT_MS)
    pending: deque[tuple[int, Receipt]] = deque()
    code = Exit.REFUSED
    with sent.resumable():
        try:
            with output.progress(f"producing to {topic}", None) as advance:
                for batch in batches(sources):
                    for source in batch:
                        pending.append((source.line, _send_to(producer, source, partition)))
                        sent.next_line = _after(source)
                    _drop_stored(pending)
                    advance(len(batch))
                    if producer.failed_count:
                        break
        finally:
            try:
                producer.close(timeout_s=2 * DELIVERY_TIMEOUT_MS / 1_000)
            except NotWritten as error:
                output.note(str(error))
                if all(isinstance(cause, NotConnected | OutcomeUnknown | Closed) for cause in error.failed):
                    code = Exit.UNREACHABLE
            _count_packed(sent, pending, producer.written_count)
    sent.next_line = 0
    sent.report(code)


def _after(source: Source) -> int:
    return source.line + 1 if source.line else 0


def _send_to(producer: Producer, source: Source, partition: int | None) -> Receipt:
    from driftq.client.errors import InvalidCall

    try:
        return producer.send(source.value, partition=partition, **_without_partition(source.arguments))
    except InvalidCall as error:
        if source.line:
            raise BadLine(source.line, error.message) from None
        raise


def _drop_stored(pending: deque[tuple[int, Receipt]]) -> None:
    while pending and pending[0][1].done and pending[0][1].error is None:
        pending.popleft()


def _count_packed(sent: _Progress, pending: deque[tuple[int, Receipt]], written: int) -> None:
    """Count the lines that were not stored, after the producer is closed."""
    from driftq.client.errors import OutcomeUnknown

    failed = [(line, receipt) for line, receipt in pending if receipt.error is not None]
    sent.produced, sent.failed = written, len(failed)
    if failed:
        sent.unsent_line = failed[0][0]
        sent.unsure_line = max(
            (line for line, receipt in failed if isinstance(receipt.error, OutcomeUnknown)), default=0
        )
        sent.stored_after = sum(line > sent.unsent_line and receipt.error is None for line, receipt in pending)


def _without_partition(arguments: dict[str, Any]) -> dict[str, Any]:
    """A producer takes the partition as an argument of its own."""
    import msgspec

    envelope = arguments.get("envelope")
    if envelope is None or envelope.partition_override is None:
        return arguments
    return arguments | {"envelope": msgspec.structs.replace(envelope, partition_override=None)}


# --- reading messages: arguments, whole files, lines and NDJSON, each with its line number for errors ---


BATCH_MESSAGES = 500
IGNORED_FIELDS = ("offset", "timestamp_ms", "key_base64", "routing", "dlq")  # added by `driftq repair salvage`
FIELDS = ("key", "envelope", "id", "task", "priority", "delay_ms", "not_before", "timeout_ms")


class Source(NamedTuple):
    """A message as it was read. `line` is 0 for a message that is not a line of a file or pipe."""

    name: str
    line: int
    value: Any
    arguments: dict[str, Any]


class BadLine(Exception):
    """A line that is not a message. Nothing after it was read."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"line {line} is not a message: {reason}")
        self.line = line


def read_sources(
    values: Iterable[str],
    files: Iterable[IO[bytes]],
    lines: IO[bytes] | None,
    ndjson: IO[bytes] | None,
    arguments: dict[str, Any],
    first_line: int = 1,
) -> Iterator[Source]:
    """Every message, in order. Lines before `first_line` are skipped."""
    for value in values:
        yield Source("argument", 0, value, arguments)
    for file in files:
        yield Source(file.name, 0, file.read(), arguments)
    for number, text in enumerate(lines or (), 1):
        if number >= first_line:
            yield Source(f"line {number}", number, text.rstrip(b"\r\n"), arguments)
    for number, text in enumerate(ndjson or (), 1):
        if number >= first_line and text.strip():
            yield _parse_ndjson(number, text, arguments)


def batches(sources: Iterable[Source]) -> Iterator[list[Source]]:
    """The messages in batches. Those before a bad line are yielded, then `BadLine` is raised."""
    batch: list[Source] = []
    try:
        for source in sources:
            batch.append(source)
            if len(batch) == BATCH_MESSAGES:
                yield batch
                batch = []
    except BadLine:
        if batch:
            yield batch
        raise
    if batch:
        yield batch


def _parse_ndjson(line: int, text: bytes, arguments: dict[str, Any]) -> Source:
    """A line of NDJSON. Its fields win over the options of the command line."""
    import msgspec

    from driftq.wire.produce import ProduceItem

    try:
        fields = msgspec.json.decode(text, type=dict[str, Any])
        for name in IGNORED_FIELDS:
            fields.pop(name, None)
        if not isinstance(fields.get("value", ""), str):
            fields["value"] = msgspec.json.encode(fields["value"]).decode()
        item = msgspec.convert(fields, ProduceItem)
        value = _value_of(item)
    except (msgspec.MsgspecError, ValueError) as error:
        raise BadLine(line, str(error)) from None
    given = {field: getattr(item, field) for field in FIELDS if getattr(item, field)}
    return Source(f"line {line}", line, value, arguments | given)


def _value_of(item: ProduceItem) -> Any:
    import base64

    if item.value_base64 is not None:
        return base64.b64decode(item.value_base64, validate=True)
    if item.value is None:
        raise ValueError("it has no value")
    return item.value
