"""`driftq context`: servers by name, kept in a file of the user's."""

from __future__ import annotations

import sys

import click

from driftq.cli import context_file, output
from driftq.cli.command import as_json_option, context_names, ended_well
from driftq.cli.exit_codes import Exit, fail

name_argument = click.argument("name", shell_complete=context_names)


@click.group()
def command() -> None:
    """Remember servers by name.

    --url wins over --context, that over DRIFTQ_URL, DRIFTQ_CONTEXT, the context in use, and http://127.0.0.1:8080.
    """


@command.command()
@click.argument("name")
@click.argument("url")
@click.option("--token", default="", help="Sent as a bearer token; - reads it from standard input.")
@click.option("--about", default="", help="A word about it.")
@click.option("--use", "use_it", is_flag=True, help="And use it from now on.")
@as_json_option
def add(name: str, url: str, token: str, about: str, use_it: bool, as_json: bool) -> None:
    """Remember a server, or change what is remembered. The first one is used from then on.

    Example: driftq context add prod https://queue.example.org --token - < token.txt
    """
    with ended_well(as_json):
        context = context_file.ServerContext(url, sys.stdin.read().strip() if token == "-" else token, about)
        context_file.check(name, context)
        known = context_file.load()
        known.known[name] = context
        current = name if use_it or not known.current else known.current
        context_file.save(known._replace(current=current))
        _said(name, "in use" if current == name else "added", as_json)


@command.command("list")
@as_json_option
def list_(as_json: bool) -> None:
    """Every server that is remembered; the one in use has a star.

    Example: driftq context list
    """
    with ended_well(as_json):
        known = context_file.load()
        if as_json:
            output.document(
                [
                    {"name": name, "url": each.url, "about": each.about, "current": name == known.current,
                     "has_token": bool(each.token)}
                    for name, each in sorted(known.known.items())
                ]
            )  # fmt: skip
            return
        rows = (
            ("*" if name == known.current else "", name, each.url, "yes" if each.token else "", each.about)
            for name, each in sorted(known.known.items())
        )
        output.table(("", "NAME", "URL", "TOKEN", "ABOUT"), rows, "None yet. driftq context add NAME URL")


@command.command()
@name_argument
@as_json_option
def use(name: str, as_json: bool) -> None:
    """Talk to this server from now on.

    Example: driftq context use prod
    """
    with ended_well(as_json):
        known = context_file.load()
        _must_be(name, known, as_json)
        context_file.save(known._replace(current=name))
        _said(name, "in use", as_json)


@command.command()
@name_argument
@as_json_option
def remove(name: str, as_json: bool) -> None:
    """Forget a server.

    Example: driftq context remove prod
    """
    with ended_well(as_json):
        known = context_file.load()
        _must_be(name, known, as_json)
        del known.known[name]
        context_file.save(known._replace(current="" if known.current == name else known.current))
        _said(name, "removed", as_json)


def _must_be(name: str, known: context_file.ContextFile, as_json: bool) -> None:
    if name not in known.known:
        hint = f"Known are {', '.join(sorted(known.known))}." if known.known else "driftq context add NAME URL"
        fail(Exit.NOTHING_THERE, f"there is no context {name!r}", hint, as_json=as_json)


def _said(name: str, done: str, as_json: bool) -> None:
    if as_json:
        output.document({"name": name, "status": done})
    else:
        click.echo(f"{name}: {done}")
