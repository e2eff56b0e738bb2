"""What did the models cost, by tenant, model and run?

    python examples/analysis/costs.py docs/images

As a pipeline that keeps a table up to date: driftq pipeline run costs --topic usage --table ./tables/costs \\
    --set costs.prices=prices.toml
"""

# %% Agents report the usage of each call of a model
import sys
from pathlib import Path

from pyspark.sql import functions as F

from driftq.charts import Bar, Panel, svg
from driftq.spark import driftq_session
from driftq.spark.pipelines import costs
from driftq.testing import memory_broker

folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
spark = driftq_session("local[2]")
MODELS = ("large-2", "small", "small", "experimental")
with memory_broker() as broker:
    broker.topics.create("usage")
    for number in range(120):
        tokens = {"input_tokens": 900 + 70 * (number % 11), "output_tokens": 100 + 30 * (number % 7)}
        model = MODELS[number % 4] if number % 12 else "large-1"
        tenant = ("acme", "bolt", "crate")[number % 3]
        broker.send("usage", {"model": model, "usage": tokens}, tenant=tenant, run_id=f"run-{number // 24}")
    rows = spark.read.format("driftq").options(url=broker.url, subscribe="usage", includeEnvelope="true").load()
    used = costs.usage(rows, "$.model", "$.usage.input_tokens", "$.usage.output_tokens").localCheckpoint()

# %% Prices are a file. What no price matches is counted as unpriced, not as free
prices = costs.load_prices(str(Path(__file__).parent / "prices.toml"))
summed = costs.summed(costs.priced(used, prices)).localCheckpoint()
by_model = summed.groupBy("model").agg(F.sum("cost").alias("cost"), F.sum("unpriced").alias("unpriced"))
for row in by_model.orderBy("model").collect():
    print(f"{row['model']}: {row['cost']:.4f}, {row['unpriced']} calls without a price")


# %% By tenant, model and run
def panel(title: str, column: str) -> Panel:
    totals = summed.groupBy(column).agg(F.sum("cost").alias("cost")).orderBy(F.desc("cost"), column).collect()
    bars = [Bar(row[column], float(row["cost"]), f"{row['cost']:.4f}", is_ours=True) for row in totals]
    return Panel(title, "", bars)


panels = [panel("By tenant", "tenant_id"), panel("By model", "model"), panel("By run", "run_id")]
(folder / "costs.svg").write_text(svg("Costs", panels), encoding="utf-8")
