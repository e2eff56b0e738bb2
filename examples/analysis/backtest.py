"""Would another policy have served the morning better? The recorded log, once more, through the broker's own rules.

    python examples/analysis/backtest.py docs/images

As a command: driftq pipeline backtest --topic orders --group billing --policies policies.toml --plot backtest.svg
"""

# %% The record: every message, and how each attempt of the group ended
import sys
from pathlib import Path

from workday import morning

from driftq.backtest.policy import load_policies
from driftq.backtest.recorded_messages import messages_of, recorded_figures, workers_seen
from driftq.backtest.report import picture, table_lines
from driftq.backtest.run import Options, backtest
from driftq.spark import driftq_session
from driftq.spark.pipelines.recorded_attempts import collected, recorded

folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
spark = driftq_session("local[2]")
with morning() as broker:
    reader = spark.read.format("driftq").option("url", broker.url).option("includeEnvelope", "true")
    rows = reader.option("subscribe", "orders,orders.history").load()
    messages = messages_of(collected(recorded(rows, "billing")))

# %% The policies. The second attempt on a message ends as its second attempt did
policies = load_policies(str(Path(__file__).parent / "policies.toml"))
options = Options(workers_seen(messages))
compared = [recorded_figures(messages), *(backtest(messages, policy, options) for policy in policies.policy)]
for line in table_lines(compared, policies.hourly_price):
    print(line)

# %% Side by side
title = "Policies on a recorded morning"
(folder / "backtest.svg").write_text(picture(title, compared, policies.hourly_price), encoding="utf-8")
