"""Starts the server of the benchmarks and fills its tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.process_tree import process_cpu_seconds
from devkit.mysql import MariaDbServer
from devkit.orders import create_orders_table

DATABASE = "bench"
SEED = 1
_LEAST_POOL_BYTES = 1024**3
_VALUES = "big, name, amount, created, doc, state, score, flag, day"
_MADE_ROWS = 500_000
_ROW_BYTES = 160
_CLUSTERS = 20
_CLUSTER_STEP = 100_000_000
_LONE_KEY = 2_147_483_647


@dataclass(frozen=True, slots=True)
class Source:
    """A running server and what is asked of it."""

    server: MariaDbServer

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def cpu_seconds(self) -> float:
        return process_cpu_seconds(self.server.pid)

    @property
    def version(self) -> str:
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT VERSION()")
            found = cursor.fetchone()
        return str(found[0]) if found else ""

    def create_table(self, name: str, rows: int, *, key_step: int = 1) -> None:
        """An orders table of `rows` rows with fresh statistics."""
        with self.server.connect() as connection:
            create_orders_table(connection, rows, SEED, database=DATABASE, table=name, key_step=key_step)
        self._analyse(name)

    def create_large_table(self, name: str, rows: int) -> None:
        """An orders table of `rows` rows whose values repeat after the first 500,000, not in the log.

        Copying rows is faster than making them. Dictionaries and pages of Parquet are far smaller than that distance,
        so the repetition does not make files smaller.
        """
        made = min(rows, _MADE_ROWS)
        with self.server.connect(DATABASE) as connection, connection.cursor() as cursor:
            cursor.execute("SET sql_log_bin = 0")
            create_orders_table(connection, made, SEED, database=DATABASE, table=name)
            for first in range(made, rows, _MADE_ROWS):
                copied = min(_MADE_ROWS, rows - first)
                cursor.execute(f"INSERT INTO {name} SELECT id + {first}, {_VALUES} FROM {name} WHERE id <= {copied}")
        self._analyse(name)

    def create_gap_table(self, name: str, like: str, rows: int) -> None:
        """The rows of `like` in 20 dense clusters 100,000,000 apart, and one lone row at the type's maximum."""
        cluster = max(1, rows // _CLUSTERS)
        shifted = f"id + ((id - 1) DIV {cluster}) * {_CLUSTER_STEP - cluster}"
        self.execute(
            f"CREATE TABLE {name} LIKE {like}",
            f"INSERT INTO {name} SELECT {shifted}, {_VALUES} FROM {like} WHERE id < {rows}",
            f"INSERT INTO {name} SELECT {_LONE_KEY}, {_VALUES} FROM {like} WHERE id = {rows}",
        )
        self._analyse(name)

    def create_keyed_table(self, name: str, like: str, key: str, columns: str) -> None:
        """The rows of `like` with another primary key: `columns` declares it, and `key` says what it is for each row."""
        self.execute(
            f"CREATE TABLE {name} ({columns}, amount DECIMAL(12, 4)) CHARACTER SET utf8mb4",
            f"INSERT INTO {name} SELECT {key}, amount FROM {like}",
        )
        self.execute(f"ANALYZE TABLE {name}", f"SELECT SUM(amount) FROM {name}")

    def index_rows_read(self) -> int:
        """How many rows of its indexes the server has walked over so far."""
        (read,) = self.row(
            "SELECT SUM(VARIABLE_VALUE) FROM information_schema.GLOBAL_STATUS "
            "WHERE VARIABLE_NAME IN ('HANDLER_READ_NEXT', 'HANDLER_READ_RND_NEXT', 'HANDLER_READ_PREV')"
        )
        return read

    def split_table(self, name: str, like: str, first: int, rows: int) -> None:
        """The `rows` rows of `like` after the key `first`, with keys from 1 on."""
        chosen = f"SELECT id - {first}, {_VALUES} FROM {like} WHERE id > {first} AND id <= {first + rows}"
        self.execute(f"CREATE TABLE {name} LIKE {like}", f"INSERT INTO {name} {chosen}")
        self._analyse(name)

    def insert_copies(self, name: str, rows: int, *, each: int = 50_000) -> None:
        """Append copies of the first `rows` rows, in transactions of `each`, after the largest key."""
        chosen = f"SELECT {_VALUES} FROM {name} WHERE id > {{}} AND id <= {{}}"
        parts = [(first, min(first + each, rows)) for first in range(0, rows, each)]
        self.execute(*(f"INSERT INTO {name} ({_VALUES}) {chosen.format(*part)}" for part in parts))

    def change_rows(self, name: str, rows: int, *, each: int) -> int:
        """Update four of five of the first `rows` rows, delete the fifth, and insert a copy of one of five.

        Each kind is done in transactions over `each` keys; how many rows were changed.
        """
        changed = 0
        with self.server.connect(DATABASE) as connection, connection.cursor() as cursor:
            for first in range(0, rows, each):
                of = f"id > {first} AND id <= {min(first + each, rows)} AND id % 5"
                changed += cursor.execute(f"INSERT INTO {name} ({_VALUES}) SELECT {_VALUES} FROM {name} WHERE {of} = 1")
                changed += cursor.execute(f"UPDATE {name} SET amount = amount + 1, name = day WHERE {of} < 4")
                changed += cursor.execute(f"DELETE FROM {name} WHERE {of} = 4")
        return changed

    def key_range(self, name: str) -> tuple[int, int]:
        low, high = self.row(f"SELECT MIN(id), MAX(id) FROM {name}")
        return low, high

    def count_and_sums(self, name: str) -> tuple[int, int, int]:
        """How many rows there are, the sum of their keys, and that of their amounts in ten-thousandths."""
        rows, keys, amounts = self.row(f"SELECT COUNT(*), SUM(id), SUM(amount) * 10000 FROM {name}")
        return rows, keys, amounts

    def execute(self, *statements: str) -> None:
        with self.server.connect(DATABASE) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def row(self, query: str) -> tuple[int, ...]:
        with self.server.connect(DATABASE) as connection, connection.cursor() as cursor:
            cursor.execute(query)
            found = cursor.fetchone()
        return tuple(int(value) for value in found or ())

    def _analyse(self, name: str) -> None:
        self.execute(f"ANALYZE TABLE {name}", f"SELECT SUM(LENGTH(doc)) FROM {name}")


@contextmanager
def private_source(rows: int) -> Iterator[Source]:
    """A MariaDB of this run's own, gone at the end, with a table of so many rows in memory: nobody waits for a disk."""
    pool = max(_LEAST_POOL_BYTES, rows * _ROW_BYTES)
    with MariaDbServer({"innodb-buffer-pool-size": str(pool), "innodb-log-file-size": "512M"}) as server:
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {DATABASE}")
        yield Source(server)
