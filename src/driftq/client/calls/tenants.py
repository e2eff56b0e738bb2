"""Calls of tenants as pure functions: create, list, show, change, delete."""

from __future__ import annotations

from driftq.client.calls.admin import pages
from driftq.client.calls.queue import bodyless_call, encode, get, json_reader, post, refusal, segment
from driftq.client.endpoint import Page, Pages
from driftq.client.transport.sansio import Call
from driftq.wire.tenants import TenantInfo, TenantListing, TenantsReply


def create_tenant(name: str, **quotas: int) -> Call[TenantInfo]:
    """Create a tenant. Quotas are `messages_per_s`, `bytes_per_s`, `requests_per_s`, `stored_bytes`, `backlog`,
    `topics`, `streams`, `groups`, `schedules` and `connections`; what is not named has none."""
    return post("/v1/tenants", {"name": name, "quotas": quotas}, json_reader(TenantInfo))


def list_tenants() -> Pages[TenantListing]:
    """All tenants, with their quotas."""
    return pages("/v1/tenants", TenantsReply, lambda reply: Page(reply.tenants, reply.after), {})


def show_tenant(name: str) -> Call[TenantInfo]:
    """A tenant, with its quotas and what it uses of them."""
    return get(f"/v1/tenants/{segment(name)}", TenantInfo)


def set_tenant(name: str, **quotas: int) -> Call[TenantInfo]:
    """Change quotas, named as in `create`; 0 takes one away. It takes effect with the next request."""
    path = f"/v1/tenants/{segment(name)}"
    return Call("PATCH", path, json_reader(TenantInfo), refusal=refusal, body=encode(quotas), idempotent=True)


def delete_tenant(name: str) -> Call[None]:
    """Delete a tenant that has no topics, streams, schedules, subscriptions and tokens left."""
    return bodyless_call("DELETE", f"/v1/tenants/{segment(name)}")
