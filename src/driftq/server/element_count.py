"""Refuses JSON bodies with too many elements, before they are decoded.

A body of 16 MiB may be an array of eight million numbers. To decode it would hold the event loop for a third of a
second and take half a gigabyte, only to refuse it for its number of elements. A body with few commas has few elements,
which is seen at once: that is every usual body. The elements of others are counted first, in slices, so that other
requests run in between, and never further than the limit.

    "[" or "{"   a container opens     ","   the innermost container has one more element
    "]" or "}"   it closes             '"'   a text, which is passed over

Whether the body is JSON is left to the decoder.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator

from driftq.server.http import Answer, BadRequest, Reply, Request, reply_of
from driftq.server.slices import next_slice

ELEMENTS_MAX = 100_000  # of one array or object
COMMAS_UNCOUNTED = 300_000  # a body with fewer is decoded at once: in 30 ms, whatever it is
NESTED_MAX = 2_000
_LOOKS = 512  # tokens between two places where a slice may end
_TOKEN = re.compile(rb'[\[\]{},"]')
_TOKEN_BELOW = re.compile(rb'[\[\]{}"]')  # below the levels whose elements are counted


def may_have_too_many(body: bytes) -> bool:
    """Whether the elements of a body have to be counted before it is decoded."""
    return len(body) > COMMAS_UNCOUNTED and body.lstrip()[:1] in (b"[", b"{") and body.count(b",") > COMMAS_UNCOUNTED


async def check_elements(
    body: bytes, elements_max: int = ELEMENTS_MAX, depth_max: int = NESTED_MAX, status: int = 400
) -> None:
    """Raises `BadRequest` if a container of the first `depth_max` levels has more elements."""
    looks = _looks(body, elements_max, depth_max)
    while (too_many := next_slice(looks)) is not None:
        if too_many:
            raise BadRequest(f"an array or object in this body has more than {elements_max} elements", status)
        await asyncio.sleep(0)


def bounded(handler: Callable[..., Answer]) -> Callable[..., Answer]:
    """A handler of JSON bodies that gets none with too many elements."""

    def call(request: Request, *values: str) -> Answer:
        if may_have_too_many(request.body):
            return call_after_check(request, *values)
        return handler(request, *values)

    async def call_after_check(request: Request, *values: str) -> Reply:
        await check_elements(request.body)
        return await reply_of(handler(request, *values))

    return call


def _looks(body: bytes, elements_max: int, depth_max: int) -> Iterator[bool | None]:
    """True as soon as a container has too many elements; None where a slice may end."""
    open_elements: list[int] = []  # of each container that is open
    at = tokens = 0
    in_text = False
    while True:
        tokens += 1
        if tokens % _LOOKS == 0:
            yield None
        if in_text:
            end = body.find(b'"', at)
            if end < 0:
                return
            before, at = body[at:end], end + 1
            in_text = (len(before) - len(before.rstrip(b"\\"))) % 2 == 1  # the quote is escaped
            continue
        token = (_TOKEN if len(open_elements) <= depth_max else _TOKEN_BELOW).search(body, at)
        if token is None:
            return
        kind, at = token[0], token.end()
        if kind == b'"':
            in_text = True
        elif kind == b",":
            if open_elements:
                open_elements[-1] += 1
                if open_elements[-1] > elements_max:
                    yield True
                    return
        elif kind in b"[{":
            open_elements.append(1)
            if len(open_elements) > NESTED_MAX:
                return  # the decoder refuses it
        elif open_elements:
            open_elements.pop()
