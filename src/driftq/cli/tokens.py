"""`driftq tokens`: create, list, show, narrow, rotate, revoke and derive access tokens."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TextIO

import click

from driftq.cli import output
from driftq.cli.command import Invocation, broker_command, confirm, yes_option
from driftq.cli.param_types import AHEAD, DURATION
from driftq.cli.watch import watchable

if TYPE_CHECKING:
    from driftq.wire.tokens import NewTokenReply, TokenInfo

token_argument = click.argument("token_id", metavar="ID")
file_option = click.option("--to", "file", metavar="FILE", help="Write the token to a new file that only you can read.")
_grant_option = click.option(
    "--grant", "grants", multiple=True, metavar="VERB:NAMES", help="A right, like produce:orders.* (repeatable)."
)


@click.group()
def command() -> None:
    """Create, list, show, narrow, rotate, revoke and derive access tokens.

    \b
    Grants are a verb and a pattern of names, in which * stands for any characters:
      produce:orders.*          send messages to topics
      consume:orders/billing    claim and settle as a group; without /GROUP as any group
      read:orders               read messages and streams without claiming
      append:runs/42            create streams and append to them
      manage:*                  create, change and delete topics, groups and streams
      observe                   metrics
      admin                     everything, tokens included
    """


@command.command()
@click.argument("name")
@_grant_option
@click.option("--expires", "expires_at", type=AHEAD, help="When it expires: a time, or how long it lasts (e.g. 30d).")
@click.option("--tenant", default="", help="The tenant that it belongs to; without one, the tenant of your own token.")
@file_option
@broker_command
def create(
    invocation: Invocation, name: str, grants: tuple[str, ...], expires_at: str | None, tenant: str, file: str | None
) -> None:
    """Create a token and print it. It cannot be shown again.

    Example: driftq tokens create billing --grant consume:orders/billing --grant produce:invoices --expires 90d
    """
    if not grants:
        raise click.UsageError("a token needs at least one --grant, like --grant produce:orders")
    with secret_file(file) as opened:
        token = invocation.broker.tokens.create(name, grants, expires_at=expires_at or "", tenant=tenant)
        show_new(token, opened, invocation.as_json)


@command.command("list")
@broker_command
@watchable
def list_(invocation: Invocation) -> None:
    """List all tokens with their grants.

    Example: driftq tokens list
    """
    tokens = invocation.broker.tokens.list()
    if invocation.as_json:
        output.document(tokens)
        return
    rows = (
        (
            token.id,
            token.name,
            token.tenant or "none",
            ",".join(token.grants),
            token.expires_at or "never",
            token.used_at or "never",
        )
        for token in tokens
    )
    output.table(("ID", "NAME", "TENANT", "GRANTS", "EXPIRES", "USED"), rows, "No tokens. See `driftq tokens create`.")


@command.command()
@token_argument
@broker_command
def show(invocation: Invocation, token_id: str) -> None:
    """Show a token: its grants, expiry and last use, not its text.

    Example: driftq tokens show 3f9a0c1d2e4b5a69
    """
    _show(invocation, invocation.broker.tokens.show(token_id))


def _show(invocation: Invocation, info: TokenInfo) -> None:
    if invocation.as_json:
        output.document(info)
        return
    output.fields(
        [
            ("id", info.id),
            ("name", info.name),
            ("tenant", info.tenant or "none"),
            ("grants", ", ".join(info.grants)),
            ("created", f"{info.created_at}{f' by {info.created_by}' if info.created_by else ''}"),
            ("expires", info.expires_at or "never"),
            ("used", info.used_at or "never"),
        ]
    )


@command.command()
@token_argument
@_grant_option
@click.option("--expires", "expires_at", type=AHEAD, help="Expire earlier: at a time, or after a duration.")
@broker_command
def narrow(invocation: Invocation, token_id: str, grants: tuple[str, ...], expires_at: str | None) -> None:
    """Leave a token only these grants, or make it expire earlier. Rights cannot be added.

    Example: driftq tokens narrow 3f9a0c1d2e4b5a69 --grant consume:orders/billing
    """
    invocation.broker.tokens.narrow(token_id, grants=grants or None, expires_at=expires_at)
    _show(invocation, invocation.broker.tokens.show(token_id))


@command.command()
@token_argument
@click.option(
    "--overlap", "overlap_ms", type=DURATION, default="0s", help="Accept the old one for this long (e.g. 1h)."
)
@file_option
@broker_command
def rotate(invocation: Invocation, token_id: str, overlap_ms: int, file: str | None) -> None:
    """Replace the secret of a token and print the new one. Its id and grants stay.

    Example: driftq tokens rotate 3f9a0c1d2e4b5a69 --overlap 1h
    """
    with secret_file(file) as opened:
        show_new(invocation.broker.tokens.rotate(token_id, overlap_ms=overlap_ms), opened, invocation.as_json)


@command.command()
@_grant_option
@click.option("--ttl", "ttl_ms", type=DURATION, default="10m", show_default=True, help="How long it lasts (e.g. 10m).")
@file_option
@broker_command
def derive(invocation: Invocation, grants: tuple[str, ...], ttl_ms: int, file: str | None) -> None:
    """Derive a narrower token that ends soon from your own.

    Hand it on to a browser or a tool. It never has more rights than yours, and ends with it. For reads it may be a
    part of a URL: ?access_token=TOKEN.

    Example: driftq tokens derive --grant read:runs/42 --ttl 10m
    """
    if not grants:
        raise click.UsageError("a token needs at least one --grant, like --grant read:runs/42")
    with secret_file(file) as opened:
        token = invocation.broker.tokens.derive(grants, ttl_ms=ttl_ms)
        if opened is not None:
            opened.output.write(token.token + "\n")
        if invocation.as_json:
            shown = {"grants": token.grants, "expires_at": token.expires_at}
            output.document({**shown, "file": opened.path} if opened is not None else {"token": token.token, **shown})
        elif opened is not None:
            click.echo(f"written to {opened.path}; it expires at {token.expires_at}")
        else:
            click.echo(token.token)
            output.note(f"{', '.join(token.grants)} until {token.expires_at}")


@command.command()
@broker_command
def whoami(invocation: Invocation) -> None:
    """Show who you are to the broker: your name, tenant and grants.

    Example: driftq tokens whoami
    """
    caller = invocation.broker.tokens.whoami()
    if invocation.as_json:
        output.document(caller)
        return
    output.fields(
        [
            ("name", caller.name if caller.authenticated else "anyone (this broker asks for no credentials)"),
            ("tenant", caller.tenant or "none"),
            ("grants", ", ".join(caller.grants)),
            ("expires", caller.expires_at or "never"),
        ]
    )


@command.command()
@token_argument
@yes_option
@broker_command
def revoke(invocation: Invocation, token_id: str, yes: bool) -> None:
    """Revoke a token. It is refused at once, and its open streams end.

    Example: driftq tokens revoke 3f9a0c1d2e4b5a69 --yes
    """
    confirm(f"Revoke token {token_id}", yes)
    invocation.broker.tokens.revoke(token_id)
    if invocation.as_json:
        output.document({"id": token_id, "status": "revoked"})
    else:
        click.echo(f"{token_id}: revoked")


class SecretFile(NamedTuple):
    """Where a new token is written."""

    path: str
    output: TextIO


@contextmanager
def secret_file(path: str | None) -> Iterator[SecretFile | None]:
    """A new file that only its owner can read, made before the token that goes into it. An existing one is kept."""
    if path is None:
        yield None
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise click.UsageError(f"{path} cannot be created: {error.strerror}") from None
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            yield SecretFile(path, file)
    except BaseException:
        Path(path).unlink(missing_ok=True)
        raise


def show_new(token: NewTokenReply, file: SecretFile | None, as_json: bool) -> None:
    """Print a new token on standard output, or write it to a file. Notes go to standard error."""
    if file is not None:
        file.output.write(token.token + "\n")
        if as_json:
            output.document({"id": token.id, "name": token.name, "grants": token.grants, "file": file.path})
        else:
            click.echo(f"{token.id} ({token.name}): written to {file.path}")
    elif as_json:
        output.document(token)
    else:
        click.echo(token.token)
        output.note(f"token {token.id} ({token.name}): {', '.join(token.grants)}. It cannot be shown again.")
