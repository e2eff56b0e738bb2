"""The command line as a table for the documents: every command that can be called, with its words and options."""

from __future__ import annotations

import re
from types import ModuleType
from typing import NamedTuple

import click

ALWAYS = {"--url", "--context", "--json", "--help"}  # the same for all, said once on the page
WITH_URL = {"--ca"}  # the same for all that talk to a server


class Leaf(NamedTuple):
    """A command that is no group."""

    command: click.Command
    context: click.Context


def leaves(group: click.Group, context: click.Context | None = None, front: str = "") -> dict[str, Leaf]:
    context = context or click.Context(group, info_name="driftq")
    leaves_by_name: dict[str, Leaf] = {}
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inside = click.Context(command, parent=context, info_name=name)
        if isinstance(command, click.Group):
            leaves_by_name |= leaves(command, inside, f"{front}{name} ")
        else:
            leaves_by_name[f"{front}{name}"] = Leaf(command, inside)
    return leaves_by_name


def rows(module: ModuleType) -> list[tuple[str, str, str]]:
    """Command and arguments, what it does, what can be said."""
    return [_row(name, leaf) for name, leaf in leaves(module.main).items()]


def _row(name: str, leaf: Leaf) -> tuple[str, str, str]:
    arguments = [param.make_metavar(leaf.context) for param in leaf.command.params if isinstance(param, click.Argument)]
    text = " ".join((leaf.command.help or "").replace("\b", "").split())
    does = re.split(r"(?<=\.)\s", text, maxsplit=1)[0]
    options = [_option(param, leaf) for param in leaf.command.params if isinstance(param, click.Option)]
    return f"`driftq {' '.join([name, *arguments])}`", does, " ".join(option for option in options if option)


def _option(option: click.Option, leaf: Leaf) -> str:
    talks_to_server = any("--url" in param.opts for param in leaf.command.params)
    if option.opts[0] in ALWAYS or (talks_to_server and option.opts[0] in WITH_URL):
        return ""
    metavar = "" if option.is_flag else f" {option.make_metavar(leaf.context).replace('INTEGER RANGE', 'N')}"
    return f"`{'`, `'.join(option.opts)}{metavar}` {option.help}"
