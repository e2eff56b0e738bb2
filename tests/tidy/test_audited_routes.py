"""Every route that changes something says in the route table what its calls are in the audit."""

from __future__ import annotations

import asyncio

from driftq.server.access.identity import PUBLIC
from driftq.server.app import DATA, RouteSpec
from tests.support.handler_fixture import handler_fixture


def silent(routes: tuple[RouteSpec, ...]) -> list[str]:
    """The routes that change something and do not say what they are."""
    return [
        f"{route.method} {route.path}"
        for route in routes
        if route.method not in ("GET", "HEAD") and route.right is not PUBLIC and not route.audit
    ]


def route_table() -> tuple[RouteSpec, ...]:
    async def table() -> tuple[RouteSpec, ...]:
        async with handler_fixture() as at:
            return at.app.routes

    return asyncio.run(table())


def test_every_route_that_changes_something_says_what_it_is_in_the_audit() -> None:
    routes = route_table()
    assert not silent(routes), "name the action, or DATA if its calls are work"
    assert not [route.path for route in routes if isinstance(route.audit, tuple) and DATA in route.audit]


def test_a_route_that_says_nothing_is_noticed() -> None:
    route = next(route for route in route_table() if route.method == "DELETE")
    assert silent((route._replace(audit=""),)) == [f"DELETE {route.path}"]
