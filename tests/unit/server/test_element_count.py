"""The elements of JSON bodies are counted before they are decoded."""

from __future__ import annotations

import asyncio
import json

import pytest

from driftq.server.element_count import NESTED_MAX, check_elements
from driftq.server.http import BadRequest


def elements(body: bytes, elements_max: int, depth_max: int = NESTED_MAX) -> None:
    asyncio.run(check_elements(body, elements_max, depth_max))


@pytest.mark.parametrize(
    "body",
    [
        b"[1,2,3]",
        b'{"a":1,"b":2,"c":3}',
        b'["a,b,c,d","[,,,,","\\",4,5,6"]',
        b'["\\\\",2,3]',
        b"[[1,2,3],[1,2,3],[1,2,3]]",
        b"[1,2,3]\n[1,2,3]\n",
        b"",
        b"],,,,",
        b'["never ends,,,,',
        b"[" * 100_000,
    ],
)
def test_a_body_within_the_limit_is_passed(body):
    elements(body, 3)


@pytest.mark.parametrize(
    "body",
    [
        b"[1,2,3,4]",
        b'{"a":1,"b":2,"c":3,"d":4}',
        b'["\\\\",2,3,4]',
        b'{"a":{"b":[[],[1,2,3,4]]}}',
        b'[{"a":1}, {"a":1}, {"a":1}, {"a":1}]',
    ],
)
def test_a_container_with_too_many_elements_is_refused(body):
    json.loads(body)
    with pytest.raises(BadRequest) as refused:
        elements(body, 3)
    assert refused.value.status == 400


def test_elements_below_the_depth_are_not_counted():
    elements(b"[[1,2,3,4],[1,2,3,4]]", 3, 1)
    with pytest.raises(BadRequest):
        elements(b"[[1,2,3,4],[],[],[]]", 3, 1)
