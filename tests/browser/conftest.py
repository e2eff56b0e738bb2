"""A browser, and a broker with something of everything, for the tests of the console."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.support.browser import binary
from tests.support.console import Tab, browser, populate
from tests.support.server import Server, running


@pytest.fixture(scope="module")
def chromium(request: pytest.FixtureRequest) -> Iterator[Browser]:
    with browser(binary(request.config.getoption("--profile"))) as launched:
        yield launched


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(str(tmp_path_factory.mktemp("console")), "audit.mode=on") as broker:
        populate(broker)
        yield broker


@pytest.fixture(scope="module")
def shared(chromium: Browser, server: Server) -> Iterator[Tab]:
    """One page for all tests that leave nothing behind: each opens an address of its own."""
    tab = Tab(chromium, server)
    yield tab
    tab.close()


@pytest.fixture
def tab(shared: Tab) -> Tab:
    shared.errors.clear()
    return shared


@pytest.fixture
def new_tab(chromium: Browser) -> Iterator[Callable[..., Tab]]:
    tabs: list[Tab] = []

    def make(server: Server, **options: Any) -> Tab:
        tabs.append(Tab(chromium, server, **options))
        return tabs[-1]

    yield make
    for tab in tabs:
        tab.close()
