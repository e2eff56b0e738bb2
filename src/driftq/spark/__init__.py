"""DriftQ for Spark: a data source and sink named `driftq`, tables that are written exactly once, and pipelines.

    from driftq.spark import driftq_session

    spark = driftq_session("local[*]")
    spark.readStream.format("driftq").option("subscribe", "orders").load()

Needs `pip install 'driftq[spark]'`, and `'driftq[java]'` on a machine without Java. Neither the client nor the server
imports this package.
"""

from __future__ import annotations

from driftq.spark.java import NoJava as NoJava
from driftq.spark.session import driftq_session as driftq_session
from driftq.spark.session import register as register

__all__ = ["driftq_session", "register", "NoJava"]
