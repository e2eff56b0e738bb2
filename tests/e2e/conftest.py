"""A broker in memory for each module, and a client of it for each test; a module that needs another defines its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import driftq
from driftq.client.api import DriftQ
from tests.support.server import Server, running


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running(None) as started:
        yield started


@pytest.fixture
def broker(server: Server) -> Iterator[DriftQ]:
    with driftq.connect(server.url) as client:
        yield client
