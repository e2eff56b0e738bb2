"""Makes the router of the settings. Errors in its target are reported at the start, not at the first message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driftq.server.router import python_router
from driftq.server.router.webhook_router import WebhookRouter
from driftq.settings.loader import SettingsError
from driftq.wire import router_rules

if TYPE_CHECKING:
    from driftq.server.outbound.client import OutboundClient
    from driftq.server.router.protocol import Router
    from driftq.server.settings import RouterSettings
    from driftq.wire.router import RouteDecision, RouteInput


class RulesRouter:
    """Rules from a file (`driftq.wire.router_rules`): the first that matches decides."""

    kind = "rules"
    inline = True

    def __init__(self, rules: router_rules.Rules) -> None:
        self.rules = rules.rules
        self._decide = rules.decide

    def route(self, message: RouteInput) -> RouteDecision | None:
        return self._decide(message)

    async def close(self) -> None:
        pass


def load(path: str) -> RulesRouter:
    """Read a file of rules; raises `SettingsError` that names the file, the rule and what is wrong."""
    try:
        return RulesRouter(router_rules.load(path))
    except router_rules.BadRules as error:
        raise SettingsError(f"router.target: {error}") from None


def parse(text: str, path: str = "rules") -> RulesRouter:
    try:
        return RulesRouter(router_rules.parse(text, path))
    except router_rules.BadRules as error:
        raise SettingsError(str(error)) from None


def make_router(settings: RouterSettings, outbound: OutboundClient) -> Router | None:
    """The router of the settings, if there is one. Raises `SettingsError`."""
    if settings.kind == "none":
        return None
    if not settings.target:
        raise SettingsError(f"router.kind = {settings.kind!r} needs router.target")
    if settings.kind == "rules":
        return load(settings.target)
    if settings.kind == "webhook":
        return WebhookRouter(settings.target, outbound)
    call = python_router.load(settings.target)
    return python_router.PythonRouter(call, inline=settings.inline, threads=settings.threads)
