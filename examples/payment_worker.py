"""Payments that happen once, although messages can be delivered twice and workers can die at any line.

    driftq serve --memory
    python examples/payment_worker.py

Two kinds of effect: a charge at a gateway that knows idempotency keys, and a booking in a database of our own. The
first is guarded by the broker (`message.effect`), the second by a table in the same transaction (`effects.sql`).
"""

from __future__ import annotations

import sqlite3
import threading

import driftq
from driftq import effects


class Gateway:
    """An external payment service. It refuses a key that it has seen before."""

    def __init__(self) -> None:
        self.charges: dict[str, int] = {}

    def charge(self, key: str, cents: int) -> str:
        if key in self.charges:
            raise AssertionError(f"{key} was charged twice")
        self.charges[key] = cents
        return f"receipt-{len(self.charges)}"


gateway = Gateway()
books = sqlite3.connect(":memory:", check_same_thread=False)
books_lock = threading.Lock()  # one connection, several threads


@driftq.worker("payments", group="gateway", concurrency=4)
def charge(message: driftq.Message) -> None:
    order = message.json()
    if order["cents"] <= 0:
        raise driftq.Reject("nothing to charge")  # a dead letter: trying again cannot help
    with message.effect() as effect:
        if effect.fresh:
            effect.result = gateway.charge(effect.key, order["cents"])
            effect.send("receipts", {"order": order["id"], "receipt": effect.result})
    # Leaving the block has committed the effect, sent the receipt and acked the payment: one write.


@driftq.worker("receipts", group="books")
def book(message: driftq.Message) -> None:
    with books_lock, effects.sql(books).once(message) as fresh:
        if fresh:
            receipt = message.json()
            books.execute("INSERT INTO bookings VALUES (?, ?)", (receipt["order"], receipt["receipt"]))


def main() -> None:
    books.execute("CREATE TABLE bookings (order_id TEXT, receipt TEXT)")
    effects.sql(books).create()
    with driftq.connect() as broker:
        broker.topics.create("payments", partitions=4)
        broker.topics.create("receipts")
        for number in range(10):
            order = {"id": f"order-{number}", "cents": 100 * number}
            for _ in range(2):  # the shop sends everything twice, to be sure
                broker.send("payments", order, key=order["id"], idempotency_key=order["id"])
        counts = driftq.run(charge, book, broker=broker, drain=True)
        counts += driftq.run(book, broker=broker, drain=True)
        booked = books.execute("SELECT count(*) FROM bookings").fetchone()[0]
        print(f"charged {len(gateway.charges)}, booked {booked}, rejected {counts[0].rejected}")


if __name__ == "__main__":
    main()
