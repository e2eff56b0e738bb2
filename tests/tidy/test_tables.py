"""The documents list what the code has: every table made from code is up to date."""

from __future__ import annotations

import importlib
import types

import msgspec
import pytest

from tests.tidy.sources import ROOT
from tests.tidy.tables import TABLES, Table, is_active, structs, updated


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_the_table_in_the_document_is_what_the_code_says(table):
    if not is_active(table):
        pytest.skip(f"{table.module} is not written yet")
    path = ROOT / table.document
    assert path.exists(), f"{table.document} is missing: run `make docs`"
    text = path.read_text(encoding="utf-8")
    assert updated(table, importlib.import_module(table.module), text) == text, "run `make docs` and read the diff"


def test_a_table_is_replaced_in_place_and_the_words_around_it_stay():
    module = types.ModuleType("planted")

    class Written(msgspec.Struct, tag=7):
        """Bytes were written. And more."""

    Written.__module__ = "planted"
    module.Written = Written
    table = Table("planted", "Planted", "docs/planted.md", "planted", ("id", "fact", "meaning"), structs)

    fresh = updated(table, module, None)
    assert "| 7 | `Written` | Bytes were written. |" in fresh
    around = "Before.\n\n" + fresh.replace("| 7 |", "| 8 |") + "\nAfter.\n"
    assert updated(table, module, around) == "Before.\n\n" + fresh + "\nAfter.\n"
    assert updated(table, module, fresh) == fresh
