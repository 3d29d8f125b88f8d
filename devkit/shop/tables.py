"""Makes the five tables of a small shop: different sizes, three kinds of keys.

    products      1 %    id
    customers    14 %    id
    orders       25 %    id, every third number, so that there is room between two orders
    order_items  50 %    (order_id, line): two lines for each order
    events       10 %    a text, as applications make them

The server makes the rows, in transactions of 50,000, and the same rows for the same number.
"""

from __future__ import annotations

from collections.abc import Mapping

from pymysql.connections import Connection
from pymysql.cursors import Cursor

from devkit.orders import quote

__all__ = ["KEYS", "ORDER_STEP", "SHARES", "create_shop", "rows_of_tables"]

KEYS: Mapping[str, tuple[str, ...]] = {
    "customers": ("id",), "products": ("id",), "orders": ("id",), "order_items": ("order_id", "line"),
    "events": ("id",),
}  # fmt: skip
SHARES: Mapping[str, int] = {"products": 1, "customers": 14, "orders": 25, "order_items": 50, "events": 10}
"""How many rows of a hundred are in each table."""
ORDER_STEP = 3
_AT_ONCE = 50_000


def create_shop(connection: Connection[Cursor], rows: int, *, database: str = "shop") -> None:
    """Create the database and its tables, with so many rows in all."""
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {quote(database)}")
        cursor.execute(f"USE {quote(database)}")
        for table, count in rows_of_tables(rows).items():
            cursor.execute(f"CREATE TABLE {table} ({_COLUMNS[table]}) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4")
            for first in range(0, count, _AT_ONCE):
                cursor.execute(_fill(table, first, min(first + _AT_ONCE, count), rows))
                connection.commit()


def rows_of_tables(rows: int) -> dict[str, int]:
    """How many rows each table gets; no table is empty."""
    return {table: max(2, rows * share // 100) for table, share in SHARES.items()}


def _fill(table: str, first: int, last: int, rows: int) -> str:
    counts = rows_of_tables(rows)
    values = _VALUES[table].format(
        customers=counts["customers"], products=counts["products"], step=ORDER_STEP
    )  # fmt: skip
    return f"INSERT INTO {table} SELECT {values} FROM {_hashed(first, last)}"


def _hashed(first: int, last: int) -> str:
    """The numbers from `first` on as n, and two hashes of each."""
    digits = "(" + " UNION ALL ".join(f"SELECT {digit} AS d" for digit in range(10)) + ")"
    tables = ", ".join(f"{digits} {name}" for name in "abcef")
    counted = f"SELECT {first} + a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d AS n FROM {tables}"
    hashes = "n, CRC32(CONCAT('row ', n)) AS r, CRC32(CONCAT(n, ' of the shop')) AS q"
    return f"(SELECT {hashes} FROM ({counted}) numbers WHERE n < {last}) hashed ORDER BY n"


_COLUMNS: Mapping[str, str] = {
    "products": "id INT NOT NULL AUTO_INCREMENT PRIMARY KEY, name VARCHAR(60) NOT NULL, price DECIMAL(8,2) NOT NULL, "
    "stock INT NOT NULL, details JSON",
    "customers": "id INT NOT NULL AUTO_INCREMENT PRIMARY KEY, name VARCHAR(60) NOT NULL, email VARCHAR(80), "
    "joined DATE NOT NULL, spent DECIMAL(12,2) NOT NULL",
    "orders": "id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, customer_id INT NOT NULL, "
    "state ENUM('new','paid','shipped','returned') NOT NULL, total DECIMAL(10,2) NOT NULL, created DATETIME(6) NOT NULL",
    "order_items": "order_id BIGINT NOT NULL, line SMALLINT NOT NULL, product_id INT NOT NULL, quantity INT NOT NULL, "
    "price DECIMAL(8,2) NOT NULL, PRIMARY KEY (order_id, line)",
    "events": "id VARCHAR(40) NOT NULL PRIMARY KEY, kind VARCHAR(20) NOT NULL, order_id BIGINT, at TIMESTAMP(3) NOT NULL, "
    "document JSON",
}

_VALUES: Mapping[str, str] = {
    "products": "1 + n, CONCAT('product ', n), r % 100000 / 100, q % 1000, "
    "JSON_OBJECT('colour', ELT(1 + r % 3, 'red', 'grün', '青'), 'weight', q % 5000)",
    "customers": "1 + n, CONCAT('customer ', r), IF(q % 20 = 0, NULL, CONCAT('c', n, '@example.com')), "
    "'2015-01-01' + INTERVAL q % 4000 DAY, r % 1000000 / 100",
    "orders": "1 + n * {step}, 1 + r % {customers}, 1 + q % 4, q % 1000000 / 100, "
    "'2024-01-01' + INTERVAL r % 60000000 SECOND + INTERVAL q % 1000000 MICROSECOND",
    "order_items": "1 + (n DIV 2) * {step}, 1 + n % 2, 1 + r % {products}, 1 + q % 5, r % 100000 / 100",
    "events": "CONCAT('evt-', LPAD(HEX(r), 8, '0'), '-', n), ELT(1 + q % 3, 'seen', 'ordered', 'paid'), "
    "1 + (q % (1 + n)) * {step}, '2024-01-01' + INTERVAL r % 60000000 SECOND, JSON_OBJECT('n', n, 'agent', q % 97)",
}
