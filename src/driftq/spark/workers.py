"""What a Python worker of Spark does once in its life. Called at the start of every task; knows nothing of the work."""

from __future__ import annotations

import functools
import gc


@functools.cache
def settle_in() -> None:
    """Spark collects garbage after every task, and looks through all of pandas and pyarrow each time: some 50 ms, much
    more than a small task takes. What is loaded by now stays anyway, so it need not be looked at again."""
    gc.freeze()
