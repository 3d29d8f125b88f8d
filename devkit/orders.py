"""Makes the table that live traffic runs on: its shape, its values, and its first rows.

`WorkloadTable` describes a table with one integer key; the values of its other columns are made by kind from a seeded
generator, so that a workload can be repeated. `create_orders_table` makes the table of the benchmarks.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from random import Random

from pymysql.connections import Connection
from pymysql.cursors import Cursor

SqlValue = str | int | float | Decimal | datetime.date | datetime.datetime | None

STATES = ("new", "paid", "shipped", "returned")
FILL_ROWS = 50_000
EPOCH = datetime.datetime(2020, 1, 1)


class ValueKind(StrEnum):
    """How a column's values are made."""

    BIG_UNSIGNED = "big_unsigned"
    NAME = "name"
    AMOUNT = "amount"
    DATETIME = "datetime"
    JSON = "json"
    STATE = "state"
    DOUBLE = "double"
    TINY = "tiny"
    DATE = "date"


@dataclass(frozen=True, slots=True)
class ValueColumn:
    name: str
    kind: ValueKind
    nullable: bool = False


@dataclass(frozen=True, slots=True)
class WorkloadTable:
    """A table with one integer key column and columns whose values are made by kind."""

    database: str
    table: str
    key: str
    values: tuple[ValueColumn, ...]
    auto_increment: bool = True
    """Rows at the tail leave the key to the server; otherwise the writer counts on."""

    @property
    def quoted(self) -> str:
        return f"{quote(self.database)}.{quote(self.table)}"


def orders_table(database: str, table: str = "orders") -> WorkloadTable:
    """The description of what `create_orders_table` makes."""
    columns = (
        ValueColumn("big", ValueKind.BIG_UNSIGNED),
        ValueColumn("name", ValueKind.NAME, nullable=True),
        ValueColumn("amount", ValueKind.AMOUNT),
        ValueColumn("created", ValueKind.DATETIME),
        ValueColumn("doc", ValueKind.JSON, nullable=True),
        ValueColumn("state", ValueKind.STATE),
        ValueColumn("score", ValueKind.DOUBLE, nullable=True),
        ValueColumn("flag", ValueKind.TINY),
        ValueColumn("day", ValueKind.DATE, nullable=True),
    )
    return WorkloadTable(database, table, "id", columns)


def create_orders_table(
    connection: Connection[Cursor], rows: int, seed: int, *, database: str, table: str = "orders", key_step: int = 1
) -> WorkloadTable:
    """Create the table and fill it with `rows` rows, the same for the same seed.

    Keys are 1, 1 + key_step, …: a step above 1 leaves gaps for rows that come later. The rows are made by the server,
    in transactions of 50,000.
    """
    described = orders_table(database, table)
    with connection.cursor() as cursor:
        cursor.execute(_CREATE.format(table=described.quoted))
        for first in range(0, rows, FILL_ROWS):
            last = min(first + FILL_ROWS, rows)
            cursor.execute(_FILL.format(table=described.quoted, step=key_step, first=first, last=last, seed=seed))
            connection.commit()
    return described


def make_value(column: ValueColumn, random: Random) -> SqlValue:
    if column.nullable and random.random() < 0.05:
        return None
    return _MAKERS[column.kind](random)


def quote(identifier: str) -> str:
    return "`" + identifier.replace("`", "``") + "`"


def _name(random: Random) -> str:
    return random.choice(("ada", "grace", "größe", "名前", "emoji 😀", "o'neil", "back\\slash", "")) + str(
        random.randrange(10**6)
    )


def _document(random: Random) -> str:
    return json.dumps({"n": random.randrange(10**9), "tags": ["a", random.choice(STATES)], "ok": random.random() < 0.5})


_MAKERS: dict[ValueKind, Callable[[Random], SqlValue]] = {
    # Half of them above the signed range.
    ValueKind.BIG_UNSIGNED: lambda random: random.randrange(2**64),
    ValueKind.NAME: _name,
    ValueKind.AMOUNT: lambda random: Decimal(random.randrange(-(10**17), 10**17)).scaleb(-4),
    ValueKind.DATETIME: lambda random: EPOCH + datetime.timedelta(microseconds=random.randrange(2 * 10**14)),
    ValueKind.JSON: _document,
    ValueKind.STATE: lambda random: random.choice(STATES),
    ValueKind.DOUBLE: lambda random: random.uniform(-1e6, 1e6),
    ValueKind.TINY: lambda random: random.randrange(-128, 128),
    ValueKind.DATE: lambda random: EPOCH.date() + datetime.timedelta(days=random.randrange(4000)),
}

_CREATE = """
CREATE TABLE {table} (
    id INT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    big BIGINT UNSIGNED NOT NULL,
    name VARCHAR(64),
    amount DECIMAL(18,4) NOT NULL,
    created DATETIME(6) NOT NULL,
    doc JSON,
    state ENUM('new','paid','shipped','returned') NOT NULL,
    score DOUBLE,
    flag TINYINT NOT NULL,
    day DATE
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4
"""

_DIGITS = "(" + " UNION ALL ".join(f"SELECT {digit} AS d" for digit in range(10)) + ")"

# Five digits count to 99,999, which covers one transaction's rows; r and q are hashes of seed and row number.
_FILL = (
    """
INSERT INTO {table} (id, big, name, amount, created, doc, state, score, flag, day)
SELECT 1 + n * {step}, r * 4294967291 + q, CONCAT('name ', r), (CAST(r AS SIGNED) - 2147483648) / 10000,
    '2020-01-01' + INTERVAL r SECOND + INTERVAL q % 1000000 MICROSECOND,
    JSON_OBJECT('n', q, 'tag', CONCAT('t', r % 97)), 1 + q % 4, r / 7e0, CAST(q % 256 AS SIGNED) - 128,
    '2020-01-01' + INTERVAL q % 4000 DAY
FROM (
    SELECT n, CRC32(CONCAT('{seed}:', n)) AS r, CRC32(CONCAT(n, '/{seed}')) AS q
    FROM (
        SELECT {first} + a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d AS n
        FROM """
    + ", ".join(f"{_DIGITS} {name}" for name in "abcef")
    + """
    ) numbers WHERE n < {last}
) hashed ORDER BY n
"""
)
