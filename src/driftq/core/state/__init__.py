"""The broker's state, a fold of facts. One module for each table."""
