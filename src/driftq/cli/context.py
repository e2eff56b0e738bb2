"""`driftq context`: named servers, kept in a file in the user's configuration folder."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from driftq.cli import context_file, output
from driftq.cli.command import as_json_option, context_names, exit_cleanly
from driftq.cli.exit_codes import Exit, fail

name_argument = click.argument("name", shell_complete=context_names)


@click.group()
def command() -> None:
    """Manage named servers.

    A command uses the first of --url, --context, DRIFTQ_URL, DRIFTQ_CONTEXT, the context in use, and
    http://127.0.0.1:8080.
    """


@command.command()
@click.argument("name")
@click.argument("url")
@click.option("--token", default="", help="Bearer token; - reads it from standard input.")
@click.option("--token-file", default="", metavar="FILE", help="Instead: a file with the token, read when it changes.")
@click.option("--about", default="", help="Description.")
@click.option("--ca", default="", metavar="FILE", help="Authorities to trust for https, in PEM.")
@click.option("--certificate", default="", metavar="FILE", help="Certificate of this client in PEM, for mutual TLS.")
@click.option("--key", default="", metavar="FILE", help="Key of the certificate in PEM.")
@click.option("--use", "use_it", is_flag=True, help="Also make it the context in use.")
@as_json_option
def add(
    name: str,
    url: str,
    token: str,
    token_file: str,
    about: str,
    ca: str,
    certificate: str,
    key: str,
    use_it: bool,
    as_json: bool,
) -> None:
    """Add a server, or change it. The first one becomes the context in use.

    Example: driftq context add prod https://queue.example.org --token - < token.txt
    """
    with exit_cleanly(as_json):
        token = sys.stdin.read().strip() if token == "-" else token
        files = (str(Path(path).absolute()) if path else "" for path in (ca, certificate, key, token_file))
        context = context_file.ServerContext(url, token, about, *files)
        context_file.check(name, context)
        file = context_file.load()
        file.contexts[name] = context
        current = name if use_it or not file.current else file.current
        context_file.save(file._replace(current=current))
        _report(name, "in use" if current == name else "added", as_json)


@command.command("list")
@as_json_option
def list_(as_json: bool) -> None:
    """List the named servers; the one in use has a star.

    Example: driftq context list
    """
    with exit_cleanly(as_json):
        file = context_file.load()
        if as_json:
            output.document(
                [
                    {"name": name, "url": server.url, "about": server.about, "current": name == file.current,
                     "has_token": any(server.credential)}
                    for name, server in sorted(file.contexts.items())
                ]
            )  # fmt: skip
            return
        rows = (
            (
                "*" if name == file.current else "",
                name,
                server.url,
                "yes" if any(server.credential) else "",
                server.about,
            )
            for name, server in sorted(file.contexts.items())
        )
        output.table(("", "NAME", "URL", "TOKEN", "ABOUT"), rows, "No contexts. Add one: driftq context add NAME URL")


@command.command()
@name_argument
@as_json_option
def use(name: str, as_json: bool) -> None:
    """Use this server for all commands.

    Example: driftq context use prod
    """
    with exit_cleanly(as_json):
        file = context_file.load()
        _require(name, file, as_json)
        context_file.save(file._replace(current=name))
        _report(name, "in use", as_json)


@command.command()
@name_argument
@as_json_option
def remove(name: str, as_json: bool) -> None:
    """Remove a named server.

    Example: driftq context remove prod
    """
    with exit_cleanly(as_json):
        file = context_file.load()
        _require(name, file, as_json)
        del file.contexts[name]
        context_file.save(file._replace(current="" if file.current == name else file.current))
        _report(name, "removed", as_json)


def _require(name: str, file: context_file.ContextFile, as_json: bool) -> None:
    if name not in file.contexts:
        names = ", ".join(sorted(file.contexts))
        hint = f"The contexts are {names}." if names else "Add one: driftq context add NAME URL"
        fail(Exit.NOTHING_THERE, f"there is no context {name!r}", hint, as_json=as_json)


def _report(name: str, status: str, as_json: bool) -> None:
    if as_json:
        output.document({"name": name, "status": status})
    else:
        click.echo(f"{name}: {status}")
