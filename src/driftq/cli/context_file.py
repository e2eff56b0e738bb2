"""Resolves the server of a command, and reads and writes the file of named servers.

    --url  >  --context  >  DRIFTQ_URL  >  DRIFTQ_CONTEXT  >  the context in use  >  http://127.0.0.1:8080

The file is `contexts.toml` in `$XDG_CONFIG_HOME/driftq` or `~/.config/driftq`, readable by its owner only, because it
may hold tokens. It is replaced atomically. This module does not connect to anything.
"""

from __future__ import annotations

import os
import re
import tempfile
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from driftq.client.transport.credential import ClientToken, token_from
from driftq.client.transport.tls import ClientTls, tls_from

DEFAULT_URL = "http://127.0.0.1:8080"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)


class BadContexts(Exception):
    """A name, an address or the file itself is not valid; the message says what to do."""


class ServerContext(NamedTuple):
    """A named server."""

    url: str
    token: str = ""
    about: str = ""
    ca: str = ""  # whom to trust, and the client's own certificate: paths of PEM files
    certificate: str = ""
    key: str = ""
    token_file: str = ""  # instead of a token: a file that is read again when it changes

    @property
    def credential(self) -> ClientToken:
        return ClientToken(self.token, self.token_file)

    @property
    def tls_files(self) -> ClientTls:
        return ClientTls(self.ca, self.certificate, self.key)


class ContextFile(NamedTuple):
    """The content of the file. `current` is the context in use; it may be empty."""

    current: str
    contexts: dict[str, ServerContext]


class ServerAddress(NamedTuple):
    """A server, and where its address comes from."""

    url: str
    token: str
    origin: str
    tls_files: ClientTls = ClientTls()
    token_file: str = ""

    @property
    def credential(self) -> ClientToken:
        return ClientToken(self.token, self.token_file)

    def options(self) -> dict[str, Any]:
        """What `connect` takes besides the URL."""
        return {"token": self.token, "token_file": self.token_file, **self.tls_files._asdict()}


def path() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME", "")
    folder = Path(home) if Path(home).is_absolute() else Path.home() / ".config"
    return folder / "driftq" / "contexts.toml"


def load() -> ContextFile:
    try:
        text = path().read_text(encoding="utf-8")
        mode = path().stat().st_mode
    except FileNotFoundError:
        return ContextFile("", {})
    except OSError as error:
        raise BadContexts(f"{path()} cannot be read: {error.strerror}") from None
    try:
        tree = tomllib.loads(text)
        contexts = {name: ServerContext(**fields) for name, fields in tree.get("contexts", {}).items()}
    except (tomllib.TOMLDecodeError, TypeError, AttributeError) as error:
        raise BadContexts(
            f"{path()} cannot be read: {error}. Fix it, or delete it and add the contexts again."
        ) from None
    if os.name == "posix" and mode & 0o077 and any(context.token for context in contexts.values()):
        raise BadContexts(f"{path()} holds tokens and is open to other users. Run: chmod 600 {path()}")
    return ContextFile(str(tree.get("current", "")), contexts)


def save(file: ContextFile) -> None:
    target = path()
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lines = [f"current = {_quoted(file.current)}"]
    for name, context in sorted(file.contexts.items()):
        lines += ["", f"[contexts.{name}]"]
        lines += [f"{field} = {_quoted(value)}" for field, value in context._asdict().items() if value]
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=".contexts-")  # created with mode 0600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as output:
            output.write("\n".join(lines) + "\n")
            output.flush()
            os.fsync(output.fileno())
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def check(name: str, context: ServerContext) -> None:
    """Refuse values that could not be read back."""
    from driftq.client.errors import InvalidCall
    from driftq.client.transport.http import parse_address
    from driftq.client.transport.tls import TlsContext

    if not _NAME.fullmatch(name):
        raise BadContexts(f"{name!r} is not a name for a context: use up to 64 letters, digits, - and _")
    try:
        if all(context.credential):
            raise BadContexts("a context has a token or a token file, not both")
        parse_address(context.url, context.credential, from_environment=False)
        if any(context.tls_files):
            TlsContext(context.tls_files)
    except (InvalidCall, ValueError) as error:
        raise BadContexts(str(error)) from None
    if not all(value.isprintable() for value in context):
        raise BadContexts("an address, a token or a description has characters that cannot be printed")


def resolve(url: str | None, name: str | None, ca: str | None = None, token_file: str | None = None) -> ServerAddress:
    """The server to use. A token of `--token-file` or the environment is sent to any server; a context's only to its
    own. Files come from `--ca`, then the environment, then the context."""
    address = _resolve(url, name)
    token = ClientToken(file=token_file or "").or_else(token_from()).or_else(address.credential)
    address = address._replace(token=token.text, token_file=token.file)
    return address._replace(tls_files=ClientTls(ca or "").or_else(tls_from()).or_else(address.tls_files))


def _resolve(url: str | None, name: str | None) -> ServerAddress:
    environ = os.environ
    if url and name:
        raise BadContexts("use either --url or --context, not both")
    if url:
        return ServerAddress(url, "", "--url")
    if name:
        return _named(load(), name, "--context")
    if environ.get("DRIFTQ_URL"):
        return ServerAddress(environ["DRIFTQ_URL"], "", "DRIFTQ_URL")
    if environ.get("DRIFTQ_CONTEXT"):
        return _named(load(), environ["DRIFTQ_CONTEXT"], "DRIFTQ_CONTEXT")
    file = load()
    if file.current:
        return _named(file, file.current, "the context in use")
    return ServerAddress(DEFAULT_URL, "", "the default")


def _named(file: ContextFile, name: str, origin: str) -> ServerAddress:
    context = file.contexts.get(name)
    if context is None:
        names = f"the contexts are {', '.join(sorted(file.contexts))}" if file.contexts else "there are none"
        raise BadContexts(f"there is no context {name!r} ({origin}); {names}. Add it: driftq context add {name} URL")
    origin = f"context {name} ({origin})"
    return ServerAddress(context.url, context.token, origin, context.tls_files, context.token_file)


def _quoted(text: str) -> str:
    """A TOML string. All characters are printable, so only two need escaping."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
