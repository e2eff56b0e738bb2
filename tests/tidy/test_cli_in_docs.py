"""Every command line that a document shows is one that the program takes: its words, its options, its arguments."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click
import pytest

from driftq.cli import main as cli
from tests.tidy.sources import ROOT

PAGES = sorted([*ROOT.glob("docs/**/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "AGENTS.md"])
_INLINE = re.compile(r"`(driftq [^`]+)`")
_BLOCK = re.compile(r"```sh\n(.*?)```", re.DOTALL)
_LINE = re.compile(r"^(?:\$ )?(?:[a-z].* \| )?(driftq .*)$", re.MULTILINE)
_ENDS = re.compile(r"\s#|\\?[|;<>]|&&|&$")  # a comment, or what belongs to the shell
_PROSE = re.compile(r"[\[\]]|…|\$\([^)]*\)")  # brackets around what is optional, what the shell puts in


def commands_in(text: str) -> Iterator[str]:
    outside = _BLOCK.sub("", text)
    shown = [line for block in _BLOCK.findall(text) for line in _LINE.findall(block.replace("\\\n", ""))]
    for command in (*_INLINE.findall(outside), *shown):
        if not re.search(r"[a-z]\|[a-z]", command):  # a list of subcommands
            yield " ".join(_PROSE.sub("", _ENDS.split(command)[0]).split())


def problem(command: str) -> str:
    """What the program would say of this line; empty if it could run."""
    words = shlex.split(command)[1:]
    named: click.Command | None = cli.main
    while isinstance(named, click.Group) and words:
        context = click.Context(named)
        if words[0].startswith("-"):
            option = next((param for param in named.params if words[0] in param.opts), None)
            del words[: 1 if option is None or getattr(option, "is_flag", False) else 2]
            continue
        name = words.pop(0)
        if not name.islower():
            return ""  # a placeholder
        named = named.get_command(context, name)
        if named is None:
            return f"there is no {name}"
    if named is None or isinstance(named, click.Group):
        return ""
    options = {name: param for param in named.params for name in (*param.opts, *param.secondary_opts)}
    arguments = [param for param in named.params if isinstance(param, click.Argument)]
    given = 0
    while words:
        word = words.pop(0)
        if word == "-" or not word.startswith("-"):
            given += 1
            continue
        name, has_value, _ = word.partition("=")
        if name in ("--help", "-h"):
            continue
        if name not in options:
            return f"there is no option {name}"
        if not has_value and not getattr(options[name], "is_flag", False):
            del words[:1]
    takes_any = any(argument.nargs != 1 for argument in arguments)
    return "" if takes_any or given <= len(arguments) else f"it takes {len(arguments)} arguments"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_command_that_a_page_shows_can_be_run(path):
    shown = {command: problem(command) for command in commands_in(path.read_text(encoding="utf-8"))}
    assert not {command: why for command, why in shown.items() if why}


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("driftq explain orders billing 0:3", "it takes 2 arguments"),
        ("driftq topic list", "there is no topic"),
        ("driftq topics create orders --partition 4", "there is no option --partition"),
        ("driftq --url http://broker.example:8080 groups list orders --every=2s --watch", ""),
    ],
)
def test_a_planted_wrong_command_is_found(command, why):
    assert list(commands_in(f"Run `{command}`.")) == [command]
    assert list(commands_in(f"```sh\n{command}  # now\n```")) == [command]
    assert problem(command) == why
