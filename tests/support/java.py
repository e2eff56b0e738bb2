"""Options for Java in tests: many short processes that load the same classes of Spark.

`make classes` writes an archive of those classes (`tests.spark.class_archive`). Java runs without it if it is missing
or does not match.
"""

from __future__ import annotations

import sys
from pathlib import Path

CLASSES = Path(sys.prefix, "spark-classes.jsa")
# The optimising compiler takes a third of the CPU time and does not pay off in such short processes.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# For JDK_JAVA_OPTIONS, which every Java process reads.
JAVA_OPTIONS = f"{SHORT_LIVED} -XX:SharedArchiveFile={CLASSES} -Xlog:disable"
