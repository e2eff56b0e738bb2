"""Work that is done outside of requests."""

from django.db import connections

import driftq
from shop.models import Order


class CloseConnections(driftq.Middleware):
    """As Django does after a request: the threads of a worker keep no connection that has gone bad."""

    def before(self, message: driftq.Message) -> None:
        connections.close_all()

    def after(self, message: driftq.Message, result: object) -> None:
        connections.close_all()


@driftq.task("shop.charge.v1", topic="shop.tasks", group="shop", middleware=[CloseConnections()])
def charge(number: int) -> None:
    """Setting a field to a value may be repeated; for what may not, see the guide on effects."""
    Order.objects.filter(number=number).update(is_paid=True)
    print(f"charged {number}", flush=True)
