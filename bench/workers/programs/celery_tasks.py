"""A task that does nothing. It is acked when it has ended, so that a worker that dies loses no job, as elsewhere."""

import os

from celery import Celery

app = Celery("bench", broker=os.environ["BENCH_REDIS"])
app.conf.update(task_acks_late=True, task_ignore_result=True, broker_connection_retry_on_startup=True)


@app.task(name="nothing")
def nothing(number: int) -> None:
    """In the worker's pool."""
