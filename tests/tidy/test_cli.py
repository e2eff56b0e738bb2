"""The command line stays quick and explains itself: help imports no subcommand, and every command has an example."""

from __future__ import annotations

import importlib
import os
import re
import resource
import subprocess
import sys

import click
import pytest

import driftq
from driftq.cli import main as cli
from driftq.cli.exit_codes import Exit
from tests.tidy.cli_commands import leaves
from tests.tidy.sources import ROOT, SRC

HEAVY = {"asyncio", "rich", "uvloop", "httptools", "prometheus_client", "msgspec", "driftq.server", "driftq.engine"}
LEAVES = leaves(cli.main)
PAGE = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")


def python(*arguments: str) -> str:
    """What a fresh interpreter prints."""
    environ = {**os.environ, "PYTHONPATH": str(SRC.parent)}
    return subprocess.run([sys.executable, *arguments], env=environ, capture_output=True, text=True, check=True).stdout


def cpu_ms(*arguments: str) -> float:
    """The CPU that a fresh interpreter takes, the best of three; what others do on the machine does not count."""
    taken = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        python(*arguments)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return 1_000 * min(taken)


def test_help_imports_nothing_heavy():
    code = "import sys, driftq.cli.main as m\ntry: m.main(['--help'])\nexcept SystemExit: pass\nprint(*sys.modules)"
    printed = python("-c", code)
    assert "Usage:" in printed
    assert not HEAVY & set(printed.splitlines()[-1].split())


def test_help_and_imports_are_quick():
    assert cpu_ms("-m", "driftq.cli.main", "--help") < 300
    assert cpu_ms("-c", "import driftq") < 150
    assert cpu_ms("-c", "import driftq; driftq.connect()") < 250


def test_version_is_the_version_of_the_package():
    assert python("-m", "driftq.cli.main", "--version").split()[-1] == driftq.__version__


def test_every_command_that_is_written_is_offered():
    context = click.Context(cli.main)
    listed = cli.main.list_commands(context)
    written = {path.stem for path in (SRC / "cli").glob("*.py")}
    assert set(listed) == {name for name in cli.SUMMARIES if cli.SHARED.get(name, name) in written}
    assert set(cli.SHARED) <= set(cli.SUMMARIES)
    for name in listed:
        assert isinstance(cli.main.get_command(context, name), click.Command)
    for name in written:
        if isinstance(getattr(importlib.import_module(f"driftq.cli.{name}"), "command", None), click.Command):
            assert name in listed, f"driftq.cli.{name} is a command that is not offered"


@pytest.mark.parametrize("name", LEAVES)
def test_every_command_says_what_it_does_and_how(name):
    command = LEAVES[name].command
    text = command.help or ""
    assert re.match(r"[A-Z].*[.:]", text), f"{name} does not say what it does"
    shown = re.search(r"Examples?:(.*)", text, re.DOTALL)
    assert shown, f"{name} has no example"
    assert f"driftq {name}" in shown[1], f"the example of {name} is of something else"
    silent = [param.opts for param in command.params if isinstance(param, click.Option) and not param.help]
    assert not silent, f"{name} has options without a word: {silent}"


@pytest.mark.parametrize("name", [name for name in LEAVES if " " in name])
def test_no_summary_is_cut_in_the_list_of_commands(name):
    """80 columns; the name takes up to 18 of them."""
    assert not LEAVES[name].command.get_short_help_str(62).endswith("..."), "give it a short_help"


@pytest.mark.parametrize("name", LEAVES)
def test_every_command_is_on_the_page(name):
    assert f"| `driftq {name}" in PAGE


def test_every_exit_code_is_on_the_page():
    listed = {int(number) for number in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)}
    assert listed == {int(code) for code in Exit}


def test_every_example_names_options_that_exist():
    for name, leaf in LEAVES.items():
        known = {opt for param in leaf.command.params for opt in (*param.opts, *param.secondary_opts)} | {"--help"}
        for line in (leaf.command.help or "").splitlines():
            mine = re.search(rf"driftq {re.escape(name)}( .*)?$", line.split("|")[-1].split(";")[0].strip())
            used = set(re.findall(r"(?<=\s)--[a-z][a-z-]*", mine[1] or "")) if mine else set()
            assert used <= known, f"{name}: {used - known}"


@pytest.mark.parametrize("name", LEAVES)
def test_commands_that_talk_to_a_server_name_it_alike_and_their_lists_can_be_watched(name):
    options = {option for parameter in LEAVES[name].command.params for option in parameter.opts}
    if "--url" in options:
        assert {"--context", "--ca", "--token-file", "--json"} <= options
        assert not name.endswith(" list") or {"--watch", "--every"} <= options
