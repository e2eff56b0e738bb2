"""Move jobs from the outbox to the broker."""

from __future__ import annotations

import os
import time
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from shop.broker import broker

from outbox.models import OutboxJob

PAGE = 100
PAUSE_S = 0.2


class Command(BaseCommand):
    help = "Move jobs from the outbox to the broker until it is stopped; with --once, until the outbox is empty."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--once", action="store_true")

    def handle(self, *args: Any, once: bool, **options: Any) -> None:
        while True:
            jobs = list(OutboxJob.objects.order_by("id")[:PAGE])
            for job in jobs:
                name = str(job.job_id)
                broker().jobs.enqueue(job.topic, job.value, task=job.task, id=name, idempotency_key=name)
                if os.environ.get("CRASH") == "before the delete":
                    os._exit(1)
                job.delete()
            if not jobs and once:
                return
            if not jobs:
                time.sleep(PAUSE_S)
