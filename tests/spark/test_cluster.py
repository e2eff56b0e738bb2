"""A real cluster, a master and two workers: the package is shipped, everything is killed, and every row is there once.

One run is one seed (`--seed`); `make spark-chaos N=100` runs 100 kills.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.chaos import KINDS, one_run


@pytest.mark.own_spark
@pytest.mark.timeout(1_800)
def test_every_row_is_there_once_when_broker_driver_executor_python_and_worker_are_killed(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    killed = one_run(tmp_path, kills=len(KINDS), seed=pytestconfig.getoption("--seed"), rows=4_500)

    assert killed.total() >= len(KINDS)
