"""The body of a request while it arrives: in one piece or many, within its limits, and what it holds of the budget."""

from __future__ import annotations

import pytest

from driftq.server.http import HttpLimits
from driftq.server.http.limits import PIECE_BYTES
from driftq.server.http.request_body import CHUNK_OVERHEAD_FREE_BYTES, BodyBudget, RequestBody
from driftq.server.http.request_head import RequestRefused

LIMITS = HttpLimits(body_bytes=1_000, header_block_bytes=256)


def new_body(budget_bytes: int = 10_000) -> tuple[RequestBody, BodyBudget]:
    budget = BodyBudget(budget_bytes)
    return RequestBody(LIMITS, budget), budget


def test_a_first_piece_is_kept_as_it_came_and_reserves_nothing():
    body, budget = new_body()
    piece = b"x" * 5
    body.begin(5)
    body.add(piece)
    assert (body.start is piece, body.buffer, budget.used_bytes) == (True, None, 0)


def test_a_body_in_pieces_is_collected_and_its_budget_returned():
    body, budget = new_body()
    body.begin(10)
    body.add(b"abc")
    body.end_piece(PIECE_BYTES, 0)
    assert body.remaining == 7
    assert body.take(memoryview(b"defg")) == 4
    assert (body.received, budget.used_bytes) == (7, 4)
    assert body.take(memoryview(b"hijGET /next")) == 3
    assert body.remaining == 0
    assert body.finish() == b"abcdefghij"
    assert budget.used_bytes == 0


def test_a_body_over_its_limit_is_refused_when_its_length_or_its_data_shows_it():
    body, _ = new_body()
    with pytest.raises(RequestRefused) as declared:
        body.begin(1_001)
    body.begin(-1)
    body.add(b"x" * 600)
    with pytest.raises(RequestRefused) as chunked:
        body.add(b"x" * 401)
    assert (declared.value.status, chunked.value.status) == (413, 413)


def test_a_piece_over_the_budget_of_all_bodies_is_refused_and_release_returns_the_rest():
    body, budget = new_body(budget_bytes=100)
    body.begin(-1)
    body.add(b"x" * 90)
    with pytest.raises(RequestRefused) as refused:
        body.add(b"x" * 11)
    assert refused.value.status == 503
    assert budget.used_bytes == 90
    body.release()
    assert budget.used_bytes == 0


def test_chunk_framing_may_not_grow_without_data():
    body, _ = new_body()
    body.begin(-1)
    body.end_piece(PIECE_BYTES, body.received)
    with pytest.raises(RequestRefused) as refused:
        body.end_piece(PIECE_BYTES, body.received)
    assert refused.value.status == 400


def test_chunk_framing_may_grow_with_its_data_and_starts_again_with_the_next_body():
    body, _ = new_body()
    for _ in range(3):
        body.begin(-1)
        for _ in range(CHUNK_OVERHEAD_FREE_BYTES // PIECE_BYTES):
            received = body.received
            body.add(b"x")
            body.end_piece(PIECE_BYTES, received)
        assert body.finish() == b"x" * 4


def test_when_the_budget_is_used_up_a_body_within_its_share_is_still_taken():
    budget = BodyBudget(1_000)
    budget.hold(500)
    budget.hold(500)
    assert budget.admits(0, 333)  # a third of the budget, for the third body
    assert not budget.admits(0, 334)
    budget.hold(300)
    assert budget.admits(300, 33)
    assert not budget.admits(300, 34)
    assert not budget.admits(500, 1), "those that hold more than their share get no more"
    budget.release(500)
    assert budget.admits(500, 200)
    budget.release(500)
    budget.release(300)
    assert budget.used_bytes == 0
    assert budget.admits(0, 1_000)
