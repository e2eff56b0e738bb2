"""An actor that does nothing. Everything is as dramatiq is installed."""

import os

import dramatiq
from dramatiq.brokers.redis import RedisBroker

broker = RedisBroker(url=os.environ["BENCH_REDIS"])
dramatiq.set_broker(broker)


@dramatiq.actor
def nothing(number: int) -> None:
    """On one of the threads of the worker."""
