"""Log lines in two forms, and no line that fakes another."""

from __future__ import annotations

import io
import json
import logging

import pytest

from driftq.server.settings import LogSettings
from driftq.settings.log_lines import JsonLines, TextLines, configure


def record(message: str, *values: object, **fields: object) -> logging.LogRecord:
    entry = logging.LogRecord("driftq.test", logging.WARNING, __file__, 1, message, values, None)
    entry.fields = fields
    return entry


def test_a_json_line_is_one_object_with_the_fields():
    line = JsonLines().format(record("hello %s", "wörld\n", topic="t", bytes_seen=3))
    assert "\n" not in line
    fields = json.loads(line)
    assert (fields["level"], fields["logger"], fields["message"]) == ("warning", "driftq.test", "hello wörld\n")
    assert (fields["topic"], fields["bytes_seen"]) == ("t", 3)
    assert fields["at"].endswith("+00:00")


def test_a_text_line_cannot_be_split_by_what_it_quotes():
    line = TextLines().format(record("path %s", "/x\r\n2026-01-01 ERROR driftq: fake\u2028"))
    assert len(line.splitlines()) == 1
    assert "\\x0d\\x0a2026" in line


def test_a_traceback_is_in_both_forms():
    import sys

    try:
        raise ValueError("boom")
    except ValueError:
        entry = record("failed")
        entry.exc_info = sys.exc_info()
    assert "ValueError: boom" in json.loads(JsonLines().format(entry))["error"]
    assert "ValueError: boom" in TextLines().format(entry)


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_settings_choose_form_and_level(form):
    root, kept = logging.getLogger(), (logging.getLogger().handlers[:], logging.getLogger().level)
    stream = io.StringIO()
    try:
        configure(LogSettings(level="warning", format=form), stream)
        logging.getLogger("driftq.x").info("quiet")
        logging.getLogger("driftq.x").warning("loud")
    finally:
        root.handlers[:], level = kept
        root.setLevel(level)
    (line,) = stream.getvalue().splitlines()
    assert line.startswith("{") == (form == "json")
    assert "loud" in line
