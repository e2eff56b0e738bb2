"""Backtests: a recorded log once more through the broker's own rules, under another policy."""
