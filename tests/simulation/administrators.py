"""A client that makes, narrows, rotates and revokes access tokens. It draws from a generator of its own, and acts in
some seeds only, so that the others stay as they were."""

from __future__ import annotations

from random import Random

from driftq.core.model import access as a
from driftq.core.model import commands as c
from tests.simulation.actors import Actor
from tests.simulation.world import World

GRANTS = ("produce:*", "produce:a.*", "produce:a.b", "read:*", "read:a*", "manage:a.b*", "observe", "admin")


def acts_in(seed: int) -> bool:
    return seed % 8 == 6


class TokenAdministrator(Actor):
    """Makes tokens and takes rights away from them; sometimes tries to give one more than it had."""

    kind = "tokens"

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, number)
        self._own_random = Random(f"tokens {world.swarm.seed}")

    def act(self) -> None:
        chance = self._own_random
        if chance.random() < 0.06:
            self.ask(self._command(chance))

    def _command(self, chance: Random) -> c.Command:
        self.sent += 1
        token_id = f"token{chance.randrange(6)}"
        digest = f"secret {self.sent}".encode()
        grants = tuple(chance.sample(GRANTS, chance.randrange(1, 4)))
        expires_ms = self.world.now_ms + chance.choice((-10, 500, 5_000, 60_000))
        kind = chance.random()
        if kind < 0.3:
            return a.CreateAccessToken(
                token_id, "name", grants, digest, expires_ms=chance.choice((0, expires_ms)), first=chance.random() < 0.1
            )
        if kind < 0.6:
            return a.NarrowAccessToken(token_id, chance.choice((None, grants)), chance.choice((None, None, expires_ms)))
        if kind < 0.8:
            return a.RotateAccessToken(token_id, digest, chance.choice((0, 1_000, 20_000)))
        if kind < 0.9:
            return a.NoteAccessTokens((token_id, "token1"))
        return a.RevokeAccessToken(token_id)
