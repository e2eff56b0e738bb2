"""Ready pipelines: pure functions from DataFrame to DataFrame, and the thin wiring that runs them.

`driftq pipeline list` names them, `driftq pipeline run NAME` runs one. Each module holds the functions of one pipeline;
`configuration` knows every setting, `running` knows sessions, queries and how they end.
"""
