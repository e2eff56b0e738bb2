"""A limited rate of warnings, and the access log."""

from __future__ import annotations

import json
import logging

import pytest

from driftq.server.http import Request
from driftq.server.http.request import RequestHead
from driftq.server.logs import AccessLog, RateLimited
from driftq.settings.log_lines import JsonLines


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
