"""Writes to a shop as its customers do: most transactions span several tables. Stops at SIGTERM.

    python -m devkit.shop.writer --port 3306 --database shop --rate 300

Orders are placed, paid, cancelled and given other numbers; prices and customers change, two customers swap numbers, old
events go, and some transactions are rolled back. The same seed on the same shop makes the same transactions, but for
the time of day.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from random import Random

import pymysql
from pymysql.connections import Connection
from pymysql.cursors import Cursor

from devkit.orders import quote

__all__ = ["ShopWriter"]

_CONFLICTS = (1205, 1213, 1412)
"""A lock that was waited for too long, a deadlock, and a table that was changed meanwhile: the transaction is dropped."""


class ShopWriter:
    """Writes transactions over one connection; `write` returns how many rows one has changed."""

    def __init__(self, connection: Connection[Cursor], database: str, seed: int = 7) -> None:
        self._connection, self._random = connection, Random(seed)
        connection.autocommit(False)
        with connection.cursor() as cursor:
            cursor.execute(f"USE {quote(database)}")
        self._customers, self._products = self._numbers("customers"), self._numbers("products")
        self._orders, self._taken = self._look()
        self._highest = max(self._orders)
        self._events = 0
        self.done: Counter[str] = Counter()

    def write(self) -> int:
        """One transaction."""
        name = self._random.choices(list(_MIX), [weight for weight, _ in _MIX.values()])[0]
        try:
            with self._connection.cursor() as cursor:
                changed = _MIX[name][1](self, cursor)
            self._connection.commit()
        except pymysql.err.MySQLError as error:
            if error.args[0] not in _CONFLICTS:
                raise
            self._connection.rollback()
            self._orders, self._taken = self._look()
            return 0
        self.done[name] += 1
        return changed

    def place_order(self, cursor: Cursor) -> int:
        """An order, its lines, the stock, the customer and an event: all five tables."""
        customer, lines = self._random.choice(self._customers), self._random.randint(1, 4)
        changed = self._run(cursor, "INSERT INTO orders (customer_id, state, total, created) "
                            "VALUES (%s, 'new', 0, NOW(6))", customer)  # fmt: skip
        order = self._highest = int(cursor.lastrowid)
        for line in range(1, lines + 1):
            product = self._random.choice(self._products)
            changed += self._run(cursor, "INSERT INTO order_items (order_id, line, product_id, quantity, price) "
                                 "SELECT %s, %s, id, %s, price FROM products WHERE id = %s",
                                 order, line, self._random.randint(1, 5), product)  # fmt: skip
            changed += self._run(cursor, "UPDATE products SET stock = stock - 1 WHERE id = %s", product)
        changed += self._run(cursor, "UPDATE orders SET total = (SELECT COALESCE(SUM(quantity * price), 0) "
                             "FROM order_items WHERE order_id = %s) WHERE id = %s", order, order)  # fmt: skip
        changed += self._run(cursor, "UPDATE customers SET spent = spent + %s WHERE id = %s", lines, customer)
        self._orders.append(order)
        self._taken.add(order)
        return changed + self._event(cursor, "ordered", order)

    def pay(self, cursor: Cursor) -> int:
        order = self._random.choice(self._orders)
        changed = self._run(cursor, "UPDATE orders SET state = %s WHERE id = %s",
                            self._random.choice(("paid", "shipped", "returned")), order)  # fmt: skip
        return changed + self._event(cursor, "paid", order)

    def cancel(self, cursor: Cursor) -> int:
        order = self._orders.pop(self._random.randrange(len(self._orders)))
        self._taken.discard(order)
        changed = self._run(cursor, "DELETE FROM order_items WHERE order_id = %s", order)
        changed += self._run(cursor, "DELETE FROM orders WHERE id = %s", order)
        return changed + self._event(cursor, "cancelled", order)

    def renumber(self, cursor: Cursor) -> int:
        """An order gets another number, and its lines with it: keys change in two tables."""
        place = self._random.randrange(len(self._orders))
        old, new = self._orders[place], self._orders[place] + self._random.choice((-1, 1, 2))
        if new in self._taken or not 0 < new < self._highest:
            return self.pay(cursor)
        self._orders[place] = new
        self._taken.remove(old)
        self._taken.add(new)
        changed = self._run(cursor, "UPDATE orders SET id = %s WHERE id = %s", new, old)
        return changed + self._run(cursor, "UPDATE order_items SET order_id = %s WHERE order_id = %s", new, old)

    def swap_customers(self, cursor: Cursor) -> int:
        one, other = self._random.sample(self._customers, 2)
        # Keys are unique at every moment, so one of the two steps aside.
        steps = ((one, -one), (other, one), (-one, other))
        return sum(self._run(cursor, "UPDATE customers SET id = %s WHERE id = %s", new, old) for old, new in steps)

    def reprice(self, cursor: Cursor) -> int:
        first = self._random.choice(self._products)
        return self._run(cursor, "UPDATE products SET price = price + 0.01 WHERE id BETWEEN %s AND %s",
                         first, first + self._random.randint(0, 20))  # fmt: skip

    def forget_events(self, cursor: Cursor) -> int:
        prefix = f"evt-{self._random.randrange(16**3):03X}%"
        return self._run(cursor, "DELETE FROM events WHERE id LIKE %s LIMIT 5", prefix)

    def roll_back(self, cursor: Cursor) -> int:
        """An order that comes to nothing."""
        changed = self.place_order(cursor)
        self._connection.rollback()
        self._taken.remove(self._orders.pop())
        return changed

    def _event(self, cursor: Cursor, kind: str, order: int) -> int:
        self._events += 1
        identity = f"evt-{self._random.randrange(16**8):08X}-w{self._events}"
        return self._run(cursor, "INSERT INTO events (id, kind, order_id, at, document) VALUES (%s, %s, %s, NOW(3), %s)",
                         identity, kind, order, json.dumps({"note": "größe 名前 😀"}))  # fmt: skip

    def _look(self) -> tuple[list[int], set[int]]:
        orders = self._numbers("orders")
        return orders, set(orders)

    def _numbers(self, table: str) -> list[int]:
        with self._connection.cursor() as cursor:
            cursor.execute(f"SELECT id FROM {quote(table)} ORDER BY id")
            found = [int(row[0]) for row in cursor.fetchall()]
        self._connection.rollback()
        return found

    @staticmethod
    def _run(cursor: Cursor, statement: str, *values: object) -> int:
        return int(cursor.execute(statement, values))


_MIX: Mapping[str, tuple[int, Callable[[ShopWriter, Cursor], int]]] = {
    "orders placed": (30, ShopWriter.place_order),
    "orders paid": (30, ShopWriter.pay),
    "orders cancelled": (12, ShopWriter.cancel),
    "orders renumbered": (8, ShopWriter.renumber),
    "customers swapped": (5, ShopWriter.swap_customers),
    "prices changed": (5, ShopWriter.reprice),
    "events forgotten": (5, ShopWriter.forget_events),
    "transactions rolled back": (5, ShopWriter.roll_back),
}


def write_until(writer: ShopWriter, rate: float, stopped: threading.Event) -> int:
    """Change so many rows a second until the event is set; how many rows were changed."""
    began, changed = time.monotonic(), 0
    while not stopped.wait(max(0.0, began + changed / rate - time.monotonic())):
        changed += writer.write()
    return changed


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m devkit.shop.writer", description="live traffic on a small shop")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--database", default="shop")
    parser.add_argument("--rate", type=float, default=300, help="changed rows per second")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args(arguments)
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    signal.signal(signal.SIGINT, lambda *_: stopped.set())
    connection = pymysql.connect(host="127.0.0.1", port=options.port, user="root", charset="utf8mb4")
    writer = ShopWriter(connection, options.database, options.seed)
    changed = write_until(writer, options.rate, stopped)
    connection.close()
    counts = ", ".join(f"{count:,} {name}" for name, count in sorted(writer.done.items()))
    print(f"{changed:,} rows in {sum(writer.done.values()):,} transactions: {counts}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
