"""Ready-made pipelines: pure functions from DataFrame to DataFrame, and the code that runs them.

`driftq pipeline list` lists them, `driftq pipeline run NAME` runs one. The functions of a pipeline are in the module
with its name (`archive`, `audit`, `dedupe`, ...). The rest runs them:

    settings -> registry -> io -> query_monitor
    what can be set and how it is loaded, all pipelines by name, sources and sinks, watching a query
"""
