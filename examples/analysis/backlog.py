"""The state of a queue as of any time, and its depth over the morning.

    python examples/analysis/backlog.py docs/images

Each part marked with %% is a cell in editors that know them.
"""

# %% A morning of work, recorded by the broker itself
import sys
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import functions as F
from workday import morning

from driftq.charts import Curve, Curves, svg
from driftq.spark import driftq_session
from driftq.spark.pipelines import backlog

folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
spark = driftq_session("local[2]")
with morning() as broker:
    rows = (
        spark.read.format("driftq")
        .options(url=broker.url, subscribe="orders,orders.history", includeEnvelope="true")
        .load()
        .localCheckpoint()
    )

# %% What was in the queue at 9:40, in the middle of the outage?
day = rows.agg(F.min("timestamp")).first()[0].astimezone(UTC).date()
at = datetime(day.year, day.month, day.day, 9, 40, tzinfo=UTC)
then = backlog.states(rows, F.lit(at))
for row in backlog.summary(then).collect():
    print(f"{row['messages']:4} {row['state']:<9} since {row['oldest'].astimezone(UTC):%H:%M:%S}")

# %% Who waited, and on whom?
waiting = then.where("state = 'waiting'").groupBy("tenant_id").count().orderBy("tenant_id")
print({row["tenant_id"]: row["count"] for row in waiting.collect()})

# %% The whole morning
series = backlog.depths(rows, "5 minutes").orderBy("at").collect()
curves = [Curve(state, [row[state] for row in series]) for state in backlog.OPEN]
ends = [f"{row['at'].astimezone(UTC):%H:%M}" for row in (series[0], series[-1])]
picture = svg("The queue over the morning", [Curves("Orders in group billing", "", curves, *ends)])
(folder / "backlog.svg").write_text(picture, encoding="utf-8")
