"""Messages for `driftq produce`: arguments, whole files, lines and NDJSON, each with its place for a complaint.

A line that is not a message ends the reading, but never takes with it what was read before: `batches` hands that over
first. Knows no server.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import IO, TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from driftq.wire.queue import ProduceItem

BATCH = 500
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


def sources(
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

    from driftq.wire.queue import ProduceItem

    try:
        found = msgspec.json.decode(text, type=dict[str, Any])
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
