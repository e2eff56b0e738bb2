"""The rules of `driftq.wire.rules` as a router: read and checked at start, asked at every produce."""

from __future__ import annotations

from driftq.server.settings import SettingsError
from driftq.wire import rules
from driftq.wire.routing import Decision, Message


class RulesRouter:
    """The first rule that holds decides."""

    kind = "rules"
    inline = True

    def __init__(self, found: rules.Rules) -> None:
        self.rules = found.rules
        self._decide = found.decide

    def route(self, message: Message) -> Decision | None:
        return self._decide(message)

    async def close(self) -> None:
        pass


def load(path: str) -> RulesRouter:
    """Read a file of rules; raises `SettingsError` that names the file, the rule and what is wrong."""
    try:
        return RulesRouter(rules.load(path))
    except rules.BadRules as error:
        raise SettingsError(f"router.target: {error}") from None


def parse(text: str, path: str = "rules") -> RulesRouter:
    try:
        return RulesRouter(rules.parse(text, path))
    except rules.BadRules as error:
        raise SettingsError(str(error)) from None
