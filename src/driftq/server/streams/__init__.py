"""Durable streams over HTTP: requests to commands, replies to responses, live readers, reordering, webhooks."""
