"""Run the tasks of the shop."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

import driftq
from shop.broker import broker
from shop.tasks import charge


class Command(BaseCommand):
    help = "Run workers until SIGTERM or Ctrl-C; with --burst, until nothing is left."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--burst", action="store_true")

    def handle(self, *args: Any, burst: bool, **options: Any) -> None:
        driftq.run(charge, broker=broker(), drain=burst)
