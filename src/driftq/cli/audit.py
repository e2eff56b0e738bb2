"""`driftq audit`: who changed what, and who was refused."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from driftq.cli import output
from driftq.cli.command import Invocation, broker_command
from driftq.cli.param_types import AGO
from driftq.wire.audit import RESULTS

if TYPE_CHECKING:
    from driftq.wire.audit import AuditEntry

EVERY_S = 1.0
_COLUMNS = ("TIME", "WHO", "FROM", "ACTION", "NAME", "RESULT")


@click.command()
@click.option("--since", type=AGO, help="Only records since this time (RFC 3339, or 1h for an hour ago).")
@click.option(
    "--who", default="", metavar="NAME", help="Only this caller: the name of its credential, or a token's id."
)
@click.option("--action", default="", help="Only this action, like topic.delete; access for refusals.")
@click.option("--name", default="", help="Only what was done to this.")
@click.option("--result", type=click.Choice(RESULTS), help="Only this result.")
@click.option("--tenant", default="", help="Only callers of this tenant.")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1), help="The newest so many.")
@click.option("--follow", is_flag=True, help="Continue with new records, until Ctrl-C.")
@broker_command
def command(
    invocation: Invocation,
    since: str | None,
    who: str,
    action: str,
    name: str,
    result: str | None,
    tenant: str,
    limit: int,
    follow: bool,
) -> None:
    """Show who changed what and who was refused, the newest last.

    It needs the grants `read:_audit` and `observe`, or `admin`. With the token of a tenant only its own callers are
    shown.

    Example: driftq audit --since 1d --who billing
    """
    wanted = {"who": who, "action": action, "name": name, "result": result or "", "tenant": tenant}
    next_offset = invocation.broker.audit_from(1 << 52).end if follow else 0
    records = invocation.broker.audit(**wanted, since=since, limit=limit)[::-1]
    if follow:
        _show_lines(invocation, records)
        _follow(invocation, wanted, max(next_offset, records[-1].offset + 1 if records else 0))
    elif invocation.as_json:
        output.document(records)
    else:
        output.table(_COLUMNS, map(_row, records), "No records. Is the audit on (audit.mode)?")


def _follow(invocation: Invocation, wanted: dict[str, str], next_offset: int) -> None:
    while True:
        page = invocation.broker.audit_from(next_offset, **wanted)
        _show_lines(invocation, page.records)
        next_offset = int(page.after) if page.after is not None else page.end
        if page.after is None:
            output.flush()
            time.sleep(EVERY_S)


def _show_lines(invocation: Invocation, records: Iterable[AuditEntry]) -> None:
    for record in records:
        if invocation.as_json:
            output.line(record)
        else:
            click.echo("  ".join(output.printable(str(cell)) for cell in _row(record)))


def _row(record: AuditEntry) -> tuple[str, ...]:
    who = f"{record.tenant}~{record.who}" if record.tenant else record.who
    count = f" ({record.count} times)" if record.count > 1 else ""
    why = f": {record.reason}" if record.reason else ""
    return (
        record.at,
        who or record.token_id or "-",
        record.address,
        record.action,
        record.name or "-",
        (record.result + count + why),
    )
