"""What all tests share: markers by folder, sizes by profile, and the seed.

A test is marked with the name of its folder under tests/, so `-m crash` needs no decoration in the files. The profile
says how much is tried: `quick` in a loop of seconds, `dev` while writing, `ci` at every change, `release` before a
release. This file knows nothing about any single test.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

pytest.register_assert_rewrite("tests.support")

from tests.support.forkserver import ForkServer  # noqa: E402
from tests.support.java import JAVA_OPTIONS  # noqa: E402
from tests.support.server import Server  # noqa: E402
from tests.support.tiers import OUTCOMES, TierRun  # noqa: E402

TESTS = Path(__file__).parent

os.environ.setdefault("JDK_JAVA_OPTIONS", JAVA_OPTIONS)

KINDS = {
    "tidy": "layers, sizes, bans, documents",
    "unit": "arithmetic and single modules",
    "scenarios": "semantics as transcripts (--rewrite regenerates them)",
    "property": "laws, against a naive model",
    "simulation": "seeded runs over a disk that forgets",
    "crash": "a real process, killed under load",
    "e2e": "a real server over real sockets",
    "conformance": "the published streams suite and the golden queue API",
    "browser": "pages in a real browser",
    "spark": "exactly-once through Spark",
    "bench": "that the benchmarks run",
}
SERIAL = {"browser"}  # They fill the machine by themselves.
# Who starts last is waited for. What starts Spark by itself comes when its classes are laid out, and not together.
LONG_FIRST = (
    "simulation/test_nth_failure.py",
    "test_planted_bugs.py",
    "conformance/test_streams.py",
    "test_cluster.py",
    "test_kill.py",
    "test_openapi.py",
    "test_cli_pipeline.py",
)
TIMEOUTS_S = {
    "simulation": 600,
    "crash": 600,
    "e2e": 180,
    "conformance": 300,
    "browser": 300,
    "spark": 600,
    "bench": 300,
}

_slow = (HealthCheck.too_slow, HealthCheck.data_too_large)
settings.register_profile(
    "quick",
    max_examples=10,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=_slow,
    derandomize=True,
    database=None,
)
settings.register_profile("dev", max_examples=50, stateful_step_count=30, deadline=None, suppress_health_check=_slow)
settings.register_profile(
    "ci",
    max_examples=200,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=_slow,
    derandomize=True,  # Two runs of the same commit give the same result; only `dev` tries new examples each time.
    database=None,
)
settings.register_profile(
    "release", max_examples=10_000, stateful_step_count=50, deadline=None, suppress_health_check=_slow
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("driftq")
    group.addoption(
        "--profile",
        choices=("quick", "dev", "ci", "release"),
        default=os.environ.get("DRIFTQ_PROFILE", "dev"),
        help="how much to try (default: dev, or DRIFTQ_PROFILE)",
    )
    group.addoption("--seed", type=int, default=1, help="the seed of every test that takes one (default: 1)")
    group.addoption("--rewrite", action="store_true", help="write scenario transcripts again; review the diff")


def pytest_configure(config: pytest.Config) -> None:
    for kind, meaning in KINDS.items():
        config.addinivalue_line("markers", f"{kind}: {meaning}")
    config.addinivalue_line("markers", "serial: compares times, and runs alone after everything else")
    config.addinivalue_line("markers", "patient: works on every core, after everything else")
    config.addinivalue_line("markers", "own_spark: starts Spark processes of its own, and needs no shared session")
    settings.load_profile(config.getoption("--profile"))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A run in the background ignores Ctrl-C, and so would every process it starts: some are ended by it on purpose.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    fork_server = ForkServer()
    Server.launch = staticmethod(fork_server.start)
    config.add_cleanup(fork_server.close)


def kind_of(path: Path) -> str | None:
    """The name of the folder under tests/ that holds this file."""
    parts = path.relative_to(TESTS).parts if path.is_relative_to(TESTS) else ()
    return parts[0] if len(parts) > 1 and parts[0] in KINDS else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        kind = kind_of(item.path)
        if kind is None:
            raise pytest.UsageError(f"{item.nodeid}: tests live in one of tests/{{{','.join(KINDS)}}}/")
        item.add_marker(kind)
        if kind in SERIAL:
            item.add_marker("serial")
        if kind == "tidy":
            # One process of several parses the sources once (`--dist loadgroup`).
            item.add_marker(pytest.mark.xdist_group("tidy"))
        if kind in TIMEOUTS_S and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUTS_S[kind]))
    items.sort(key=_place)  # stable


def _place(item: pytest.Item) -> int:
    return next((place for place, name in enumerate(LONG_FIRST) if name in item.nodeid), len(LONG_FIRST))


@pytest.fixture(scope="session")
def profile(request: pytest.FixtureRequest) -> str:
    """How much to try: `dev`, `ci` or `release`."""
    return str(request.config.getoption("--profile"))


@pytest.fixture(scope="session")
def seed(request: pytest.FixtureRequest) -> int:
    """Where chance begins; the same number gives the same run."""
    return int(request.config.getoption("--seed"))


@pytest.fixture(scope="session")
def rewrite(request: pytest.FixtureRequest) -> bool:
    """True when transcripts are to be written instead of compared."""
    return bool(request.config.getoption("--rewrite"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line per kind of test: how many, how long they took, how they ended."""
    run = TierRun()
    for outcome in OUTCOMES:
        for report in terminalreporter.getreports(outcome):
            parts = report.nodeid.split("/")
            kind = parts[1] if len(parts) > 2 and parts[1] in KINDS else "other"
            run.add(kind, outcome, getattr(report, "duration", 0.0))
    if not run.tiers:
        return
    terminalreporter.section("tiers")
    for line in run.table([*KINDS, "other"]):
        terminalreporter.write_line(line)
    if not hasattr(terminalreporter.config, "workerinput"):  # the controller of several processes counts for them all
        run.append_to_file()
