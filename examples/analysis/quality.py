"""Rows that break a rule become dead letters with the reason; the others are copied.

    python examples/analysis/quality.py docs/images

As a pipeline: driftq pipeline run quality --topic orders --to orders.clean --set quality.rules=quality.toml \\
    --set 'quality.schema=customer STRING NOT NULL, total DOUBLE, currency STRING'
"""

# %% Orders, some of which are wrong
import sys
from pathlib import Path

from driftq.charts import Bar, Panel, svg
from driftq.spark import driftq_session
from driftq.spark.pipelines import quality
from driftq.testing import memory_broker

folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
spark = driftq_session("local[2]")
SCHEMA = "customer STRING NOT NULL, total DOUBLE, currency STRING"
rules = quality.load_quality_rules(str(Path(__file__).parent / "quality.toml"))
with memory_broker() as broker:
    for topic in ("orders", "orders.clean", "orders.clean.rejected"):
        broker.topics.create(topic)
    for number in range(100):
        total = -1 if number % 20 == 3 else number
        currency = "XXX" if number % 10 == 3 else "EUR"
        order = {"customer": f"c{number % 5}", "total": total, "currency": currency}
        key = "c9" if number % 25 == 4 else order["customer"]
        broker.send("orders", order if number % 33 else b"{broken", key=key)
    rows = spark.read.format("driftq").options(url=broker.url, subscribe="orders", includeEnvelope="true").load()

    # %% Judge them, and write both kinds in one step. The names of writer and batch make a repeat harmless
    judged = quality.judged(rows, rules, SCHEMA).localCheckpoint()
    divided = quality.divided(judged, "orders.clean", "orders.clean.rejected")
    writer = divided.write.format("driftq").mode("append").option("url", broker.url)
    writer.option("writer", "quality-example").option("batchId", 1).save()

    # %% A rejected row says why, and where it was read
    for message in broker.claim("orders.clean.rejected", "people", max=3):
        print(message.envelope.labels)

# %% Which rules are broken
counted = quality.counts(judged).collect()
bars = [Bar(row["rule"], row["rows"], f"{row['rows']}", is_ours=True) for row in counted]
picture = svg("Broken rules", [Panel("Rows that break a rule", "of 100", bars)])
(folder / "quality.svg").write_text(picture, encoding="utf-8")
