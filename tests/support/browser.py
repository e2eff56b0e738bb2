"""A real browser for tests: Chromium without a window, and a web server for the pages that it opens.

A page reports its results itself: it posts to `/report` of its own origin, and the test receives that. No browser
driver is needed.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

REPORT_S = 90.0
NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--disable-extensions",
    "--host-resolver-rules=MAP *.example 127.0.0.1",
)  # fmt: skip


def binary(profile: str) -> str:
    """The path of the browser. Without one the test is skipped; in a release it fails."""
    for name in NAMES:
        path = shutil.which(name)
        if path is not None:
            return path
    reason = "no Chromium on this machine: apt-get install chromium, as root, or `make browser`"
    if profile == "release":
        pytest.fail(reason)
    pytest.skip(reason)


class Site:
    """Serves pages under any name that ends in `.example`, and takes their reports."""

    def __init__(self, pages: dict[str, str]) -> None:
        self.pages = pages
        self.reports: queue.Queue[Any] = queue.Queue()
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                page = site.pages.get(self.path.partition("?")[0])
                self.send_response(200 if page is not None else 404)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.end_headers()
                self.wfile.write((page or "").encode())

            def do_POST(self) -> None:
                site.reports.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def opened(browser: str, url: str, folder: Path) -> Iterator[None]:
    """A page that is open during the block. The browser has its own profile and ends with all its processes."""
    command = [browser, *FLAGS, f"--user-data-dir={folder / 'profile'}", url]
    with open(folder / "browser.log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def report_of(browser: str, site: Site, url: str, folder: Path) -> Any:
    """What the page at `url` reports."""
    with opened(browser, url, folder):
        try:
            return site.reports.get(timeout=REPORT_S)
        except queue.Empty:
            log = (folder / "browser.log").read_text(errors="replace")
            raise AssertionError(f"the page reported nothing; output of the browser:\n{log[-3_000:]}") from None
