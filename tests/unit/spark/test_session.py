"""What a local session runs as Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from driftq.spark.session import WORKER_PYTHON, prepare_java, worker_python

PROGRAM = "import json, os, sys; print(json.dumps([os.environ['PYTHONPATH'], sys.argv[1:], sys.executable]))"


@pytest.fixture(autouse=True)
def _packaged_spark(monkeypatch):
    monkeypatch.delenv("SPARK_HOME", raising=False)


@pytest.mark.parametrize(
    ("python_path", "expected"),
    [
        ("/s/python/lib/pyspark.zip:/s/python/lib/py4j-0.10.9.9-src.zip:/s/core.jar:", "/s/core.jar"),
        ("/s/python/lib/pyspark.zip:/with space:/a*:/mine/pyspark.zip", "/with space:/a*:/mine/pyspark.zip"),
        ("/s/python/lib/pyspark.zip", ""),
        ("", ""),
    ],
)
def test_workers_leave_out_only_the_archives_of_spark(python_path, expected):
    line = [worker_python(), "-c", PROGRAM, "an argument", "*"]
    environment = {"PATH": "/bin", "PYTHONPATH": python_path, "DRIFTQ_SPARK_PYTHON": sys.executable}

    process = subprocess.run(line, env=environment, capture_output=True, text=True, check=True)

    assert json.loads(process.stdout) == [expected, ["an argument", "*"], sys.executable]


@pytest.mark.parametrize(("given", "expected"), [({}, "67108864"), ({"MALLOC_TRIM_THRESHOLD_": "5"}, "5")])
def test_workers_keep_the_memory_of_their_buffers_unless_the_environment_decides(given, expected):
    line = [worker_python(), "-c", "import os; print(os.environ['MALLOC_TRIM_THRESHOLD_'])"]
    environment = {"PATH": "/bin", "DRIFTQ_SPARK_PYTHON": sys.executable, **given}

    process = subprocess.run(line, env=environment, capture_output=True, text=True, check=True)

    assert process.stdout.strip() == expected


def test_another_spark_than_the_installed_package_keeps_its_archives(monkeypatch):
    assert worker_python() == str(WORKER_PYTHON)
    monkeypatch.setenv("SPARK_HOME", "/usr/lib/spark")

    assert worker_python() == sys.executable


def test_every_process_of_a_local_session_runs_that_python(monkeypatch):
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "DRIFTQ_SPARK_PYTHON", "JAVA_HOME"):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    monkeypatch.setattr("pyspark.SparkContext._gateway", None)

    prepare_java()

    assert os.environ["PYSPARK_PYTHON"] == os.environ["PYSPARK_DRIVER_PYTHON"] == str(WORKER_PYTHON)
