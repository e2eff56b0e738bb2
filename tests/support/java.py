"""How Java runs under tests: many processes that live for a minute or two, and load the same classes of Spark.

`make classes` lays those classes out in one file (`tests.spark.classes`). A Java that finds none, or one that does not
fit it, runs without it.
"""

from __future__ import annotations

import sys
from pathlib import Path

CLASSES = Path(sys.prefix, "spark-classes.jsa")
# They never earn back what the best compiler costs, a third of the whole.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# For JDK_JAVA_OPTIONS, which every Java process reads.
JAVA_OPTIONS = f"{SHORT_LIVED} -XX:SharedArchiveFile={CLASSES} -Xlog:disable"
