"""A fact as one line for people, or as one JSON object for programs.

Numbers of logs and groups become names, offsets become ranges (the last one included), times RFC 3339, and payloads a
short, escaped preview. It works from the fields of a fact, so a new kind of fact needs no change here.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from msgspec.structs import fields

from driftq.wire import records

if TYPE_CHECKING:
    from driftq.core.model.facts import Fact
    from driftq.repair.names import Names

PREVIEW_CHARACTERS = 40
_LOG_FIELDS = ("log_id", "target_log_id", "source_log_id")


def line(lsn: int, fact: Fact, names: Names) -> str:
    described = _describe(fact, names)
    text = " ".join(f"{name}={_text(value)}" for name, value in described.items() if value not in (None, "", (), 0, []))
    return f"{lsn:>10}  {type(fact).__name__:<15} {text}"


def json_line(lsn: int, fact: Fact, names: Names) -> str:
    """The fact with its own fields and numbers; names are added, payloads are shortened."""
    line: dict[str, Any] = {"lsn": lsn, "fact": type(fact).__name__}
    if (log_id := getattr(fact, "log_id", None)) is not None:
        line["log"] = names.log(log_id)
    if (group_id := getattr(fact, "group_id", None)) and not hasattr(fact, "group"):
        line["group"] = names.group(group_id)
    for field in fields(fact):
        value = getattr(fact, field.name)
        if field.name in ("batch", "token") or isinstance(value, bytes):
            value = _plain(field.name, value, names)
        line[field.name] = value
    return msgspec.json.encode(line, enc_hook=_fields_of).decode()


def _fields_of(value: Any) -> Any:
    """A struct as an object. Facts are encoded as arrays by default."""
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _describe(fact: Fact, names: Names) -> dict[str, Any]:
    """The fact as plain values, with names instead of numbers."""
    described: dict[str, Any] = {}
    log_id, group_id = getattr(fact, "log_id", None), getattr(fact, "group_id", None)
    if log_id is not None:
        described["log"] = names.log(log_id)
    if group_id and not hasattr(fact, "group"):
        described["group"] = names.group(group_id)
    first, count = getattr(fact, "first_offset", None), getattr(fact, "count", None)
    if first is not None:
        end = getattr(fact, "end_offset", None) or first + (count or 1)
        described["offsets"] = span(first, end)
    done = {"log_id", "group_id"} | ({"first_offset", "end_offset"} if first is not None else set())
    for field in fields(fact):
        if field.name not in done:
            described[field.name] = _plain(field.name, getattr(fact, field.name), names)
    return described


def span(first: int, end: int) -> str:
    """Offsets [first, end) as text, the last one included: `3..7`."""
    return str(first) if end == first + 1 else f"{first}..{end - 1}"


def time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1_000, UTC).isoformat(timespec="milliseconds")


def escaped(data: bytes | str, size: int = PREVIEW_CHARACTERS) -> str:
    """At most `size` characters, without control characters that a terminal would obey."""
    text = data.decode("utf-8", "backslashreplace") if isinstance(data, bytes) else data
    printable = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text[:size])
    return printable if len(text) <= size else f"{printable}…"


def _plain(name: str, value: Any, names: Names) -> Any:
    if name in _LOG_FIELDS:
        return names.log(value) if value is not None else None
    if name == "token":
        return escaped(value, 6)  # a client that knows the whole token may settle the message
    if name == "batch":
        return _preview(value)
    if name in ("delayed", "dead"):
        return len(value)
    if name in ("ranges", "settled", "ready", "lost"):
        return [span(first, end) for first, end in value]
    if isinstance(value, int) and name.endswith("_ms") and value > 1_000_000_000_000:
        return time(value)
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, str):
        return escaped(value, 200)
    if isinstance(value, Struct):
        inner = {field.name: _plain(field.name, getattr(value, field.name), names) for field in fields(value)}
        return {key: item for key, item in inner.items() if item not in (None, "", (), 0, [], {}, False)}
    if isinstance(value, tuple):
        return [_plain("", item, names) for item in value]
    return value


def _preview(batch: bytes) -> str:
    """The first record's key and value, as far as they fit."""
    try:
        header = records.read_header(batch)
        first = records.unpack(batch, header, count=1)[0]
    except records.BadBatch as error:
        return f"{len(batch)} bytes that cannot be read ({error})"
    more = f" +{header.count - 1}" if header.count > 1 else ""
    key = f"{escaped(first.key, 20)}: " if first.key else ""
    return f"{key}{escaped(first.value)}{more}"


def _text(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value}"' if " " in value or not value else value
    if isinstance(value, list):
        return ",".join(map(_text, value)) or "-"
    if isinstance(value, dict):
        return "{" + " ".join(f"{name}={_text(item)}" for name, item in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else str(value)
