"""Log lines in two forms, no line that fakes another, a limited rate of warnings; and the access log."""

from __future__ import annotations

import io
import json
import logging

import pytest

from driftq.server.http import Request
from driftq.server.http.request import RequestHead
from driftq.server.logs import AccessLog, JsonLines, RateLimited, TextLines, configure
from driftq.server.settings import LogSettings


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


def test_a_repeated_warning_is_suppressed_and_counted(caplog):
    times = iter((0.0, 1.0, 9.9, 10.0, 10.0))
    limited = RateLimited(logging.getLogger("driftq.limited"), every_s=10, now_s=times.__next__)
    for _ in range(4):
        limited.warn("kind", "it is 100%% %s", "bad")
    limited.warn("another", "first")
    assert [entry.getMessage() for entry in caplog.records] == [
        "it is 100% bad",
        "it is 100% bad (2 more of this kind since the last line)",
        "first",
    ]


def request_with(**fields: bytes) -> Request:
    return Request(
        RequestHead("POST", b"/v1/produce?token=secret", {k.replace("_", "-").encode(): v for k, v in fields.items()}),
        b"payload",
        "127.0.0.1",
    )


@pytest.mark.parametrize("sent", [b"abc", b"A-b_c.d:e/f+g=@", b"x" * 128])
def test_a_valid_request_id_is_echoed(sent):
    assert AccessLog().on_response(request_with(x_request_id=sent), 200, 1) == b"X-Request-Id: %b\r\n" % sent


@pytest.mark.parametrize("sent", [b"", b"x" * 129, b"a b", b"a\x00", "ä".encode(), b"a\r\nSet-Cookie: x"])
def test_an_invalid_request_id_is_replaced(sent):
    line = AccessLog().on_response(request_with(x_request_id=sent), 200, 1)
    assert line.count(b"\r\n") == 1
    assert sent not in line or not sent


def test_generated_request_ids_are_unique_and_of_one_length():
    access_log = AccessLog()
    lines = {access_log.on_response(request_with(), 200, 1) for _ in range(100)}
    assert len(lines) == 100
    assert len({len(line) for line in lines}) == 1


def test_the_access_log_has_the_path_and_not_the_secrets(caplog):
    access_log = AccessLog(enabled=True)
    request = request_with(x_request_id=b"id-7", authorization=b"Bearer secret")
    access_log.on_request(request)
    with caplog.at_level(logging.INFO, "driftq.access"):
        access_log.on_response(request, 201, 42)
    (entry,) = caplog.records
    line = JsonLines().format(entry)
    fields = json.loads(line)
    assert (fields["request_id"], fields["status"], fields["size_bytes"]) == ("id-7", 201, 42)
    assert fields["path"] == "/v1/produce"
    assert fields["took_ms"] >= 0
    assert "secret" not in line
    assert "payload" not in line


def test_responses_are_counted_by_status():
    access_log = AccessLog()
    for status in (200, 200, 404):
        access_log.on_response(request_with(), status, 0)
    assert access_log.by_status == {200: 2, 404: 1}
