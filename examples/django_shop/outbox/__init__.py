"""An outbox: a job is a row of the caller's transaction, and a relay moves it to the broker.

    with transaction.atomic():
        order.save()
        outbox.enqueue(charge, order.number)     # both, or neither

The relay (`manage.py relay_outbox`) enqueues a row and then deletes it. If it is killed in between, the next run
enqueues the row again, with the same id and idempotency key: the broker keeps one job.
"""

from __future__ import annotations

from typing import Any

from driftq.client.worker.tasks import Task


def enqueue(task: Task[..., Any], *args: Any, **kwargs: Any) -> None:
    from outbox.models import OutboxJob  # noqa: PLC0415  # models can be imported when the apps are ready

    job = task.job(*args, **kwargs)
    OutboxJob.objects.create(topic=task.subscription.topic, task=task.name, value=job.value)
