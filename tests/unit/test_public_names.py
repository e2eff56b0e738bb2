"""The public names: all of them exist, and importing them imports nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import driftq

HEAVY = (
    "driftq.server",
    "driftq.core",
    "driftq.engine",
    "driftq.storage",
    "pyspark",
    "pyarrow",
    "click",
    "rich",
    "httpx",
)


def modules_after(program: str) -> set[str]:
    command = f"import sys; {program}; print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    return set(ended.stdout.split())


def test_every_public_name_exists():
    assert len(driftq.__all__) <= 30
    for name in driftq.__all__:
        assert getattr(driftq, name) is not None
    assert set(driftq.__all__) <= set(dir(driftq))
    assert not hasattr(driftq, "nothing_of_that_name")


def test_an_import_brings_nothing_with_it():
    loaded = modules_after("import driftq")
    assert not {"asyncio", "msgspec", "ssl", "driftq.client"} & loaded


def test_a_program_that_only_declares_workers_and_tasks_imports_no_event_loop():
    loaded = modules_after("import driftq; driftq.worker; driftq.task")
    assert not {"asyncio", "ssl", "concurrent.futures"} & loaded


def test_a_client_brings_no_server_with_it():
    loaded = modules_after("import driftq; [getattr(driftq, name) for name in driftq.__all__]")
    assert not [name for name in loaded if name.startswith(HEAVY)]
    assert "uvloop" not in loaded


def test_the_pytest_plugin_is_light_until_it_is_used():
    loaded = modules_after("import driftq.testing.plugin")
    assert not [name for name in loaded if name.startswith(("driftq.server", "driftq.client", "asyncio"))]
