"""`driftq tenants`: create, list, show and delete tenants, and set their quotas."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from driftq.cli import output
from driftq.cli.command import Invocation, broker_command, confirm, yes_option
from driftq.cli.param_types import SIZE
from driftq.cli.watch import watchable
from driftq.wire.tenants import QUOTAS

if TYPE_CHECKING:
    from driftq.wire.tenants import TenantInfo

_SIZES = ("bytes_per_s", "stored_bytes")
_HELP = {
    "messages_per_s": "Messages it may produce and append per second.",
    "bytes_per_s": "Bytes of them per second (e.g. 10MiB).",
    "requests_per_s": "Requests per second.",
    "stored_bytes": "Bytes that its topics and streams may hold (e.g. 10GiB).",
    "backlog": "Messages that may wait in all its topics.",
    "topics": "Topics it may have.",
    "streams": "Streams it may have.",
    "groups": "Groups it may have.",
    "schedules": "Schedules it may have.",
    "connections": "Connections it may hold open.",
}


def _quota_options(function: Callable[..., None]) -> Callable[..., None]:
    for quota in reversed(QUOTAS):
        kind: Any = SIZE if quota in _SIZES else click.IntRange(min=0)
        option = click.option(f"--{quota.replace('_', '-')}", quota, type=kind, help=f"{_HELP[quota]} 0: no quota.")
        function = option(function)
    return function


@click.group()
def command() -> None:
    """Create, list, show and delete tenants, and set their quotas.

    A tenant has names of its own: its tokens (`driftq tokens create --tenant`) see and make names inside of it only.
    """


@command.command()
@click.argument("tenant")
@_quota_options
@broker_command
def create(invocation: Invocation, tenant: str, **quotas: int | None) -> None:
    """Create a tenant.

    Example: driftq tenants create acme --messages-per-s 1000 --stored-bytes 10GiB
    """
    named = {quota: amount for quota, amount in quotas.items() if amount is not None}
    _show(invocation, invocation.broker.tenants.create(tenant, **named))


@command.command("list")
@broker_command
@watchable
def list_(invocation: Invocation) -> None:
    """List all tenants with their quotas.

    Example: driftq tenants list
    """
    tenants = invocation.broker.tenants.list()
    if invocation.as_json:
        output.document(tenants)
        return
    rows = []
    for tenant in tenants:
        quotas = [f"{quota}={amount}" for quota in QUOTAS if (amount := getattr(tenant.quotas, quota))]
        rows.append((tenant.name, tenant.created_at, " ".join(quotas) or "none"))
    output.table(("TENANT", "CREATED", "QUOTAS"), rows, "No tenants. See `driftq tenants create`.")


@command.command()
@click.argument("tenant")
@broker_command
def show(invocation: Invocation, tenant: str) -> None:
    """Show a tenant: its quotas, and what it uses of them.

    Example: driftq tenants show acme
    """
    _show(invocation, invocation.broker.tenants.show(tenant))


def _show(invocation: Invocation, info: TenantInfo) -> None:
    if invocation.as_json:
        output.document(info)
        return
    rows = [("tenant", info.name), ("created", info.created_at)]
    for quota in QUOTAS:
        limit = getattr(info.quotas, quota)
        rows.append((quota, f"{getattr(info.used, quota)} of {limit or 'any number'}"))
    output.fields(rows)


@command.command("set")
@click.argument("tenant")
@_quota_options
@broker_command
def set_(invocation: Invocation, tenant: str, **quotas: int | None) -> None:
    """Change quotas of a tenant. They take effect with the next request.

    Example: driftq tenants set acme --messages-per-s 5000 --backlog 0
    """
    named = {quota: amount for quota, amount in quotas.items() if amount is not None}
    if not named:
        raise click.UsageError("name a quota to change, like --messages-per-s 1000")
    _show(invocation, invocation.broker.tenants.set(tenant, **named))


@command.command()
@click.argument("tenant")
@yes_option
@broker_command
def delete(invocation: Invocation, tenant: str, yes: bool) -> None:
    """Delete a tenant that has nothing left, tokens included.

    Example: driftq tenants delete acme --yes
    """
    confirm(f"Delete tenant {tenant}", yes)
    invocation.broker.tenants.delete(tenant)
    if invocation.as_json:
        output.document({"tenant": tenant, "status": "deleted"})
    else:
        click.echo(f"{tenant}: deleted")
