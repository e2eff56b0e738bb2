"""Credentials: the same work for every wrong one, little for a known one, and nothing remembered that has ended."""

from __future__ import annotations

import asyncio
import gc
import hmac

import pytest

from driftq.core.model import access as a
from driftq.engine.engine import Engine
from driftq.server.access import authenticator as module
from driftq.server.access.authenticator import Authenticator
from driftq.server.access.token_text import NewToken, new_token
from driftq.server.http.request import Request, RequestHead
from driftq.testing.clock import HandClock


def request(credential: str | None, peer: str = "127.0.0.1") -> Request:
    fields = {b"authorization": credential.encode()} if credential is not None else {}
    return Request(RequestHead("GET", b"/v1/version", fields), b"", peer)


class Fixture:
    def __init__(self) -> None:
        self.clock = HandClock()
        self.engine = Engine.in_memory(clock=self.clock)
        self.authenticator = Authenticator(self.engine)

    async def create(self, *grants: str, expires_ms: int = 0) -> NewToken:
        token = new_token()
        await self.engine.submit(
            a.CreateAccessToken(token.token_id, "n", grants or ("observe",), token.digest, expires_ms=expires_ms)
        )
        return token

    def status(self, credential: str | None, peer: str = "127.0.0.1") -> int:
        refused = self.authenticator.identify(request(credential, peer))
        return refused.status if refused is not None else 200


def run(test):
    async def with_fixture() -> None:
        fixture = Fixture()
        try:
            await test(fixture)
        finally:
            await fixture.engine.close()

    asyncio.run(with_fixture())


def mistyped(token: NewToken) -> str:
    return token.text[:-1] + ("1" if token.text[-1] == "0" else "0")


def test_tokens_that_are_not_valid_cost_the_same_and_get_the_same_answer(monkeypatch):
    """Whether a token is unknown, mistyped, malformed, revoked, or a guess for one that has expired."""

    async def test(at: Fixture) -> None:
        known, revoked = await at.create(), await at.create()
        expired = await at.create(expires_ms=at.engine.now_ms() + 1_000)
        at.clock.move(1_000)
        await at.engine.submit(a.RevokeAccessToken(revoked.token_id))
        texts = (mistyped(known), revoked.text, new_token().text, mistyped(expired), "dq_x", known.text.upper())
        calls: list[int] = []

        def counted(one: bytes, other: bytes) -> bool:
            calls.append(len(one))
            assert len(one) == len(other)
            return hmac.compare_digest(one, other)

        monkeypatch.setattr(module.hmac, "compare_digest", counted)
        bodies, works = set(), set()
        for number, text in enumerate(texts):
            calls.clear()
            refused = at.authenticator.identify(request(f"Bearer {text}", f"10.0.0.{number}"))
            assert refused is not None
            bodies.add((refused.status, bytes(refused.body), refused.extra))
            works.add(tuple(calls))
        assert len(bodies) == 1
        assert works == {(32,)}

    monkeypatch.setattr(module, "hmac", type("M", (), {"compare_digest": staticmethod(hmac.compare_digest)}))
    run(test)


def test_a_token_is_verified_once_and_again_after_it_was_changed(monkeypatch):
    async def test(at: Fixture) -> None:
        digests: list[str] = []
        real = module.digest_of
        monkeypatch.setattr(module, "digest_of", lambda text: digests.append(text) or real(text))
        token = await at.create("observe", "read:a")
        for _ in range(5):
            assert at.status(f"Bearer {token.text}") == 200
        assert len(digests) == 1
        await at.engine.submit(a.NarrowAccessToken(token.token_id, ("read:a",)))
        assert at.status(f"Bearer {token.text}") == 200
        assert len(digests) == 2

    run(test)


def test_an_identity_that_a_head_still_refers_to_ends_with_its_token_also_when_the_table_was_cleared(monkeypatch):
    async def test(at: Fixture) -> None:
        monkeypatch.setattr(module, "VERIFIED_MAX", 2)
        token = await at.create()
        sent = request(f"Bearer {token.text}")
        assert at.authenticator.identify(sent) is None
        for _ in range(4):
            other = await at.create()
            assert at.status(f"Bearer {other.text}") == 200
        gc.collect()
        assert sent.identity is not None
        assert sent.identity.until_s > 0
        await at.engine.submit(a.RevokeAccessToken(token.token_id))
        assert sent.identity.until_s == 0
        assert at.status(f"Bearer {token.text}") == 401

    run(test)


def test_an_expired_token_is_refused_by_the_brokers_time_and_its_holder_learns_why():
    async def test(at: Fixture) -> None:
        token = await at.create(expires_ms=at.engine.now_ms() + 1_000)
        at.clock.move(1_000)
        refused = at.authenticator.identify(request(f"Bearer {token.text}"))
        assert refused is not None
        assert b"expired at" in bytes(refused.body)

    run(test)


@pytest.mark.parametrize(
    "credential", ["", "Bearer", "Bearer ", "Basic x", "bearer dq_", "Bearer \xff\xfe", "Bearer " + "x" * 9_000]
)
def test_a_malformed_credential_is_refused(credential):
    async def test(at: Fixture) -> None:
        assert at.status(credential) == 401

    run(test)


def test_uses_are_noted_now_and_then():
    async def test(at: Fixture) -> None:
        token, unused = await at.create(), await at.create()
        assert at.status(f"Bearer {token.text}") == 200
        at.authenticator._note_uses()
        await at.engine.queries.result(lambda view: None)
        tokens = at.engine.latest_state.access_tokens.by_id
        assert tokens[token.token_id].used_ms == at.engine.now_ms()
        assert tokens[unused.token_id].used_ms == 0

    run(test)
