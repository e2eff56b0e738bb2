"""`driftq demo`: the whole at work on this machine. What it shows is in `driftq.cli.showcase`."""

from __future__ import annotations

import sys

import click

from driftq.cli.serve import DEFAULT_DATA


@click.command()
@click.option("--data", metavar="DIR", default=DEFAULT_DATA, show_default=True, help="The broker's data folder.")
@click.option("--tables", metavar="DIR", default="./tables", show_default=True, help="Where tables are written.")
@click.option("--listen", metavar="HOST:PORT", default="127.0.0.1:8080", show_default=True, help="Where to listen.")
@click.option("--rate", type=click.IntRange(1, 1_000), default=20, show_default=True, help="Orders in a second.")
@click.option("--audit-s", type=click.IntRange(1), default=30, show_default=True, help="Audit every so many seconds.")
@click.option("--for-s", type=click.IntRange(1), help="Stop by itself after so many seconds.")
def command(data: str, tables: str, listen: str, rate: int, audit_s: int, for_s: int | None) -> None:
    """A broker, a small workload, two pipelines on Spark and an audit, until Ctrl-C.

    Start it again and it goes on where it was: nothing is lost, nothing is there twice.

    Example: driftq demo --rate 50
    """
    from driftq.cli.showcase import Showcase

    sys.exit(Showcase(data, tables, listen, rate, audit_s, for_s, click.echo).run())
