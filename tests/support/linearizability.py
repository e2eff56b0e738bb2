"""Decides whether a history of calls is linearizable (the algorithm of Wing and Gong, with Lowe's cache).

A history is a list of calls, each with the time it was invoked, the time it returned, the request and the response.
It is linearizable if some order of all calls agrees with every response and never puts a call before one that had
returned when it was invoked. A model decides what a response means: anything hashable with `after(request, response)`.

The time is exponential in the number of concurrent calls and linear otherwise: use it for many short histories.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

A = TypeVar("A")
T = TypeVar("T")


class Model(Hashable, Protocol):
    """A state of the model."""

    def after(self, request: Any, response: Any) -> Model | None:
        """The state after a call with this response; None if this state would have responded otherwise."""


class Call(NamedTuple, Generic[A, T]):
    """`invoked` and `returned` are times of one clock; a call that returned at t comes before one invoked after t."""

    invoked: int
    returned: int
    request: A
    response: T


class _Link:
    """One end of a call, in a list from which calls are taken while they are tried."""

    __slots__ = ("call", "match", "next", "number", "prev")

    def __init__(self, number: int, call: Call[Any, Any]) -> None:
        self.number = number
        self.call = call
        self.match: _Link | None = None  # the return of a call; None at the return itself
        self.prev: _Link | None = None
        self.next: _Link | None = None


def _linked(calls: Sequence[Call[Any, Any]]) -> _Link:
    """All ends in order of time. At one moment calls are invoked before others return, so they count as concurrent."""
    ends: list[tuple[int, int, int, _Link]] = []
    for number, call in enumerate(calls):
        invoked, returned = _Link(number, call), _Link(number, call)
        invoked.match = returned
        ends.append((call.invoked, 0, number, invoked))
        ends.append((call.returned, 1, number, returned))
    ends.sort(key=lambda end: end[:3])
    head = last = _Link(-1, calls[0])
    for *_, link in ends:
        last.next, link.prev = link, last
        last = link
    return head


def _lift(link: _Link) -> None:
    for end in (link, link.match):
        assert end is not None
        assert end.prev is not None
        end.prev.next = end.next
        if end.next is not None:
            end.next.prev = end.prev


def _unlift(link: _Link) -> None:
    for end in (link.match, link):
        assert end is not None
        assert end.prev is not None
        end.prev.next = end
        if end.next is not None:
            end.next.prev = end


def is_linearizable(calls: Sequence[Call[Any, Any]], begin: Model) -> bool:
    """Whether some order of all calls, starting from a state, explains every response."""
    if not calls:
        return True
    head = _linked(calls)
    state: Model = begin
    done = 0  # the calls already placed, as bits
    tried: set[tuple[int, Model]] = set()  # (calls placed, state reached): never twice
    path: list[tuple[_Link, Model]] = []
    link = head.next
    while head.next is not None:
        assert link is not None
        if link.match is not None:
            reached = state.after(link.call.request, link.call.response)
            key = (done | 1 << link.number, reached)
            if reached is not None and key not in tried:
                tried.add(key)  # type: ignore[arg-type]
                path.append((link, state))
                state, done = reached, key[0]
                _lift(link)
                link = head.next
            else:
                link = link.next
            continue
        # A call returned and could not be placed: remove the last placed call and try the next one instead.
        if not path:
            return False
        link, state = path.pop()
        done &= ~(1 << link.number)
        _unlift(link)
        link = link.next
    return True
