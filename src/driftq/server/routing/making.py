"""From the settings to a router. Whatever is wrong with it is said at start, not at the first message."""

from __future__ import annotations

from driftq.server.outbound import Outbound
from driftq.server.routing import python, rules
from driftq.server.routing.protocol import Router
from driftq.server.routing.webhook import WebhookRouter
from driftq.server.settings import RouterSettings, SettingsError


def make_router(settings: RouterSettings, outbound: Outbound) -> Router | None:
    """None if there is none. Raises `SettingsError`."""
    if settings.kind == "none":
        return None
    if not settings.target:
        raise SettingsError(f"router.kind = {settings.kind!r} needs router.target")
    if settings.kind == "rules":
        return rules.load(settings.target)
    if settings.kind == "webhook":
        return WebhookRouter(settings.target, outbound)
    call = python.load(settings.target)
    return python.PythonRouter(call, inline=settings.inline, threads=settings.threads)
