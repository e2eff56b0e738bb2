"""Producers: batches, sequence windows, and the connection that sends them."""
