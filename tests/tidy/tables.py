"""Tables in docs/ that are made from code, so that they cannot be wrong.

A table names a module, a document and a way to turn the module into rows. It stands in the document between two
comments; `make docs` writes it, `test_tables.py` compares it. A table whose module does not exist yet is left alone.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import re
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import NamedTuple, get_args

from tests.tidy import cli_commands, error_texts, python_reference, sizing
from tests.tidy.sources import ROOT

Rows = Sequence[Sequence[str]]


class Table(NamedTuple):
    """One table: where it stands, what it is made from."""

    name: str
    title: str
    document: str
    module: str
    header: Sequence[str]
    rows: Callable[[ModuleType], Rows]


def first_sentence(thing: object) -> str:
    text = " ".join((inspect.getdoc(thing) or "").split())
    return re.split(r"(?<=\.)\s", text, maxsplit=1)[0]


def structs(module: ModuleType) -> Rows:
    """Every public struct of a module, in the order written: its tag, its name and its first sentence."""
    import msgspec

    rows = []
    for name, thing in vars(module).items():
        mine = inspect.isclass(thing) and thing.__module__ == module.__name__ and not name.startswith("_")
        if mine and issubclass(thing, msgspec.Struct) and thing.__struct_config__.tag is not None:
            rows.append((str(thing.__struct_config__.tag), f"`{name}`", first_sentence(thing)))
    return rows


def facts(frames: ModuleType) -> Rows:
    """Every fact that a journal may hold, by its tag; those of snapshots have a table of their own."""
    journaled = [fact for fact in get_args(frames.AnyFact) if not fact.__module__.endswith("snapshot_facts")]
    journaled.sort(key=lambda fact: fact.__struct_config__.tag)
    return [(str(fact.__struct_config__.tag), f"`{fact.__name__}`", first_sentence(fact)) for fact in journaled]


def audited_calls(_: ModuleType) -> Rows:
    """Every action that the audit knows, and the call that it is."""
    from tests.support.handler_fixture import handler_fixture

    async def table() -> Rows:
        async with handler_fixture() as at:
            routes = at.app.routes
            return sorted(
                (f"`{action}`", f"`{route.method} {route.path}`") for route in routes for action in route.actions
            )

    return asyncio.run(table())


TABLES: tuple[Table, ...] = (
    Table("facts", "Facts", "docs/internals/facts.md", "driftq.core.model.frames", ("id", "fact", "meaning"), facts),
    Table(
        "images",
        "Images",
        "docs/internals/facts.md",
        "driftq.core.model.snapshot_facts",
        ("id", "image", "what it is"),
        structs,
    ),
    Table(
        "settings",
        "Settings",
        "docs/reference/settings.md",
        "driftq.server.settings",
        ("setting", "default", "meaning"),
        lambda module: module.table(),
    ),
    Table(
        "metrics",
        "Metrics",
        "docs/reference/metrics.md",
        "driftq.server.metrics.definitions",
        ("metric", "kind", "labels", "meaning"),
        lambda module: module.table(),
    ),
    Table(
        "commands",
        "Commands",
        "docs/reference/cli.md",
        "driftq.cli.main",
        ("command", "does", "options"),
        cli_commands.rows,
    ),
    Table(
        "python",
        "The Python client, name by name",
        "docs/reference/python.md",
        "driftq",
        (),
        python_reference.rows,
    ),
    Table(
        "messages",
        "Troubleshooting",
        "docs/guides/troubleshooting.md",
        "driftq.cli.main",
        ("text", "exit code"),
        error_texts.rows,
    ),
    Table(
        "sizing",
        "Tuning and sizing",
        "docs/guides/tuning.md",
        "bench.performance",
        ("how", "measured on two cores", "CPU of the server for a message", "at most, with one core"),
        sizing.rows,
    ),
    Table(
        "audit",
        "What is recorded",
        "docs/guides/audit.md",
        "driftq.server.app",
        ("action", "call"),
        audited_calls,
    ),
    Table(
        "codes",
        "Codes",
        "docs/reference/queue-api.md",
        "driftq.wire.errors",
        ("status", "`error`", "on streams", "what to do", "when"),
        lambda module: module.table(),
    ),
    Table(
        "spark-columns",
        "Spark source and sink",
        "docs/reference/spark.md",
        "driftq.spark.source.columns",
        ("column", "type", "meaning"),
        lambda module: module.table(),
    ),
    Table(
        "spark-options",
        "Spark source and sink",
        "docs/reference/spark.md",
        "driftq.spark.source.options",
        ("option", "default", "meaning"),
        lambda module: module.table(),
    ),
    Table(
        "spark-sink-options",
        "Spark source and sink",
        "docs/reference/spark.md",
        "driftq.spark.sink.options",
        ("option", "default", "meaning"),
        lambda module: module.table(),
    ),
)


def is_active(table: Table) -> bool:
    """True once the module exists. A module that exists and does not import is an error, not an absence."""
    try:
        return importlib.util.find_spec(table.module) is not None
    except ModuleNotFoundError:
        return False


def render(table: Table, module: ModuleType) -> str:
    if not table.header:  # not a table: the lines as they are
        lines = [line for row in table.rows(module) for line in row]
        return "\n".join([f"<!-- made by `make docs`: {table.name} -->", *lines, f"<!-- end of {table.name} -->"])
    rows = [table.header, ["---"] * len(table.header), *table.rows(module)]
    cells = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([f"<!-- made by `make docs`: {table.name} -->", *cells, f"<!-- end of {table.name} -->"])


def updated(table: Table, module: ModuleType, text: str | None) -> str:
    """The document with the table as it should be; a new document if there is none."""
    if text is None:
        return f"# {table.title}\n\n{render(table, module)}\n"
    begin, end = f"<!-- made by `make docs`: {table.name} -->", f"<!-- end of {table.name} -->"
    before, separator, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not (separator and closed):
        return f"{text.rstrip()}\n\n{render(table, module)}\n"
    return before + render(table, module) + after


def main() -> None:
    for table in TABLES:
        if not is_active(table):
            continue
        path = ROOT / table.document
        old = path.read_text(encoding="utf-8") if path.exists() else None
        new = updated(table, importlib.import_module(table.module), old)
        if new != old:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(new, encoding="utf-8")
            print(f"wrote {table.document}")


if __name__ == "__main__":
    main()
