"""The lines of an NDJSON body."""

from __future__ import annotations

import pytest

from driftq.server.handlers.produce_batch import _lines


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        (b"", []),
        (b" \n\r\n\t", []),
        (b'{"a":1}', [b'{"a":1}']),
        (b'{"a":1}\n', [b'{"a":1}']),
        (b'\n\n {"a":1} \n \n\t{"b":"{"}\r\n\n', [b'{"a":1} ', b'{"b":"{"}\r']),
        (b'{"a":{}}{"b":1}\n{"c":1}', [b'{"a":{}}{"b":1}', b'{"c":1}']),
    ],
)
def test_blank_lines_are_passed_over(body, lines):
    assert list(_lines(body)) == lines


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        (b"oops", [b"oops"]),
        (b'\n [1]\n{"a":1}', [b"[1]"]),
        (b'{"a":1}\n\n "x" {\n{"b":1}', [b'{"a":1}', b'"x" {']),
        (b'{"a":1}\n7', [b'{"a":1}', b"7"]),
    ],
)
def test_the_first_line_that_is_no_object_is_the_last(body, lines):
    """Decoding it fails, so what follows does not matter."""
    assert list(_lines(body)) == lines
