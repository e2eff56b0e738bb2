"""Counters, histograms and gauges, and the page that Prometheus scrapes."""
