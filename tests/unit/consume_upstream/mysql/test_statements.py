"""Statements of the log that may change `shop`.`orders` stop its reader, and no others do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from consume_upstream.mysql.binlog.events import HEADER_BYTES, Statement, read_query
from consume_upstream.mysql.statements.effect import Effect, effect_of, text_of
from vnode_backfill.words.errors import LogFormatError

LATIN1, GBK, SJIS, BIG5, UTF8 = 8, 28, 13, 1, 255

SCHEMA = (
    "ALTER TABLE orders ADD x INT", "alter table shop . Orders add y int",
    "/* c */ ALTER /*!50000 TABLE */ `orders` DROP x",
    "ALTER TABLE staging RENAME TO orders", "ALTER TABLE p EXCHANGE PARTITION q WITH TABLE orders",
    "DROP TABLE a, `orders`",
    "DROP TABLE IF EXISTS orders", "DROP DATABASE shop", "DROP SCHEMA IF EXISTS `shop`", "TRUNCATE orders",
    "TRUNCATE TABLE shop.orders",
    "RENAME TABLE a TO b, orders TO c", "RENAME TABLE staging TO orders", "CREATE TABLE IF NOT EXISTS orders (a INT)",
    "CREATE OR REPLACE TABLE orders (a INT)", "CREATE UNIQUE INDEX i ON orders (a)", "DROP INDEX i ON orders",
    'ALTER TABLE "orders" ADD x INT', "ALTER ONLINE IGNORE TABLE IF EXISTS orders FORCE",
    "ALTER TABLE orders2 RENAME orders",
    "-- first\nALTER TABLE orders ADD x INT", "# first\nDROP TABLE orders",
    "ALTER TABLE `shop`.`orders` COMMENT 'a'' -- b'",
    "SET STATEMENT max_statement_time=1 FOR TRUNCATE orders",
    "SET STATEMENT a=1, b=(SELECT 2 FOR UPDATE) FOR RENAME TABLE orders TO x",
    "SET STATEMENT a=1 FOR SET STATEMENT b=2 FOR CREATE OR REPLACE TABLE orders (a INT)", "/*M! TRUNCATE orders */",
    "/*!50000TRUNCATE orders*/", "CREATE OR REPLACE DATABASE shop", "CREATE OR REPLACE SCHEMA IF NOT EXISTS `Shop`",
    "TRUNCATE .orders",
    "TRUNCATE [orders]", "CREATE OR REPLACE SEQUENCE orders", "RENAME TABLE archive.x TO shop.orders",
    "DROP TABLE a, shop.orders, b",
    "ALTER TABLE p CONVERT PARTITION q TO TABLE orders", "ALTER TABLE p CONVERT TABLE orders TO PARTITION q",
    "ALTER TABLE o RENAME = orders",
    "ALTER TABLE o RENAME AS orders, ADD x INT", "RENAME TABLE x TO 'a\\\\', orders TO y",
    "ALTER TABLE x COMMENT 'a\\', RENAME TO orders -- '", "DROP TEMPORARY TABLE a */ orders", "TRUNCATE orders WAIT 5",
    "--\x01\nTRUNCATE orders", "ALTER SOMETHING NEW ON shop", "DROP SOMETHING NEW orders",
    "ALTER DATABASE `#mysql50#shop` UPGRADE DATA DIRECTORY NAME",
)  # fmt: skip
DATA = (
    "INSERT INTO orders VALUES (1)", "INSERT IGNORE orders SET a = 1", "REPLACE INTO `orders` SELECT 1",
    "UPDATE a JOIN orders SET a.x = 1",
    "DELETE FROM orders", "DELETE a FROM a JOIN shop.orders USING (id)", "LOAD DATA INFILE 'f' INTO TABLE `orders`",
    "WITH a AS (SELECT 1) UPDATE orders SET x = 1", "INSERT INTO with_trigger VALUES (1)", "UPDATE archive.v SET a = 1",
    "SELECT `f`(1)",
    "DO f()", "CALL p()", "REPLACE INTO checks.sums SELECT COUNT(*) FROM orders", "CREATE TABLE archive.a SELECT f(1)",
    "CREATE TEMPORARY TABLE a AS VALUES (f(1))", "ANALYZE DELETE FROM a", "ANALYZE FORMAT=JSON UPDATE a SET b = 1",
    "SET STATEMENT max_statement_time=1 FOR INSERT INTO a VALUES (1)", "INSERT INTO mysql.x VALUES (shop.f(1))",
    "BEGIN NOT ATOMIC DELETE FROM a; END",
    "INSERT INTO mysql.x SELECT f FROM v", "UPDATE mysql.x, shop.a SET shop.a.b = 1",
    "DELETE FROM mysql.x USING mysql.x JOIN shop.v",
    "COMMIT AND orders", "BINLOG 'x'",
)  # fmt: skip
NONE = (
    "ALTER TABLE other ADD COLUMN orders INT", "DROP TABLE archive.orders", "DROP DATABASE archive",
    "CREATE TABLE copy LIKE orders",
    "CREATE TEMPORARY TABLE orders (a INT)", "CREATE VIEW v AS SELECT * FROM orders",
    "CREATE TRIGGER t AFTER INSERT ON orders FOR EACH ROW SET @a = 1", "CREATE TABLE copy (a INT) START TRANSACTION",
    "GRANT ALL ON shop.orders TO x", "ALTER TABLE orders2 ADD x INT -- orders", "ALTER TABLE x COMMENT = 'orders'",
    "ALTER TABLE a COMMENT 'x''y\\' orders'", "ANALYZE TABLE orders", "OPTIMIZE LOCAL TABLE orders", "", "/* only */",
    "DROP TABLE", "DROP",
    "CREATE INDEX", "ALTER TABLE other ADD x INT /* orders */", "XA COMMIT 'orders'",
    "CREATE DATABASE IF NOT EXISTS shop",
    "ALTER DATABASE shop CHARACTER SET utf8mb4", "ALTER TABLE a RENAME COLUMN b TO orders",
    "ALTER TABLE a RENAME KEY b TO orders",
    "SET PASSWORD FOR 'orders'@'shop' = ''", "TRUNCATE /* 99999 orders */ a",
    "SET STATEMENT a=1 FOR TRUNCATE archive.orders",
    "CREATE DEFINER=`root`@`%` FUNCTION `shop`.`f`() RETURNS int DELETE FROM orders", "DROP TEMPORARY TABLE orders",
    "CREATE ALGORITHM=UNDEFINED DEFINER=view@localhost SQL SECURITY INVOKER VIEW `shop`.`v` AS SELECT * FROM orders",
    "CREATE DEFINER=CURRENT_USER() EVENT e ON SCHEDULE EVERY 1 DAY DO TRUNCATE orders", "CREATE USER shop",
    "DROP ROLE orders",
    "insert into mysql.rds_heartbeat2(id, value) values (1,1483041015005) ON DUPLICATE KEY UPDATE value = 1483041015005",
    "DELETE FROM mysql.rds_sysinfo where name = 'x'", "CREATE SPATIAL REFERENCE SYSTEM 4120 NAME 'orders'",
    "FLUSH TABLES orders",
    "TRUNCATE TABLE `shop`.`m` /* generated by server, implicitly emptying in-memory table */",
    "RENAME USER orders TO shop",
    "CREATE TABLE a (b INT) PARTITION BY LIST (b) (PARTITION p VALUES IN (1))", "# Dummy event", "DROP TRIGGER orders",
)  # fmt: skip


def effect(text: str, database: str = "shop") -> Effect:
    return effect_of(Statement(database, text.encode(), UTF8), "shop", "orders")


@pytest.mark.parametrize(
    ("text", "expected"),
    [(t, Effect.SCHEMA) for t in SCHEMA] + [(t, Effect.DATA) for t in DATA] + [(t, Effect.NONE) for t in NONE],
)
def test_statement_is_understood(text: str, expected: Effect) -> None:
    assert effect(text) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("BEGIN", Effect.BEGIN), ("START TRANSACTION", Effect.BEGIN), ("XA START 'a','',1", Effect.BEGIN),
        ("COMMIT", Effect.COMMIT),
        ("ROLLBACK", Effect.ROLLBACK), ("ROLLBACK TO `s`", Effect.ROLLBACK_TO), ("SAVEPOINT `s`", Effect.SAVEPOINT),
        ("XA END 'a'", Effect.SAVEPOINT), ("/* a */ BEGIN", Effect.BEGIN),
        ("ROLLBACK TO SAVEPOINT s", Effect.ROLLBACK_TO),
        ("RELEASE SAVEPOINT s", Effect.SAVEPOINT),
    ],
)  # fmt: skip
def test_frames_of_transactions_are_told_apart(text: str, expected: Effect) -> None:
    assert effect(text) is expected


def test_unqualified_name_belongs_to_the_statements_database() -> None:
    assert effect("ALTER TABLE orders ADD x INT", "archive") is Effect.NONE
    assert effect("ALTER TABLE shop.orders ADD x INT", "archive") is Effect.SCHEMA
    assert effect("ALTER TABLE orders ADD x INT", "") is Effect.SCHEMA


@pytest.mark.parametrize(("updated", "expected"), [("archive", Effect.NONE), ("Shop", Effect.DATA)])
def test_databases_that_the_server_names_decide(updated: str, expected: Effect) -> None:
    statement = Statement("shop", b"INSERT INTO archive.a VALUES (1)", UTF8, frozenset((updated, "other")))
    assert effect_of(statement, "shop", "orders") is expected


@pytest.mark.parametrize(
    ("codec", "collation"),
    [
        ("utf-8", UTF8), ("cp1252", LATIN1), ("utf-8", LATIN1), ("cp1252", LATIN1 + 1024), ("cp1252", UTF8),
        ("cp850", 4), ("cp850", None),
        ("iso8859_2", 9), ("utf-8", 63), ("utf-8", 2304), ("mac_roman", LATIN1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("form", ["TRUNCATE {}", "DROP TABLE `{}` /* generated by server */", "TRUNCATE\xa0{}"])
def test_name_is_read_in_the_clients_character_set(codec: str, collation: int | None, form: str) -> None:
    if "\xa0" in form and codec == "utf-8":
        form = form.replace("\xa0", "\t")
    raw = form.format("Bücher").encode(codec)
    assert effect_of(Statement("shop", raw, collation), "shop", "bücher") is Effect.SCHEMA


@pytest.mark.parametrize(
    ("codec", "collation"), [("gbk", GBK), ("shift_jis", SJIS), ("cp932", 95), ("big5", BIG5), ("gb18030", 248)]
)
def test_second_bytes_of_a_character_are_no_quotes(codec: str, collation: int) -> None:
    """0x5c is a backslash, and the second byte of many characters; 0x60 a backtick and the second byte of others."""
    for name in ("表", "能", "許", "ソ", "乗", "誠", "功"):
        try:
            raw = f"ALTER TABLE a COMMENT '{name}', RENAME TO `{name}`".encode(codec)
        except UnicodeEncodeError:
            continue
        assert effect_of(Statement("shop", raw, collation), "shop", name) is Effect.SCHEMA, name
        assert effect_of(Statement("shop", raw, collation), "shop", "orders") is Effect.NONE, name


def test_name_that_cannot_be_decoded_may_be_any_beyond_ascii() -> None:
    for raw, collation in (
        (b"TRUNCATE b\xfccher", UTF8),
        (b"TRUNCATE `b\xfc`", BIG5),
        (b"TRUNCATE b\xd0r", 32),
        (b"TRUNCATE b|r", 10),
        (b"DROP TABLE `?` /* generated by server */", LATIN1),
    ):
        assert effect_of(Statement("shop", raw, collation), "shop", "größe") is Effect.SCHEMA, raw
        assert effect_of(Statement("shop", raw, collation), "shop", "orders") is Effect.NONE, raw


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("表", b"\xaa\xed"),  # big5
        ("orders_表", b"Orders_\xaa\xed"),
        ("bücher", b"b\x81cher"),  # keybcs2
        ("տուն", b"\xef\xe5\xf5\xdd"),  # armscii8
        ("სახლი", b"\xf1\xc0\xe9\xca\xc8"),  # geostd8
    ],
)
def test_statement_prepared_in_a_set_that_is_not_decoded_is_not_missed(name: str, said: bytes) -> None:
    """The log says in which character set it was executed, and holds the bytes of that in which it was prepared."""
    for collation in (LATIN1, UTF8):
        statement = Statement("shop", b"TRUNCATE " + said, collation)
        assert effect_of(statement, "shop", name) is Effect.SCHEMA
        assert effect_of(statement, "shop", "orders") is Effect.NONE
    assert effect_of(Statement("shop", b"TRUNCATE \xc5\xbdluta", LATIN1), "shop", name) is Effect.NONE


def test_name_in_a_comment_does_not_hide_one_in_another_character_set() -> None:
    raw = "/* 表 */ TRUNCATE TABLE ".encode() + "表".encode("big5")
    assert effect_of(Statement("shop", raw, UTF8), "shop", "表") is Effect.SCHEMA


@pytest.mark.parametrize("ours", ["Menü", "Kö", "Öl", "città", "é", "პური", "ընկեր", "表"])
def test_names_that_resemble_ours_as_bytes_do_not_stop(ours: str) -> None:
    """A letter in UTF-8 is two or three bytes, and a set that is not decoded has one for each letter."""
    for theirs in (f"{ours}_alt", f"alt_{ours}", "Kä", "cittè", "è", "Mená"):
        raw = f"TRUNCATE {theirs}".encode()
        assert effect_of(Statement("shop", raw, UTF8), "shop", ours) is Effect.NONE, theirs


def test_other_names_beyond_ascii_do_not_stop() -> None:
    for codec, collation in (("cp1252", LATIN1), ("utf-8", UTF8)):
        raw = "TRUNCATE größe".encode(codec)
        assert effect_of(Statement("shop", raw, collation), "shop", "bücher") is Effect.NONE


def test_case_of_names_does_not_count() -> None:
    for ours, theirs in (("items", "İTEMS"), ("straße", "STRASSE"), ("ωσ", "ΩΣ"), ("k", "\u212a")):
        assert effect_of(Statement("shop", f"TRUNCATE {theirs}".encode(), UTF8), "shop", ours) is Effect.SCHEMA


def test_message_shows_the_text_as_sent() -> None:
    assert text_of(Statement("shop", "TRUNCATE bücher".encode("latin1"), LATIN1)) == "TRUNCATE bücher"
    assert text_of(Statement("shop", "TRUNCATE bücher".encode(), LATIN1)) == "TRUNCATE bücher"


_VARIABLES = b"\0" + bytes(4) + b"\x01" + bytes(8) + b"\x06\x03std" + b"\x03" + bytes(4)
_LATIN1_CLIENT = b"\x04\x08\0\xff\0\xff\0"


def query_event(variables: bytes, length: int | None = None) -> bytes:
    size = len(variables) if length is None else length
    fixed = bytes(8) + b"\x04" + bytes(2) + size.to_bytes(2, "little")
    return bytes(HEADER_BYTES) + fixed + variables + b"shop\0" + b"TRUNCATE a"


@pytest.mark.parametrize(
    ("variables", "collation", "updated"),
    [
        (b"", None, None),
        (_VARIABLES + _LATIN1_CLIENT, 8, None),
        (_VARIABLES + _LATIN1_CLIENT + b"\x05\x06+00:00\x0c\x02shop\0b\xc3\xbcro\0\x0d123", 8, {"shop", "büro"}),
        (_LATIN1_CLIENT + b"\x0b\x01u\x01h\x0c\xfe", 8, None),
        (_LATIN1_CLIENT + b"\xc8what follows is not known\x0c\x00", 8, None),
    ],
)
def test_variables_of_a_statement_are_read(variables: bytes, collation: int | None, updated: set[str] | None) -> None:
    found = read_query(query_event(variables))
    mode = 0 if variables.startswith(_VARIABLES) else None
    expected = Statement("shop", b"TRUNCATE a", collation, None if updated is None else frozenset(updated))
    assert found == replace(expected, sql_mode=mode)


def test_variables_that_are_cut_off_are_refused() -> None:
    with pytest.raises(LogFormatError):
        read_query(query_event(_VARIABLES + _LATIN1_CLIENT[:3]))
