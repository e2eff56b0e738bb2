"""Every command is tried against a real server, as text and as JSON."""

from __future__ import annotations

import ast
from pathlib import Path

import click

from driftq.cli.main import main

FILES = ("test_cli.py", "test_interventions.py")
LOCAL = {
    "auth", "serve", "config", "inspect", "repair", "completion", "pipeline", "demo", "worker",
    "schedules", "doctor", "backup",
}  # fmt: skip  # need no server, or are one, or have tests of their own in both forms


def leaves(group: click.Group, context: click.Context, front: str = "") -> set[str]:
    names: set[str] = set()
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            names |= leaves(command, context, f"{name} ")
        else:
            names.add(f"{front}{name}")
    return names


def tried() -> dict[str, set[str]]:
    """The commands that these files call, by the function that calls them."""
    commands: dict[str, set[str]] = {"run": set(), "as_json": set(), "as_lines": set()}
    texts = [Path(__file__).with_name(name).read_text("utf-8") for name in FILES]
    for node in ast.walk(ast.parse("\n".join(texts).replace("from __future__ import annotations", ""))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in commands:
            words = [str(argument.value) for argument in node.args[:2] if isinstance(argument, ast.Constant)]
            commands[node.func.id] |= {" ".join(words), words[0] if words else ""}
    return commands


def test_every_command_is_tried_in_both_forms():
    wanted = {name for name in leaves(main, click.Context(main)) if name.split()[0] not in LOCAL}
    tried_commands = tried()
    assert not wanted - tried_commands["run"]
    assert not wanted - (tried_commands["as_json"] | tried_commands["as_lines"])
