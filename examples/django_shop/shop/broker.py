"""The client of this process: made at the first use, so that a fork of a web server has its own."""

from functools import lru_cache

import driftq


@lru_cache(maxsize=1)
def broker() -> driftq.DriftQ:
    client = driftq.connect()
    client.topics.create("shop.tasks")
    return client
