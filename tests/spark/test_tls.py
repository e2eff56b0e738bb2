"""Source and sink over TLS: an authority of one's own and a certificate of the client, by option."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import driftq
from tests.support.certificates import Authority
from tests.support.server import running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_rows_are_written_and_read_over_mutual_tls(spark: SparkSession, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server_files, client_files = authority.server(), authority.client("spark")
    settings = (
        f"listen.tls_certificate={server_files.certificate}", f"listen.tls_key={server_files.key}",
        f"listen.tls_client_ca={authority.ca}",
    )  # fmt: skip
    with running(str(tmp_path / "broker"), *settings) as server:
        files = {
            "ca": str(authority.ca), "certificate": str(client_files.certificate), "key": str(client_files.key),
        }  # fmt: skip
        options = {"url": f"https://127.0.0.1:{server.port}", "retryMs": "20s", **files}
        with driftq.connect(options["url"], **files) as broker:
            broker.topics.create("orders", partitions=2)
        rows = spark.range(100).selectExpr("cast(id as string) value")
        rows.write.format("driftq").mode("append").options(**options).save("orders")
        read = spark.read.format("driftq").options(**options).load("orders")
        assert sorted(int(row.value) for row in read.collect()) == list(range(100))
        untrusted = spark.read.format("driftq").options(url=options["url"], retryMs="1s").load("orders")
        with pytest.raises(Exception, match=r"not trusted.*ca="):
            untrusted.collect()
