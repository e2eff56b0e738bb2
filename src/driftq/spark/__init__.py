"""DriftQ for Spark: a data source and sink named `driftq`, tables that are written exactly once, and pipelines.

    from driftq.spark import driftq_session

    spark = driftq_session("local[*]")
    spark.readStream.format("driftq").option("subscribe", "orders").load()

Needs `pip install 'driftq[spark]'`, and `'driftq[java]'` on a machine without Java. Neither the client nor the server
imports this package.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from driftq.spark.java import NoJava as NoJava
from driftq.spark.session import driftq_session as driftq_session
from driftq.spark.session import register as register

if TYPE_CHECKING:
    from driftq.spark.tables import read_table as read_table

__all__ = ["driftq_session", "register", "read_table", "NoJava"]


def __getattr__(name: str) -> Any:
    """Tables need Spark at once, and a session is prepared before Spark is imported."""
    if name == "read_table":
        return importlib.import_module("driftq.spark.tables").read_table
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
