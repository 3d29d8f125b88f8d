"""Which statements of the log stop the reader of `shop`.`orders`."""

from __future__ import annotations

import pytest

from consume_upstream.mysql.events import Statement
from consume_upstream.mysql.log_statements import Effect, effect_of

SCHEMA = (
    "ALTER TABLE orders ADD x INT", "alter table shop . Orders add y int", "/* c */ ALTER /*!50000 TABLE */ `orders` DROP x",
    "ALTER TABLE staging RENAME TO orders", "ALTER TABLE p EXCHANGE PARTITION q WITH TABLE orders", "DROP TABLE a, `orders`",
    "DROP TABLE IF EXISTS orders", "DROP DATABASE shop", "DROP SCHEMA IF EXISTS `shop`", "TRUNCATE orders", "TRUNCATE TABLE shop.orders",
    "RENAME TABLE a TO b, orders TO c", "RENAME TABLE staging TO orders", "CREATE TABLE IF NOT EXISTS orders (a INT)",
    "CREATE OR REPLACE TABLE orders (a INT)", "CREATE UNIQUE INDEX i ON orders (a)", "DROP INDEX i ON orders",
    'ALTER TABLE "orders" ADD x INT', "ALTER ONLINE IGNORE TABLE IF EXISTS orders FORCE", "ALTER TABLE orders2 RENAME orders",
    "-- first\nALTER TABLE orders ADD x INT", "# first\nDROP TABLE orders", "ALTER TABLE `shop`.`orders` COMMENT 'a'' -- b'",
)  # fmt: skip
DATA = (
    "INSERT INTO orders VALUES (1)", "INSERT IGNORE orders SET a = 1", "REPLACE INTO `orders` SELECT 1", "UPDATE a JOIN orders SET a.x = 1",
    "DELETE FROM orders", "DELETE a FROM a JOIN shop.orders USING (id)", "LOAD DATA INFILE 'f' INTO TABLE `orders`",
    "WITH a AS (SELECT 1) UPDATE orders SET x = 1",
)  # fmt: skip
NONE = (
    "ALTER TABLE other ADD COLUMN orders INT", "DROP TABLE archive.orders", "DROP DATABASE archive", "CREATE TABLE copy LIKE orders",
    "CREATE TABLE copy AS SELECT * FROM orders", "CREATE TEMPORARY TABLE orders (a INT)", "CREATE VIEW v AS SELECT * FROM orders",
    "CREATE TRIGGER t AFTER INSERT ON orders FOR EACH ROW SET @a = 1", "REPLACE INTO checks.sums SELECT COUNT(*) FROM orders",
    "CALL p('orders')", "GRANT ALL ON shop.orders TO x", "ALTER TABLE orders2 ADD x INT -- orders", "ALTER TABLE x COMMENT = 'orders'",
    "INSERT INTO a SELECT 'x''y\\' orders' FROM b", "ANALYZE TABLE orders", "DROP TABLE", "DROP", "CREATE INDEX", "", "/* only */",
    "ALTER TABLE other ADD x INT /* orders */", "XA COMMIT 'orders'",
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "effect"),
    [(t, Effect.SCHEMA) for t in SCHEMA] + [(t, Effect.DATA) for t in DATA] + [(t, Effect.NONE) for t in NONE],
)
def test_statement_is_understood(text: str, effect: Effect) -> None:
    assert effect_of(Statement("shop", text), "shop", "orders") is effect


@pytest.mark.parametrize(
    ("text", "effect"),
    [
        ("BEGIN", Effect.BEGIN), ("START TRANSACTION", Effect.BEGIN), ("XA START 'a','',1", Effect.BEGIN), ("COMMIT", Effect.COMMIT),
        ("ROLLBACK", Effect.ROLLBACK), ("ROLLBACK TO `s`", Effect.ROLLBACK_TO), ("SAVEPOINT `s`", Effect.SAVEPOINT),
        ("XA END 'a'", Effect.SAVEPOINT),
    ],
)  # fmt: skip
def test_frames_of_transactions_are_told_apart(text: str, effect: Effect) -> None:
    assert effect_of(Statement("shop", text), "shop", "orders") is effect


def test_unqualified_name_belongs_to_the_statements_database() -> None:
    assert effect_of(Statement("archive", "ALTER TABLE orders ADD x INT"), "shop", "orders") is Effect.NONE
    assert effect_of(Statement("archive", "ALTER TABLE shop.orders ADD x INT"), "shop", "orders") is Effect.SCHEMA
