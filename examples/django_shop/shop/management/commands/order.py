"""Place an order, as a view would."""

from __future__ import annotations

from typing import Any

import outbox
from django.core.management.base import BaseCommand, CommandParser
from django.db import transaction

from shop.broker import broker
from shop.models import Order
from shop.tasks import charge


class Command(BaseCommand):
    help = "Place an order and enqueue its charge."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("number", type=int)
        parser.add_argument("--outbox", action="store_true", help="the job is a row of the same transaction")
        parser.add_argument("--fail", action="store_true", help="raise before the commit")

    def handle(self, *args: Any, number: int, **options: Any) -> None:
        with transaction.atomic():
            Order.objects.create(number=number)
            if options["outbox"]:
                outbox.enqueue(charge, number)
            else:
                # Not before the commit: a worker must find the row. A crash right after the commit loses the job.
                transaction.on_commit(lambda: charge.enqueue(broker(), number))
            if options["fail"]:
                raise RuntimeError("the transaction is rolled back")
