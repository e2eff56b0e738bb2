"""DriftQ for Spark: a data source and sink named `driftq`, tables written exactly once, and ready pipelines.

    from driftq.spark import driftq_session

    spark = driftq_session("local[*]")
    spark.readStream.format("driftq").option("subscribe", "orders").load()

Needs `pip install 'driftq[spark]'`. Nothing here is imported by the client or the server.
"""

from __future__ import annotations

from driftq.spark.session import NoJava as NoJava
from driftq.spark.session import driftq_session as driftq_session
from driftq.spark.session import register as register

__all__ = ["driftq_session", "register", "NoJava"]
