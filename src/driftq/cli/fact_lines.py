"""A fact as one line for people, or as one JSON object for programs.

Numbers get their names, offsets are shown as ranges (the last one included), times as RFC 3339, payloads as a short and
escaped preview. It works from the fields of a fact, so that a new kind of fact is shown without a word here.
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
    shown = _described(fact, names)
    text = " ".join(f"{name}={_text(value)}" for name, value in shown.items() if value not in (None, "", (), 0, []))
    return f"{lsn:>10}  {type(fact).__name__:<15} {text}"


def json_line(lsn: int, fact: Fact, names: Names) -> str:
    """The fact with its own fields and numbers; names are added, payloads are shortened."""
    shown: dict[str, Any] = {"lsn": lsn, "fact": type(fact).__name__}
    if (log_id := getattr(fact, "log_id", None)) is not None:
        shown["log"] = names.log(log_id)
    if (group_id := getattr(fact, "group_id", None)) and not hasattr(fact, "group"):
        shown["group"] = names.group(group_id)
    for each in fields(fact):
        value = getattr(fact, each.name)
        if each.name in ("batch", "token") or isinstance(value, bytes):
            value = _plain(each.name, value, names)
        shown[each.name] = value
    return msgspec.json.encode(shown, enc_hook=_by_name).decode()


def _by_name(value: Any) -> Any:
    return {each.name: getattr(value, each.name) for each in fields(value)}


def _described(fact: Fact, names: Names) -> dict[str, Any]:
    """The fact as plain values, with names in the place of numbers."""
    shown: dict[str, Any] = {}
    log_id, group_id = getattr(fact, "log_id", None), getattr(fact, "group_id", None)
    if log_id is not None:
        shown["log"] = names.log(log_id)
    if group_id and not hasattr(fact, "group"):
        shown["group"] = names.group(group_id)
    first, count = getattr(fact, "first_offset", None), getattr(fact, "count", None)
    if first is not None:
        end = getattr(fact, "end_offset", None) or first + (count or 1)
        shown["offsets"] = span(first, end)
    said = {"log_id", "group_id"} | ({"first_offset", "end_offset"} if first is not None else set())
    for each in fields(fact):
        if each.name not in said:
            shown[each.name] = _plain(each.name, getattr(fact, each.name), names)
    return shown


def span(first: int, end: int) -> str:
    """Offsets [first, end) as people say them."""
    return str(first) if end == first + 1 else f"{first}..{end - 1}"


def time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1_000, UTC).isoformat(timespec="milliseconds")


def escaped(data: bytes | str, size: int = PREVIEW_CHARACTERS) -> str:
    """At most `size` characters, none of them able to move a cursor."""
    text = data.decode("utf-8", "backslashreplace") if isinstance(data, bytes) else data
    shown = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text[:size])
    return shown if len(text) <= size else f"{shown}…"


def _plain(name: str, value: Any, names: Names) -> Any:
    if name in _LOG_FIELDS:
        return names.log(value) if value is not None else None
    if name == "token":
        return escaped(value, 6)  # whoever knows it may settle the message
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
        inside = {each.name: _plain(each.name, getattr(value, each.name), names) for each in fields(value)}
        return {key: item for key, item in inside.items() if item not in (None, "", (), 0, [], {}, False)}
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
