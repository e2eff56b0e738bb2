"""Which server is meant, and the file that remembers servers by name.

    --url  >  --context  >  DRIFTQ_URL  >  DRIFTQ_CONTEXT  >  the context in use  >  http://127.0.0.1:8080

The file is `contexts.toml` in `$XDG_CONFIG_HOME/driftq` or `~/.config/driftq`, readable by its owner only, because it
may hold tokens. It is written whole or not at all. This module does not connect to anything.
"""

from __future__ import annotations

import os
import re
import tempfile
import tomllib
from pathlib import Path
from typing import NamedTuple

DEFAULT_URL = "http://127.0.0.1:8080"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)


class BadContexts(Exception):
    """A name, an address or the file itself is not as it must be; the message says what to do."""


class ServerContext(NamedTuple):
    """A server by name."""

    url: str
    token: str = ""
    about: str = ""


class ContextFile(NamedTuple):
    """What the file says. `current` is the context in use; it may be empty."""

    current: str
    known: dict[str, ServerContext]


class ServerAddress(NamedTuple):
    """A server, and who said that it is this one."""

    url: str
    token: str
    origin: str


def path() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME", "")
    folder = Path(home) if Path(home).is_absolute() else Path.home() / ".config"
    return folder / "driftq" / "contexts.toml"


def load() -> ContextFile:
    try:
        text = path().read_text(encoding="utf-8")
    except FileNotFoundError:
        return ContextFile("", {})
    try:
        found = tomllib.loads(text)
        known = {name: ServerContext(**fields) for name, fields in found.get("contexts", {}).items()}
    except (tomllib.TOMLDecodeError, TypeError, AttributeError) as error:
        raise BadContexts(
            f"{path()} cannot be read: {error}. Mend it, or remove it and add the contexts again."
        ) from None
    return ContextFile(str(found.get("current", "")), known)


def save(contexts: ContextFile) -> None:
    target = path()
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lines = [f"current = {_quoted(contexts.current)}"]
    for name, context in sorted(contexts.known.items()):
        lines += ["", f"[contexts.{name}]"]
        lines += [f"{field} = {_quoted(value)}" for field, value in context._asdict().items() if value]
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=".contexts-")  # made with mode 0600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def check(name: str, context: ServerContext) -> None:
    """Refuse what could not be read back."""
    from driftq.client.errors import InvalidCall
    from driftq.client.transport.http import parse_address

    if not _NAME.fullmatch(name):
        raise BadContexts(f"{name!r} is no name for a context: up to 64 letters, digits, - and _")
    try:
        parse_address(context.url, context.token)
    except (InvalidCall, ValueError) as error:
        raise BadContexts(str(error)) from None
    if not all(value.isprintable() for value in context):
        raise BadContexts("an address, a token or a description has characters that cannot be printed")


def resolve(url: str | None, name: str | None) -> ServerAddress:
    """The server that is meant. `DRIFTQ_TOKEN` is used with any server; a context's token only with its own."""
    environ = os.environ
    token = environ.get("DRIFTQ_TOKEN", "")
    if url and name:
        raise BadContexts("--url and --context both name a server; give one of them")
    if url:
        return ServerAddress(url, token, "--url")
    if name:
        return _named(load(), name, token, "--context")
    if environ.get("DRIFTQ_URL"):
        return ServerAddress(environ["DRIFTQ_URL"], token, "DRIFTQ_URL")
    if environ.get("DRIFTQ_CONTEXT"):
        return _named(load(), environ["DRIFTQ_CONTEXT"], token, "DRIFTQ_CONTEXT")
    contexts = load()
    if contexts.current:
        return _named(contexts, contexts.current, token, "the context in use")
    return ServerAddress(DEFAULT_URL, token, "the default")


def _named(contexts: ContextFile, name: str, token: str, origin: str) -> ServerAddress:
    context = contexts.known.get(name)
    if context is None:
        known = f"known are {', '.join(sorted(contexts.known))}" if contexts.known else "none is known"
        raise BadContexts(f"there is no context {name!r} ({origin}); {known}. Add it: driftq context add {name} URL")
    return ServerAddress(context.url, token or context.token, f"context {name}, by {origin}")


def _quoted(text: str) -> str:
    """A TOML string. Everything in it can be printed, so only two characters need care."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
