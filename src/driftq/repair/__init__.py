"""Offline work on a data folder: verify, dump, statistics, repair, salvage."""
