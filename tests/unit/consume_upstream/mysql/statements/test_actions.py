"""Each statement on `shop`.`orders` has the actions that the servers' grammars give it, and no clause is lost."""

from __future__ import annotations

import pytest

from consume_upstream.mysql.binlog.events import Statement
from consume_upstream.mysql.positions.statements import only_removes_partitions
from consume_upstream.mysql.statements.actions import actions_of, has_effect
from consume_upstream.mysql.statements.table_actions import (
    After,
    ColumnAdded,
    ColumnChanged,
    ColumnDropped,
    ColumnRenamed,
    ContentChanged,
    DefaultChanged,
    First,
    KeyChanged,
    Nothing,
    NotUnderstood,
    PartitionsEmptied,
    Repartitioned,
    TableAction,
    TableCame,
    TableEmptied,
    TableGone,
    Unsupported,
)

LATIN1, UTF8 = 8, 255

NOTHING = (
    "ALTER TABLE orders ADD INDEX i (a)", "ALTER TABLE orders ADD KEY (a, b DESC)", "CREATE INDEX i ON orders (a)",
    "CREATE FULLTEXT INDEX i ON shop.orders (a)", "CREATE INDEX i USING BTREE ON `orders` (a)",
    "ALTER TABLE orders ADD FULLTEXT (a), ADD SPATIAL INDEX s (g)", "ALTER TABLE orders ADD VECTOR INDEX (v)",
    "ALTER TABLE orders COMMENT 'x, DROP COLUMN y'", "ALTER TABLE orders COMMENT = \"x\", AUTO_INCREMENT 5",
    "ALTER TABLE orders FORCE", "ALTER TABLE orders ENGINE=InnoDB", "ALTER TABLE orders ENGINE = 'innodb' COMMENT 'x'",
    "ALTER TABLE orders ENGINE InnoDB ROW_FORMAT=DYNAMIC, ALGORITHM=INPLACE, LOCK=NONE",
    "ALTER TABLE orders FORCE, ALGORITHM=COPY", "ALTER TABLE orders STATS_PERSISTENT=1 STATS_SAMPLE_PAGES 20",
    "ALTER TABLE orders ADD CHECK (a > 0), ADD CONSTRAINT c CHECK (b > 0) NOT ENFORCED", "ALTER TABLE orders DROP CHECK c",
    "ALTER TABLE orders ADD CONSTRAINT IF NOT EXISTS c CHECK (a > 0)", "ALTER TABLE orders DROP FOREIGN KEY f",
    "ALTER TABLE orders ADD FOREIGN KEY (a) REFERENCES p (id) ON DELETE RESTRICT ON UPDATE NO ACTION",
    "ALTER TABLE orders ADD CONSTRAINT FOREIGN KEY (a) REFERENCES p (id)", "ALTER TABLE orders DISABLE KEYS",
    "ALTER TABLE orders REBUILD PARTITION ALL", "ALTER TABLE orders ENABLE KEYS",
    "ALTER TABLE orders ANALYZE PARTITION p0", "ALTER TABLE orders OPTIMIZE PARTITION p0, p1",
    "ALTER TABLE orders ALTER INDEX i INVISIBLE", "ALTER TABLE orders ALTER KEY i NOT IGNORED", "DROP VIEW IF EXISTS orders",
    "ALTER TABLE orders ORDER BY a, b DESC", "ALTER TABLE orders ORDER BY a, b, FORCE", "ALTER TABLE orders RENAME TO shop.orders",
    "ALTER TABLE orders DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", "ALTER TABLE orders WAIT 5 ADD INDEX (a)",
    "ALTER TABLE orders NOWAIT COMMENT 'x'", "ALTER ONLINE TABLE orders ADD INDEX (a);", "ALTER TABLE orders",
    "ALTER TABLE orders ALTER COLUMN c SET INVISIBLE", "ALTER TABLE orders ALTER CHECK c NOT ENFORCED",
    "ALTER TABLE orders COMMENT 'a\\'b'", "SET STATEMENT max_statement_time=1 FOR CREATE INDEX i ON orders (a)",
    "ALTER TABLE orders WITHOUT VALIDATION, COMMENT ''", "ALTER TABLE orders DATA DIRECTORY = '/x'",
)  # fmt: skip
ADD_C = ColumnAdded("c")
ACTIONS: dict[str, tuple[TableAction, ...]] = {
    "ALTER TABLE orders ADD c INT": (ADD_C,),
    "alter table `shop` . `orders` add column `C` int first": (ColumnAdded("C", First()),),
    "ALTER TABLE orders ADD c INT NOT NULL DEFAULT 5 AFTER `b`": (ColumnAdded("c", After("b"), default="5"),),
    "ALTER TABLE orders ADD c INT DEFAULT -1.50 COMMENT 'x'": (ColumnAdded("c", default="-1.50"),),
    "ALTER TABLE orders ADD c VARCHAR(9) DEFAULT 'it''s', ADD d INT": (
        ColumnAdded("c", default="it's"), ColumnAdded("d")),
    'ALTER TABLE orders ADD c VARCHAR(9) DEFAULT "x" AFTER a': (ColumnAdded("c", After("a"), default="x"),),
    "ALTER TABLE orders ADD c VARCHAR(9) DEFAULT 'a\\nb'": (ADD_C,),
    "ALTER TABLE orders ADD c VARCHAR(9) DEFAULT 'a' 'b'": (ADD_C,),
    "ALTER TABLE orders ADD c VARCHAR(9) DEFAULT _latin1'a'": (ADD_C,),
    "ALTER TABLE orders ADD c BIT(3) DEFAULT b'101'": (ADD_C,),
    "ALTER TABLE orders ADD c INT DEFAULT (1 + 1)": (ADD_C,),
    "ALTER TABLE orders ADD c DATETIME DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP": (ADD_C,),
    "ALTER TABLE orders ADD c DECIMAL(10, 2), ADD d ENUM('a', 'b') AFTER c": (ADD_C, ColumnAdded("d", After("c"))),
    "ALTER TABLE orders ADD (c INT, d VARCHAR(3) DEFAULT 'x', KEY (c), UNIQUE (d))": (
        ADD_C, ColumnAdded("d", default="x"), Nothing("ADD INDEX"), KeyChanged("ADD UNIQUE")),
    "ALTER TABLE orders ADD COLUMN (c INT)": (ADD_C,),
    "ALTER TABLE orders ADD COLUMN IF NOT EXISTS c INT": (ColumnAdded("c", None, if_not_exists=True),),
    "ALTER TABLE orders ADD IF NOT EXISTS c INT FIRST": (ColumnAdded("c", First(), if_not_exists=True),),
    "ALTER TABLE orders ADD c INT, ALGORITHM=INSTANT": (ADD_C, Nothing("algorithm")),
    "ALTER TABLE orders ADD c INT PARTITION BY HASH (c)": (Repartitioned(), ADD_C),
    "ALTER TABLE orders ADD c INT AFTER a PARTITION BY HASH (c)": (Repartitioned(), ColumnAdded("c", After("a"))),
    "ALTER TABLE orders COMMENT 'x' PARTITION BY HASH (id)": (
        Repartitioned(), Nothing("comment"), Nothing("partitioning")),
    "ALTER TABLE orders ADD c INT REMOVE PARTITIONING": (Repartitioned(), ADD_C),
    "ALTER TABLE orders ADD PARTITION (PARTITION p3 VALUES LESS THAN (30), PARTITION `P 4` VALUES LESS THAN (40))": (
        Repartitioned((), ("p3", "P 4")),),
    "ALTER TABLE orders ADD PARTITION IF NOT EXISTS (PARTITION p VALUES IN (1) (SUBPARTITION s, SUBPARTITION r))": (
        Repartitioned((), ("p",)),),
    "ALTER TABLE orders REORGANIZE PARTITION p0, p1 INTO (PARTITION p2 VALUES LESS THAN (5), PARTITION p1 COMMENT 'partition x')": (
        Repartitioned(("p0", "p1"), ("p2", "p1")),),
    "ALTER TABLE orders ADD PARTITION PARTITIONS 2": (Repartitioned(),),
    "ALTER TABLE orders REORGANIZE PARTITION": (Repartitioned(),),
    "ALTER TABLE orders COALESCE PARTITION 2": (Repartitioned(),),
    "ALTER TABLE orders PARTITION BY KEY (id) PARTITIONS 4": (Repartitioned(),),
    "ALTER TABLE orders REMOVE PARTITIONING": (Repartitioned(),),
    "ALTER TABLE orders ADD period INT, ADD system INT, ADD vector INT, ADD first INT": (
        ColumnAdded("period"), ColumnAdded("system"), ColumnAdded("vector"), ColumnAdded("first")),
    "ALTER TABLE orders ADD after INT AFTER first": (ColumnAdded("after", After("first")),),
    "ALTER TABLE orders ADD `key` INT, ADD `primary` INT": (ColumnAdded("key"), ColumnAdded("primary")),
    "ALTER TABLE orders ADD c INT UNIQUE": (ADD_C, KeyChanged("a unique column")),
    "ALTER TABLE orders ADD c INT UNIQUE KEY": (ADD_C, KeyChanged("a unique column")),
    "ALTER TABLE orders ADD c SERIAL": (ADD_C, KeyChanged("a unique column")),
    "ALTER TABLE orders ADD c INT KEY": (ADD_C, ContentChanged("the primary key changes")),
    "ALTER TABLE orders ADD c INT AUTO_INCREMENT PRIMARY KEY FIRST": (
        ColumnAdded("c", First()), ContentChanged("the primary key changes")),
    "ALTER TABLE orders DROP c": (ColumnDropped("c"),),
    "ALTER TABLE orders DROP COLUMN c, DROP `primary`, DROP system": (
        ColumnDropped("c"), ColumnDropped("primary"), ColumnDropped("system")),
    "ALTER TABLE orders DROP COLUMN IF EXISTS c RESTRICT": (ColumnDropped("c", if_exists=True),),
    "ALTER TABLE orders CHANGE a b BIGINT": (ColumnChanged("a", "b"),),
    "ALTER TABLE orders CHANGE COLUMN a b BIGINT AFTER c, CHANGE b a INT": (
        ColumnChanged("a", "b", After("c")), ColumnChanged("b", "a")),
    "ALTER TABLE orders MODIFY COLUMN a BIGINT FIRST": (ColumnChanged("a", "a", First()),),
    "ALTER TABLE orders MODIFY IF EXISTS a BIGINT": (ColumnChanged("a", "a", None, if_exists=True),),
    "ALTER TABLE orders MODIFY a INT PRIMARY KEY": (
        ColumnChanged("a", "a"), ContentChanged("the primary key changes")),
    "ALTER TABLE orders RENAME COLUMN a TO b, RENAME COLUMN b TO a": (ColumnRenamed("a", "b"), ColumnRenamed("b", "a")),
    "ALTER TABLE orders RENAME COLUMN IF EXISTS a TO b": (ColumnRenamed("a", "b", if_exists=True),),
    "ALTER TABLE orders ALTER a SET DEFAULT 5, ALTER COLUMN b DROP DEFAULT": (DefaultChanged("a"), DefaultChanged("b")),
    "ALTER TABLE orders DROP INDEX i, DROP KEY IF EXISTS k": (KeyChanged("DROP INDEX"), KeyChanged("DROP INDEX")),
    "ALTER TABLE orders RENAME INDEX i TO k": (KeyChanged("RENAME INDEX"),),
    "ALTER TABLE orders DROP CONSTRAINT c": (KeyChanged("DROP CONSTRAINT"),),
    "ALTER TABLE orders ADD UNIQUE KEY k (a), ADD CONSTRAINT UNIQUE (b), ADD CONSTRAINT x UNIQUE (c)": (
        KeyChanged("ADD UNIQUE"),) * 3,
    "CREATE UNIQUE INDEX i ON orders (a)": (KeyChanged("CREATE UNIQUE INDEX"),),
    "CREATE OR REPLACE INDEX i ON orders (a)": (KeyChanged("CREATE UNIQUE INDEX"),),
    "DROP INDEX i ON orders": (KeyChanged("DROP INDEX"),),
    "DROP INDEX IF EXISTS `PRIMARY` ON orders": (ContentChanged("the primary key changes"),),
    "ALTER TABLE orders DROP PRIMARY KEY, ADD PRIMARY KEY (b)": (ContentChanged("the primary key changes"),) * 2,
    "ALTER TABLE orders ADD CONSTRAINT p PRIMARY KEY (b)": (ContentChanged("the primary key changes"),),
    "TRUNCATE orders": (TableEmptied(),),
    "TRUNCATE TABLE shop.orders NOWAIT": (TableEmptied(),),
    "/*!50000 TRUNCATE */ /*M! TABLE */ orders": (TableEmptied(),),
    "/*M!100100 TRUNCATE orders */": (TableEmptied(),),
    "SET STATEMENT a=1, b=(SELECT 2 FOR UPDATE) FOR TRUNCATE orders": (TableEmptied(),),
    "SET STATEMENT a=1 FOR SET STATEMENT b=2 FOR TRUNCATE orders": (TableEmptied(),),
    "ALTER TABLE orders DROP PARTITION p0, `P1`": (PartitionsEmptied("drop", ("p0", "P1")),),
    "ALTER TABLE orders DROP PARTITION IF EXISTS p0": (PartitionsEmptied("drop", ("p0",)),),
    "ALTER TABLE orders TRUNCATE PARTITION ALL": (PartitionsEmptied("truncate", ()),),
    "ALTER TABLE orders TRUNCATE PARTITION p0": (PartitionsEmptied("truncate", ("p0",)),),
    "ALTER TABLE orders ALGORITHM=INPLACE, LOCK=NONE, DROP PARTITION p0, p1": (
        Nothing("algorithm"), Nothing("lock"), PartitionsEmptied("drop", ("p0", "p1"))),
    "ALTER TABLE orders EXCHANGE PARTITION p0 WITH TABLE x WITHOUT VALIDATION": (PartitionsEmptied("exchange", ("p0",)),),
    "ALTER TABLE orders CONVERT PARTITION p0 TO TABLE x": (PartitionsEmptied("convert", ("p0",)),),
    "ALTER TABLE orders CONVERT TABLE x TO PARTITION p3 VALUES LESS THAN (9)": (
        ContentChanged("CONVERT TABLE … TO PARTITION brings rows", brings_rows=True),),
    "ALTER TABLE p EXCHANGE PARTITION q WITH TABLE orders": (
        ContentChanged("rows are exchanged with a partition", brings_rows=True),),
    "ALTER TABLE p CONVERT PARTITION q TO TABLE orders": (TableCame("created"),),
    "ALTER TABLE p CONVERT TABLE orders TO PARTITION q": (TableGone("renamed"),),
    "ALTER TABLE orders DISCARD PARTITION p0 TABLESPACE": (
        ContentChanged("DISCARD TABLESPACE of a partition", brings_rows=True),),
    "ALTER TABLE orders DISCARD TABLESPACE": (ContentChanged("DISCARD TABLESPACE", brings_rows=True),),
    "ALTER TABLE orders IMPORT TABLESPACE": (ContentChanged("IMPORT TABLESPACE", brings_rows=True),),
    "ALTER TABLE orders CONVERT TO CHARACTER SET utf8mb4": (ContentChanged("CONVERT TO another character set"),),
    "ALTER TABLE orders ADD c INT, CONVERT TO CHARSET latin1": (
        ADD_C, ContentChanged("CONVERT TO another character set")),
    "ALTER IGNORE TABLE orders ADD UNIQUE (a)": (ContentChanged("ALTER IGNORE drops rows"), KeyChanged("ADD UNIQUE")),
    "ALTER TABLE orders ADD SYSTEM VERSIONING": (ContentChanged("ADD SYSTEM VERSIONING"),),
    "ALTER TABLE orders DROP SYSTEM VERSIONING, DROP PERIOD FOR SYSTEM_TIME": (
        ContentChanged("DROP SYSTEM VERSIONING"), ContentChanged("DROP PERIOD")),
    "ALTER TABLE orders ADD PERIOD FOR p (a, b)": (ContentChanged("ADD PERIOD"),),
    "ALTER TABLE orders ENGINE=MyISAM": (Unsupported("the table's engine becomes myisam"),),
    "ALTER TABLE orders ADD c INT, ENGINE=MyISAM": (ADD_C, Unsupported("the table's engine becomes myisam")),
    "ALTER TABLE orders COMMENT 'x' ENGINE Aria": (Nothing("comment"), Unsupported("the table's engine becomes aria")),
    "DROP TABLE a, `orders`, b": (TableGone("dropped"),),
    "DROP TABLE IF EXISTS orders /* generated by server */": (TableGone("dropped"),),
    "DROP DATABASE shop": (TableGone("dropped"),),
    "CREATE OR REPLACE DATABASE shop": (TableGone("dropped"),),
    "RENAME TABLE orders TO x": (TableGone("renamed"),),
    "RENAME TABLE orders TO _orders_del, _orders_gho TO orders": (TableGone("renamed"), TableCame("renamed")),
    "RENAME TABLE `shop`.`orders` TO `shop`.`_orders_old`, `shop`.`_orders_new` TO `shop`.`orders`": (
        TableGone("renamed"), TableCame("renamed")),
    "RENAME TABLE IF EXISTS a WAIT 5 TO b, x TO shop.orders": (TableCame("renamed"),),
    "ALTER TABLE orders RENAME x": (TableGone("renamed"),),
    "ALTER TABLE orders RENAME = archive.orders, ADD c INT": (ADD_C, TableGone("renamed")),
    "ALTER TABLE x ADD c INT, RENAME AS orders": (TableCame("renamed"),),
    "CREATE TABLE orders (id INT PRIMARY KEY)": (TableCame("created", empty=True),),
    "CREATE TABLE IF NOT EXISTS orders LIKE x": (TableCame("created", if_not_exists=True, empty=True),),
    "CREATE OR REPLACE TABLE orders (id INT)": (TableCame("replaced", empty=True),),
    "ALTER TABLE orders ADD c INT /*!50000 , DROP b */": (ADD_C, ColumnDropped("b")),
    "ALTER TABLE orders ADD c INT /* , DROP b */": (ADD_C,),
    "ALTER TABLE orders ADD c INT -- , DROP b": (ADD_C,),
    "DROP TABLE archive.orders": (),
    "ANALYZE TABLE orders": (),
    "OPTIMIZE TABLE orders": (),
    "CREATE TEMPORARY TABLE orders (a INT)": (),
}  # fmt: skip
CASCADES = (
    "ALTER TABLE orders ADD FOREIGN KEY (a) REFERENCES p (id) ON DELETE CASCADE",
    "ALTER TABLE orders ADD CONSTRAINT f FOREIGN KEY IF NOT EXISTS (a) REFERENCES p (id) ON UPDATE SET NULL",
    "ALTER TABLE orders ADD c INT REFERENCES p (id) ON DELETE CASCADE",
    "ALTER TABLE orders MODIFY a INT REFERENCES p (id) ON UPDATE CASCADE ON DELETE RESTRICT",
)
NOT_UNDERSTOOD = (
    "ALTER TABLE orders SHUFFLE ROWS", "ALTER TABLE orders ADD c INT, SHUFFLE", "ALTER TABLE orders FORCE NOW",
    "ALTER TABLE orders NEW_OPTION = 5", "ALTER TABLE orders ENGINE=InnoDB NEW_OPTION = 5", "ALTER TABLE orders DROP a b",
    "ALTER TABLE orders ADD orders.c INT", "ALTER TABLE orders DROP COLUMN", "ALTER TABLE orders ADD c INT AFTER a b",
    "ALTER TABLE orders MODIFY a", "ALTER TABLE orders CHANGE a b", "ALTER TABLE orders ALTER a SHUFFLE",
    "ALTER TABLE orders COMMENT", "ALTER TABLE orders RENAME COLUMN a b", "ALTER TABLE orders ADD c INT FIRST UNIQUE",
    "ALTER VIEW orders AS SELECT 1", "CREATE OR REPLACE SEQUENCE orders", "CREATE VIEW orders AS SELECT 1",
    "RENAME SOMETHING orders", "ALTER TABLE orders COMMENT 'a\\', DROP b -- '", "INSERT INTO orders VALUES (1)",
    "ALTER TABLE orders ADD CONSTRAINT x SHUFFLE (a)", "ALTER TABLE orders CONVERT a", "TRUNCATE Orders", "DROP TABLE ORDERS",
    "ALTER TABLE Orders COMMENT 'x'", "DROP DATABASE Shop", "RENAME TABLE a TO Orders", "TRUNCATE `#mysql50#orders`",
    "ALTER TABLE orders ADD c INT /*M! , DROP b */",
)  # fmt: skip


def statement(text: str | bytes, database: str = "shop", collation: int = UTF8) -> Statement:
    raw = text.encode() if isinstance(text, str) else text
    return Statement(database, raw, collation)


def actions(text: str | bytes, database: str = "shop", collation: int = UTF8) -> tuple[TableAction, ...]:
    return actions_of(statement(text, database, collation), "shop", "orders")


@pytest.mark.parametrize("text", NOTHING)
def test_statement_does_nothing_to_rows_columns_and_key(text: str) -> None:
    assert [action for action in actions(text) if not isinstance(action, Nothing)] == []
    assert not has_effect(statement(text), "shop", "orders")


@pytest.mark.parametrize(("text", "expected"), ACTIONS.items(), ids=ACTIONS)
def test_statement_has_these_actions(text: str, expected: tuple[TableAction, ...]) -> None:
    assert actions(text) == expected
    wanted = any(not isinstance(action, Nothing | DefaultChanged) for action in expected)
    assert has_effect(statement(text), "shop", "orders") == wanted


@pytest.mark.parametrize(
    ("clause", "passed"),
    [
        ("ADD UNIQUE u (a)", True), ("DROP INDEX u", True), ("RENAME INDEX u TO w", True), ("ADD UNIQUE u (a), ADD c INT", False),
        ("DROP PRIMARY KEY", False), ("DROP INDEX `PRIMARY`", False), ("ADD PRIMARY KEY (a)", False),
    ],
)  # fmt: skip
def test_unique_indexes_do_nothing_to_rows_that_a_primary_key_identifies(clause: str, passed: bool) -> None:
    found = statement(f"ALTER TABLE orders {clause}")
    assert has_effect(found, "shop", "orders")
    assert has_effect(found, "shop", "orders", primary=True) is not passed


@pytest.mark.parametrize(
    ("text", "empty"),
    [
        ("CREATE TABLE orders (id INT)", True), ("CREATE TABLE orders LIKE items", True),
        ("CREATE TABLE orders (id INT) PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN (9))", True),
        ("CREATE TABLE orders (id INT) PARTITION BY LIST (id) (PARTITION p VALUES IN (9))", True),
        ("CREATE TABLE orders (id INT) START TRANSACTION", True), ("CREATE TABLE orders SELECT * FROM items", False),
        ("CREATE TABLE orders (id INT) IGNORE AS (SELECT 1)", False), ("CREATE TABLE orders TABLE items", False),
        ("CREATE TABLE orders VALUES ROW(1)", False), ("CREATE OR REPLACE TABLE orders AS SELECT 1", False),
    ],
)  # fmt: skip
def test_table_that_a_statement_fills_is_not_empty(text: str, *, empty: bool) -> None:
    (came,) = actions(text)
    assert isinstance(came, TableCame)
    assert came.empty is empty


@pytest.mark.parametrize("text", CASCADES)
def test_cascading_key_is_not_supported(text: str) -> None:
    assert any(isinstance(action, Unsupported) for action in actions(text))


@pytest.mark.parametrize("text", NOT_UNDERSTOOD)
def test_what_is_not_known_is_never_nothing(text: str) -> None:
    assert any(isinstance(action, NotUnderstood) for action in actions(text))
    assert has_effect(statement(text), "shop", "orders")


def test_name_without_a_database_is_of_the_statements_own() -> None:
    assert actions("TRUNCATE orders", database="archive") == ()
    assert actions("TRUNCATE shop.orders", database="archive") == (TableEmptied(),)
    assert isinstance(actions("TRUNCATE orders", database="")[0], NotUnderstood)


@pytest.mark.parametrize(
    ("folds", "expected"), [(True, (TableEmptied(),)), (False, ())], ids=["names fold", "case matters"]
)
def test_case_of_a_table_matters_where_the_server_says_so(folds: bool, expected: tuple[TableAction, ...]) -> None:
    assert actions_of(statement("TRUNCATE Orders"), "shop", "orders", folds_names=folds) == expected
    assert actions_of(statement("TRUNCATE orders"), "shop", "orders", folds_names=folds) == (TableEmptied(),)


def test_names_come_in_the_clients_character_set() -> None:
    assert actions("ALTER TABLE orders ADD größe INT".encode("latin1"), collation=LATIN1) == (ColumnAdded("größe"),)


@pytest.mark.parametrize("name", ["Menü", "Kö", "Öl", "café", "città", "é", "größe", "პური", "ընկեր", "表"])
def test_statement_on_a_table_beyond_ascii_is_understood(name: str) -> None:
    for database, table in (("shop", name), (name, "orders")):
        added = statement(f"ALTER TABLE `{database}`.`{table}` ADD straße INT", database)
        assert actions_of(added, database, table, folds_names=False) == (ColumnAdded("straße"),)
        index = statement(f"CREATE INDEX i ON {table} (a)", database)
        assert not has_effect(index, database, table)


def test_statement_of_a_latin1_client_on_a_table_beyond_ascii_is_understood() -> None:
    added = statement("ALTER TABLE größe ADD straße INT".encode("latin1"), collation=LATIN1)
    assert actions_of(added, "shop", "größe", folds_names=False) == (ColumnAdded("straße"),)


def test_text_that_may_be_read_in_two_ways_is_no_literal() -> None:
    found = actions("ALTER TABLE orders ADD c VARCHAR(9) DEFAULT 'é'", collation=LATIN1)
    assert found == (ColumnAdded("c", default=None),)


def test_column_whose_name_may_be_read_in_two_ways_is_not_understood() -> None:
    assert isinstance(actions("ALTER TABLE orders ADD é INT", collation=LATIN1)[0], NotUnderstood)


@pytest.mark.parametrize(
    ("text", "only"),
    [
        ("ALTER TABLE orders DROP PARTITION p0, p1", True),
        ("ALTER TABLE orders TRUNCATE PARTITION ALL", True),
        ("ALTER TABLE orders CONVERT PARTITION p0 TO TABLE old", True),
        ("ALTER TABLE orders EXCHANGE PARTITION p0 WITH TABLE old", False),
        ("ALTER TABLE orders REORGANIZE PARTITION p0 INTO (PARTITION p1 VALUES LESS THAN (5))", False),
        ("TRUNCATE orders", False),
    ],
)
def test_rows_of_partitions_that_only_go_may_be_kept(text: str, *, only: bool) -> None:
    actions = actions_of(Statement("shop", text.encode(), UTF8), "shop", "orders", folds_names=False)
    assert only_removes_partitions(actions) is only
