"""Tenants in the server: the names of a tenant, the broker as a tenant sees it, quotas and what is used of them."""
