"""`driftq auth`: the first access token of a data folder, and the keys that sign short-lived tokens."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from driftq.cli.command import as_json_option
from driftq.cli.serve import DEFAULT_DATA
from driftq.cli.tokens import file_option, secret_file, show_new

_AUTH_INIT = "driftq auth init"


@click.group()
def command() -> None:
    """Make the first access token of a data folder; replace the key of short-lived tokens."""


@command.command()
@click.option(
    "--data", metavar="DIR", default=DEFAULT_DATA, show_default=True, help="Data folder; made if it is missing."
)
@click.option("--name", default="operator", show_default=True, help="Name of the token.")
@click.option("--another", is_flag=True, help="Also if the folder has tokens, for example because theirs are lost.")
@file_option
@as_json_option
def init(data: str, name: str, another: bool, file: str | None, as_json: bool) -> None:
    """Make the first token, with the grant `admin`, and print it.

    The server must not be running: with access to its folder no other proof is needed. Further tokens are made with
    `driftq tokens create`. Then start the server with `--set auth.mode=tokens`.

    Example: driftq auth init --data ./data --to ~/.driftq-token
    """
    from driftq.cli.exit_codes import Exit, exit_on_error, fail
    from driftq.core.model.replies import Rejected
    from driftq.server.access.token_text import new_token
    from driftq.wire.grants import ADMIN
    from driftq.wire.tokens import NewTokenReply

    token = new_token()
    with exit_on_error(), secret_file(file) as opened:
        reply = asyncio.run(_create(data, name, token.token_id, token.digest, first=not another))
        if isinstance(reply, Rejected):
            hint = "Use `driftq tokens create` with one of them, or add --another for one more with the grant admin."
            fail(Exit.REFUSED, f"{data}: {reply.message}", hint, as_json=as_json)
        show_new(NewTokenReply(token.text, token.token_id, name, [ADMIN]), opened, as_json)


async def _create(folder: str, name: str, token_id: str, digest: bytes, *, first: bool) -> object:
    from driftq.core.model.access import CreateAccessToken, OpenAudit
    from driftq.engine.engine import Engine
    from driftq.wire.audit import AuditRecord
    from driftq.wire.grants import ADMIN

    engine = await Engine.open(folder)
    try:
        await engine.submit(OpenAudit())
        note = AuditRecord(action="token.create", name=token_id, who=_AUTH_INIT, address="this machine")
        command = CreateAccessToken(token_id, name, (ADMIN,), digest, created_by=_AUTH_INIT, first=first, audit=note)
        return await engine.submit(command)
    finally:
        await engine.close()


@command.command("rotate-key")
@click.option("--data", metavar="DIR", default=DEFAULT_DATA, show_default=True, help="Data folder of the broker.")
@click.option("--drop", is_flag=True, help="Remove the old keys, too: every short-lived token ends within a second.")
@as_json_option
def rotate_key(data: str, drop: bool, as_json: bool) -> None:
    """Make a new key for short-lived tokens.

    A running server uses it within a second. Tokens that the old key has signed stay valid until they expire, unless
    you add --drop.

    Example: driftq auth rotate-key --data ./data
    """
    import time

    from driftq.cli import output
    from driftq.cli.exit_codes import Exit, fail
    from driftq.server.access.signing_keys import KeysUnusable, rotate_keys

    if not Path(data).is_dir():
        fail(Exit.USAGE, f"{data}: there is no such folder", "Name the data folder with --data.", as_json=as_json)
    try:
        kid = rotate_keys(data, int(time.time() * 1_000), drop=drop)
    except KeysUnusable as error:
        fail(Exit.REFUSED, str(error), "Run it as the user of the broker.", as_json=as_json)
    if as_json:
        output.document({"kid": kid, "dropped": drop})
    else:
        click.echo(f"{kid}: signs short-lived tokens from now on")
