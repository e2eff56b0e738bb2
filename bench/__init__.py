"""Measurements of DriftQ: what the core, the journal and a restart cost. Every result is one line of JSON."""
