"""The command line stays quick: help imports no subcommand and nothing heavy."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys

import click

import driftq
from driftq.cli import main as cli
from tests.tidy.sources import SRC

HEAVY = {"asyncio", "rich", "uvloop", "httptools", "prometheus_client", "driftq.server", "driftq.engine"}


def python(*arguments: str) -> str:
    """What a fresh interpreter prints."""
    environ = {**os.environ, "PYTHONPATH": str(SRC.parent)}
    return subprocess.run([sys.executable, *arguments], env=environ, capture_output=True, text=True, check=True).stdout


def test_help_imports_nothing_heavy():
    code = "import sys, driftq.cli.main as m\ntry: m.main(['--help'])\nexcept SystemExit: pass\nprint(*sys.modules)"
    printed = python("-c", code)
    assert "Usage:" in printed
    assert not HEAVY & set(printed.splitlines()[-1].split())


def test_version_is_the_version_of_the_package():
    assert python("-m", "driftq.cli.main", "--version").split()[-1] == driftq.__version__


def test_every_command_that_is_written_is_offered():
    context = click.Context(cli.main)
    listed = cli.main.list_commands(context)
    written = {path.stem for path in (SRC / "cli").glob("*.py")}
    assert set(listed) == written & set(cli.SUMMARIES)
    for name in listed:
        assert isinstance(importlib.import_module(f"driftq.cli.{name}").command, click.Command)
