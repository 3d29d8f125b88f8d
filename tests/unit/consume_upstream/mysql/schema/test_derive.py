"""The effect of the first of a chain of statements, from the definition before and the server's definition after all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from consume_upstream.mysql.binlog.events import Statement
from consume_upstream.mysql.schema.current_table import CurrentColumn, CurrentTable, Default, DefaultKind
from consume_upstream.mysql.schema.derive import effect_of_first
from consume_upstream.mysql.statements.actions import actions_of
from consume_upstream.mysql.statements.table_actions import TableAction
from vnode_backfill.words.columns import Column, TableDefinition
from vnode_backfill.words.schema_change import (
    AddColumn,
    Carried,
    DropColumn,
    Emptied,
    Ended,
    NewCopy,
    NoEffect,
    RenameColumn,
    RetypeColumn,
    SetAside,
    StatementEffect,
)

LITERAL, EXPRESSION = DefaultKind.LITERAL, DefaultKind.EXPRESSION
UTF8 = ("utf8mb4", "utf8mb4_bin")


def column(name: str, kind: str, *, nullable: bool = True) -> Column:
    text = kind.partition("(")[0] in ("varchar", "char", "text", "tinytext", "mediumtext", "longtext", "enum", "set")
    charset, collation = UTF8 if text else ("", "")
    return Column.parse(name, kind, nullable=nullable, charset=charset, collation=collation)


def table(*columns: str, key: str = "id") -> TableDefinition:
    """`a int`, `b varchar(3)!` where `!` is NOT NULL; the key always is."""
    found = []
    for each in columns:
        name, _, kind = each.partition(" ")
        nullable = not kind.endswith("!") and name not in key.split(",")
        found.append(column(name, kind.rstrip("!"), nullable=nullable))
    return TableDefinition("shop", "orders", tuple(found), tuple(key.split(",")))


def server(
    definition: TableDefinition,
    defaults: dict[str, Default] | None = None,
    types: dict[str, str] | None = None,
    generated: tuple[str, ...] = (),
    *,
    primary: bool = True,
    refused: str = "",
) -> CurrentTable:
    columns = []
    for each in definition.columns:
        implied = Default(DefaultKind.NULL if each.nullable else DefaultKind.NONE)
        shown = (defaults or {}).get(each.name, implied)
        columns.append(
            CurrentColumn(each.name, (types or {}).get(each.name, each.type_name), shown, each.name in generated)
        )
    return CurrentTable(definition, tuple(columns), primary, refused)


def effect(stored: TableDefinition, now: CurrentTable | TableDefinition | None, *statements: str) -> StatementEffect:
    texts = [text if text.split()[0] in _WHOLE else f"ALTER TABLE orders {text}" for text in statements]
    chain = [actions_of(Statement("shop", text.encode(), 255), "shop", "orders") for text in texts]
    return effect_of_first(stored, chain, server(now) if isinstance(now, TableDefinition) else now)


_WHOLE = ("CREATE", "TRUNCATE")
BEFORE = table("id int", "a int", "b varchar(9)")


def test_index_comment_and_default_have_no_effect() -> None:
    for text in ("ADD INDEX (a)", "COMMENT 'x'", "ALTER a SET DEFAULT 5", "DROP INDEX i", "ADD UNIQUE (a)", "MODIFY a INT COMMENT 'x'"):  # fmt: skip
        assert effect(BEFORE, BEFORE, text) == NoEffect()


def test_added_column_is_null_in_rows_that_are_there() -> None:
    after = table("id int", "c int", "a int", "b varchar(9)")
    assert effect(BEFORE, after, "ADD c INT AFTER id") == Carried(after, (AddColumn(column("c", "int")),))


@pytest.mark.parametrize(
    ("kind", "shown", "text", "value"),
    [
        ("int", "5", "INT DEFAULT 5", "5"), ("int(8) unsigned zerofill", "00000007", "INT(8) ZEROFILL DEFAULT 7", "7"),
        ("decimal(9,2)", "1.50", "DECIMAL(9,2) DEFAULT 1.5", "1.50"), ("double", "1.25", "DOUBLE DEFAULT 1.25", "1.25"),
        ("float", "1.23457", "FLOAT DEFAULT 1.23456789", "1.2345679"), ("float", "0", "FLOAT DEFAULT (0)", "0"),
        ("varchar(9)", "it's", "VARCHAR(9) DEFAULT 'it''s'", "it's"), ("char(9)", "a", "CHAR(9) DEFAULT 'a  '", "a"),
        ("varchar(9)", "a?", "VARCHAR(9) DEFAULT 'a😀'", "a😀"), ("enum('x','y')", "y", "ENUM('x','y') DEFAULT 'y'", "y"),
        ("set('x','y')", "x,y", "SET('x','y') DEFAULT 'x,y'", "x,y"), ("bit(1)", "b'1'", "BIT(1) DEFAULT b'1'", "true"),
        ("bit(10)", "b'101'", "BIT(10) DEFAULT b'101'", "0005"), ("date", "2020-01-02", "DATE DEFAULT '2020-01-02'", "2020-01-02"),
        ("datetime(3)", "2020-01-02 03:04:05.000", "DATETIME(3) DEFAULT '2020-01-02 03:04:05'", "2020-01-02 03:04:05.000"),
        ("time(2)", "10:11:12.00", "TIME(2) DEFAULT '10:11:12'", "10:11:12.00"), ("year", "2020", "YEAR DEFAULT 2020", "2020"),
    ],
)  # fmt: skip
def test_constant_default_is_the_value_of_rows_that_are_there(kind: str, shown: str, text: str, value: str) -> None:
    after = table("id int", f"c {kind}")
    found = effect(table("id int"), server(after, {"c": Default(LITERAL, shown)}), f"ADD c {text}")
    assert found == Carried(after, (AddColumn(column("c", kind), value),))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int", "0"), ("decimal(9,2)", "0"), ("double", "0"), ("varchar(9)", ""), ("text", ""), ("varbinary(3)", ""),
        ("binary(3)", "000000"), ("enum('x','y')", "x"), ("set('x','y')", ""), ("bit(1)", "false"), ("bit(9)", "0000"),
        ("time", "00:00:00"), ("time(3)", "00:00:00.000"), ("json", "null"), ("year", "0"), ("inet6", "::"),
    ],
)  # fmt: skip
def test_not_null_without_default_has_the_types_implicit_value(kind: str, value: str) -> None:
    after = table("id int", f"c {kind}!")
    found = effect(table("id int"), after, f"ADD c {kind} NOT NULL")
    assert found == Carried(after, (AddColumn(column("c", kind, nullable=False), value),))


@pytest.mark.parametrize(
    ("kind", "shown", "text"),
    [
        ("int", Default(EXPRESSION, "(1 + 1)"), "INT DEFAULT (1 + 1)"),
        ("datetime", Default(EXPRESSION, "CURRENT_TIMESTAMP"), "DATETIME DEFAULT CURRENT_TIMESTAMP"),
        ("datetime", Default(LITERAL, "CURRENT_TIMESTAMP"), "DATETIME DEFAULT CURRENT_TIMESTAMP"),
        ("timestamp", Default(LITERAL, "2020-01-02 03:04:05"), "TIMESTAMP DEFAULT '2020-01-02 03:04:05'"),
        ("date", Default(LITERAL, "0000-00-00"), "DATE DEFAULT '0000-00-00'"),
        ("date", Default(LITERAL, "2020-00-00"), "DATE DEFAULT '2020-00-00'"),
        ("date", Default(LITERAL, "0000-01-01"), "DATE DEFAULT '0000-01-01'"),
        ("enum('?')", Default(LITERAL, "?"), "ENUM('😀') DEFAULT '😀'"),
        ("date!", Default(DefaultKind.NONE), "DATE NOT NULL"), ("timestamp!", Default(DefaultKind.NONE), "TIMESTAMP NOT NULL"),
        ("enum('?')!", Default(DefaultKind.NONE), "ENUM('?') NOT NULL"), ("point!", Default(DefaultKind.NONE), "POINT NOT NULL"),
        ("varbinary(9)", Default(LITERAL, "0xFF"), "VARBINARY(9) DEFAULT x'ff00'"),
        ("varchar(9)", Default(LITERAL, "a"), "VARCHAR(9) DEFAULT 'a\\0b'"),
        ("varchar(9)", Default(LITERAL, "a?"), "VARCHAR(9) DEFAULT _utf8mb4 0x61F09F9880"),
        ("varchar(9)", Default(LITERAL, "b"), "VARCHAR(9) DEFAULT 'a'"),
        ("float", Default(LITERAL, "1.23457"), "FLOAT DEFAULT 123456789e-8"),
        ("float", Default(LITERAL, "1.2"), "FLOAT DEFAULT '1.2x'"),
        ("enum('x','y')", Default(LITERAL, "y"), "ENUM('x','y') DEFAULT 'Y'"),
    ],
)  # fmt: skip
def test_value_that_nobody_knows_is_a_new_copy(kind: str, shown: Default, text: str) -> None:
    after = table("id int", f"c {kind}")
    assert isinstance(effect(table("id int"), server(after, {"c": shown}), f"ADD c {text}"), NewCopy)


def test_computed_and_rounded_columns_are_a_new_copy() -> None:
    after = table("id int", "c int")
    now = server(after)
    numbered = replace(now, columns=(now.columns[0], replace(now.columns[1], auto_increment=True)))
    assert isinstance(effect(table("id int"), server(after, generated=("c",)), "ADD c INT AS (id)"), NewCopy)
    assert isinstance(effect(table("id int"), numbered, "ADD c INT AUTO_INCREMENT UNIQUE"), NewCopy)
    rounded = server(table("id int", "c double"), {"c": Default(LITERAL, "1.23")}, {"c": "double(5,2)"})
    assert isinstance(effect(table("id int"), rounded, "ADD c DOUBLE(5,2) DEFAULT 1.234"), NewCopy)


def test_default_that_is_changed_after_the_column_was_added_is_a_new_copy() -> None:
    now = server(table("id int", "c int"), {"c": Default(LITERAL, "7")})
    assert isinstance(effect(table("id int"), now, "ADD c INT DEFAULT 5, ALTER c SET DEFAULT 7"), NewCopy)
    assert isinstance(effect(table("id int"), now, "ADD c INT DEFAULT 5", "ALTER c SET DEFAULT 7"), NewCopy)


def test_dropped_and_renamed_columns_are_carried() -> None:
    dropped = table("id int", "b varchar(9)")
    assert effect(BEFORE, dropped, "DROP a") == Carried(dropped, (DropColumn("a"),))
    renamed = table("id int", "C int", "b varchar(9)")
    assert effect(BEFORE, renamed, "RENAME COLUMN a TO C") == Carried(renamed, (RenameColumn("a", "C"),))
    assert effect(BEFORE, renamed, "CHANGE a C INT") == Carried(renamed, (RenameColumn("a", "C"),))


def test_dropped_name_may_be_taken_by_another_column() -> None:
    after = table("id int", "a varchar(9)")
    steps = (DropColumn("a"), RenameColumn("b", "a"))
    assert effect(BEFORE, after, "DROP a, RENAME COLUMN b TO a") == Carried(after, steps)
    again = table("id int", "b varchar(9)", "a text")
    steps_again = (DropColumn("a"), AddColumn(column("a", "text")))
    assert effect(BEFORE, again, "DROP a, ADD a TEXT") == Carried(again, steps_again)


def test_exchanged_columns_pass_through_a_free_name() -> None:
    after = table("id int", "b int", "a varchar(9)")
    found = effect(BEFORE, after, "RENAME COLUMN a TO b, RENAME COLUMN b TO a")
    assert found == Carried(after, (RenameColumn("a", "a_"), RenameColumn("b", "a"), RenameColumn("a_", "b")))


def test_chain_of_renames_in_one_statement_is_carried_out_from_its_end() -> None:
    after = table("id int", "b int", "c varchar(9)")
    found = effect(BEFORE, after, "RENAME COLUMN a TO b, RENAME COLUMN b TO c")
    assert found == Carried(after, (RenameColumn("b", "c"), RenameColumn("a", "b")))


def test_key_column_may_be_renamed_and_widened_but_not_dropped() -> None:
    renamed = table("k int", "a int", key="k")
    assert effect(table("id int", "a int"), renamed, "RENAME COLUMN id TO k") == Carried(
        renamed, (RenameColumn("id", "k"),)
    )
    wide = table("id bigint", "a int")
    assert effect(table("id int", "a int"), wide, "MODIFY id BIGINT") == Carried(
        wide, (RetypeColumn(column("id", "bigint", nullable=False)),)
    )
    text, longer = table("id varchar(3)", "a int"), table("id varchar(9)", "a int")
    assert isinstance(effect(text, longer, "MODIFY id VARCHAR(9)"), NewCopy)
    assert isinstance(effect(table("id int", "k int!", key="id,k"), table("id int"), "DROP k"), NewCopy)


def test_another_key_is_a_new_copy() -> None:
    stored, now = table("id int!", "k int!", key="id"), table("id int!", "k int!", key="k")
    assert isinstance(effect(stored, server(now, primary=False), "DROP INDEX i"), NewCopy)
    assert isinstance(effect(stored, now, "DROP PRIMARY KEY, ADD PRIMARY KEY (k)"), NewCopy)


def test_order_alone_is_carried_without_steps() -> None:
    after = table("b varchar(9)", "id int", "a int")
    assert effect(BEFORE, after, "MODIFY b VARCHAR(9) FIRST") == Carried(after, ())


WIDER = [
    ("tinyint", "int"), ("int", "bigint"), ("int unsigned", "bigint unsigned"), ("mediumint", "int"),
    ("varchar(9)", "varchar(300)"), ("varchar(9)", "text"), ("tinytext", "longtext"), ("char(3)", "char(9)"),
    ("varbinary(9)", "varbinary(300)"), ("varbinary(9)", "blob"), ("blob", "longblob"), ("float", "double"),
    ("decimal(5,2)", "decimal(7,4)"), ("decimal(5,2)", "decimal(38,2)"), ("enum('x')", "enum('x','y')"),
    ("set('x')", "set('x','y')"),
]  # fmt: skip
OTHER = [
    ("int", "smallint"), ("int", "int unsigned"), ("int unsigned", "bigint"), ("varchar(9)", "varchar(8)"),
    ("varchar(9)", "tinytext"), ("text", "varchar(9000)"), ("longtext", "text"), ("char(3)", "varchar(9)"),
    ("varchar(3)", "char(9)"), ("binary(3)", "binary(9)"), ("binary(3)", "varbinary(9)"), ("double", "float"),
    ("decimal(5,2)", "decimal(5,3)"), ("decimal(5,2)", "decimal(39,2)"),
    ("decimal(5,2)", "decimal(7,1)"), ("enum('x','y')", "enum('y','x')"), ("enum('x','y')", "enum('x')"),
    ("set('x','y')", "set('x','z','y')"), ("enum('?')", "enum('?','y')"), ("int", "varchar(20)"), ("int", "decimal(20,0)"),
    ("time", "time(3)"), ("datetime", "datetime(6)"), ("datetime", "timestamp"), ("date", "datetime"), ("bit(3)", "bit(9)"),
    ("int", "double"), ("varchar(9)", "varbinary(9)"), ("enum('x')", "varchar(9)"), ("year", "int"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new"), WIDER)
def test_wider_type_is_carried(old: str, new: str) -> None:
    after = table("id int", f"a {new}")
    found = effect(table("id int", f"a {old}"), after, f"MODIFY a {new}")
    assert found == Carried(after, (RetypeColumn(column("a", new)),))


@pytest.mark.parametrize(("old", "new"), OTHER)
def test_other_type_is_a_new_copy(old: str, new: str) -> None:
    assert isinstance(effect(table("id int", f"a {old}"), table("id int", f"a {new}"), f"MODIFY a {new}"), NewCopy)


def test_other_charset_or_collation_is_a_new_copy() -> None:
    stored = table("id int", "a varchar(9)")
    for charset, collation in (("latin1", "latin1_bin"), ("utf8mb4", "utf8mb4_general_ci")):
        other = replace(stored.columns[1], charset=charset, collation=collation)
        assert isinstance(
            effect(stored, replace(stored, columns=(stored.columns[0], other)), "MODIFY a VARCHAR(9)"), NewCopy
        )


def test_null_may_be_allowed_but_not_forbidden() -> None:
    strict, loose = table("id int", "a int!"), table("id int", "a int")
    assert effect(strict, loose, "MODIFY a INT NULL") == Carried(loose, ())
    assert isinstance(effect(loose, strict, "MODIFY a INT NOT NULL"), NewCopy)


@pytest.mark.parametrize(
    ("kind", "mode", "text", "followed"),
    [
        ("int", 1 << 21, "MODIFY a INT NOT NULL", True), ("int", 1 << 22, "CHANGE A a INT NOT NULL", True),
        ("int", 1 << 20 | 1 << 23, "MODIFY a INT NOT NULL", False), ("timestamp", 1 << 22, "MODIFY a TIMESTAMP NOT NULL", False),
    ],
)  # fmt: skip
def test_null_that_a_strict_session_forbids_was_nowhere(kind: str, mode: int, text: str, *, followed: bool) -> None:
    before, after = table("id int", f"a {kind}"), table("id int", f"a {kind}!")
    statement = Statement("shop", f"ALTER TABLE orders {text}".encode(), 255, sql_mode=mode)
    found = effect_of_first(before, [actions_of(statement, "shop", "orders")], server(after))
    assert found == Carried(after, ()) if followed else isinstance(found, NewCopy)


def test_modes_of_one_statement_are_not_those_of_its_session() -> None:
    before, after = table("id int", "a int"), table("id int", "a int!")
    text = b"SET STATEMENT sql_mode = '' FOR ALTER TABLE orders MODIFY a INT NOT NULL"
    chain = [actions_of(Statement("shop", text, 255, sql_mode=1 << 22), "shop", "orders")]
    assert isinstance(effect_of_first(before, chain, server(after)), NewCopy)


def test_rounded_float_is_a_new_copy() -> None:
    stored = table("id int", "a float")
    assert isinstance(effect(stored, server(stored, types={"a": "float(7,2)"}), "MODIFY a FLOAT(7,2)"), NewCopy)
    assert effect(stored, stored, "MODIFY a FLOAT") == NoEffect()


def test_wider_type_is_a_new_copy_where_other_columns_are_computed() -> None:
    now = server(table("id int", "a double", "g text"), generated=("g",))
    assert isinstance(effect(table("id int", "a float", "g text"), now, "MODIFY a DOUBLE"), NewCopy)
    same = server(table("id int", "a int", "g text"), generated=("g",))
    assert isinstance(effect(table("id int", "a int", "g text"), same, "MODIFY g TEXT AS (a) STORED"), NewCopy)


def test_wider_type_is_a_new_copy_where_a_computed_column_may_have_been_dropped() -> None:
    stored, now = table("id int", "a float", "g text"), table("id int", "a double")
    assert isinstance(effect(stored, now, "MODIFY a DOUBLE", "DROP g"), NewCopy)
    whole, wide = table("id int", "a int", "g text"), table("id int", "a bigint")
    assert isinstance(effect(whole, wide, "MODIFY a BIGINT", "DROP g"), Carried)


def test_truncated_table_is_empty_and_keeps_its_definition() -> None:
    assert effect(BEFORE, BEFORE, "TRUNCATE orders") == Emptied(BEFORE)
    assert effect(BEFORE, table("id int"), "TRUNCATE orders", "DROP a, DROP b") == Emptied(BEFORE)


def chain(*texts: str) -> list[tuple[TableAction, ...]]:
    return [actions_of(Statement("shop", text.encode(), 255), "shop", "orders") for text in texts]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["DROP TABLE orders"], Ended("dropped")), (["RENAME TABLE orders TO x"], Ended("renamed")),
        (["DROP DATABASE shop"], Ended("dropped")),
        (["DROP TABLE orders", "CREATE TABLE orders (id INT PRIMARY KEY)"], NewCopy),
        (["DROP TABLE orders", "CREATE TABLE IF NOT EXISTS orders (id INT PRIMARY KEY)"], NewCopy),
        (["RENAME TABLE orders TO _o, _orders_gho TO orders"], NewCopy), (["CREATE OR REPLACE TABLE orders (a INT)"], NewCopy),
        (["ALTER TABLE orders DROP PARTITION p0"], NewCopy("DROP PARTITION p0")),
        (["ALTER TABLE orders CONVERT TO CHARACTER SET latin1"], NewCopy("CONVERT TO another character set")),
        (["ALTER IGNORE TABLE orders COMMENT 'x'"], NewCopy), (["ALTER TABLE orders DISCARD TABLESPACE"], NewCopy),
        (["ALTER TABLE orders ENGINE=MyISAM"], SetAside), (["ALTER TABLE orders SHUFFLE"], SetAside),
        (["ALTER TABLE orders COMMENT 'x'", "DROP TABLE orders"], NoEffect()),
        (["TRUNCATE orders", "DROP TABLE orders"], Emptied(BEFORE)),
        (["ALTER TABLE orders ADD c INT", "DROP TABLE orders"], NewCopy),
        (["ALTER TABLE orders DROP a", "DROP TABLE orders"], Carried(table("id int", "b varchar(9)"), (DropColumn("a"),))),
    ],
    ids=str,
)  # fmt: skip
def test_effect_on_the_whole_table(texts: list[str], expected: StatementEffect | type) -> None:
    found = effect_of_first(BEFORE, chain(*texts), None if "DROP" in texts[-1] else server(BEFORE))
    assert found == expected if not isinstance(expected, type) else isinstance(found, expected)


def test_create_if_not_exists_of_a_table_that_exists_has_no_effect() -> None:
    assert effect(BEFORE, BEFORE, "CREATE TABLE IF NOT EXISTS orders (x INT)") == NoEffect()


def test_create_if_not_exists_later_in_the_chain_hides_nothing() -> None:
    after = table("id int", "a int", "b varchar(9)", "c int")
    found = effect(BEFORE, after, "ADD c INT", "CREATE TABLE IF NOT EXISTS orders (x INT)")
    assert found == Carried(after, (AddColumn(column("c", "int")),))


def test_table_that_cannot_be_copied_any_more_is_set_aside() -> None:
    refused = CurrentTable(None, (), primary=True, refused="column v has the type vector")
    assert effect(BEFORE, refused, "ADD v VECTOR(3)") == SetAside("column v has the type vector")
    assert effect(BEFORE, refused, "COMMENT 'x'", "ADD v VECTOR(3)") == NoEffect()


def test_missing_table_that_no_statement_explains_is_a_new_copy() -> None:
    assert isinstance(effect(BEFORE, None, "ADD c INT"), NewCopy)
    assert isinstance(effect(BEFORE, None, "DROP a"), NewCopy)


def test_definition_of_a_table_that_came_later_says_nothing() -> None:
    swap = "RENAME TABLE orders TO _orders_del, _orders_gho TO orders"
    other = server(table("id int", "a int", "b varchar(9)", "c bigint"))
    added = effect_of_first(BEFORE, chain("ALTER TABLE orders ADD c INT", swap), other)
    dropped = effect_of_first(BEFORE, chain("ALTER TABLE orders DROP a", swap), other)
    assert isinstance(added, NewCopy)
    assert dropped == Carried(table("id int", "b varchar(9)"), (DropColumn("a"),))


def test_definition_between_two_statements_is_found_from_both_ends() -> None:
    now = table("id int", "c int", "a bigint", "b varchar(9)")
    between = table("id int", "c int", "a int", "b varchar(9)")
    found = effect(BEFORE, now, "ADD c INT AFTER id", "MODIFY a BIGINT")
    assert found == Carried(between, (AddColumn(column("c", "int")),))
    assert effect(between, now, "MODIFY a BIGINT") == Carried(now, (RetypeColumn(column("a", "bigint")),))


def test_column_that_is_renamed_later_is_followed_by_its_name() -> None:
    now = table("id int", "a int", "b varchar(9)", "e int")
    between = table("id int", "a int", "b varchar(9)", "c int")
    found = effect(BEFORE, now, "ADD c INT", "RENAME COLUMN c TO d", "RENAME COLUMN d TO e")
    assert found == Carried(between, (AddColumn(column("c", "int")),))


def test_column_that_was_changed_twice_is_a_new_copy() -> None:
    now = table("id int", "a bigint", "b varchar(9)")
    assert isinstance(effect(BEFORE, now, "MODIFY a MEDIUMINT", "MODIFY a BIGINT"), NewCopy)
    added = table("id int", "a int", "b varchar(9)", "c bigint")
    assert isinstance(effect(BEFORE, added, "ADD c INT", "MODIFY c BIGINT"), NewCopy)
    assert isinstance(effect(BEFORE, BEFORE, "ADD c INT", "DROP c"), NewCopy)


def test_later_conversion_of_all_columns_leaves_nothing_to_be_known_of_an_added_one() -> None:
    now = table("id int", "a int", "b varchar(9)", "c varchar(9)")
    assert isinstance(effect(BEFORE, now, "ADD c VARCHAR(9)", "CONVERT TO CHARACTER SET utf8mb4"), NewCopy)
    dropped = table("id int", "b varchar(9)")
    assert effect(BEFORE, dropped, "DROP a", "CONVERT TO CHARACTER SET utf8mb4") == Carried(dropped, (DropColumn("a"),))


@pytest.mark.parametrize(
    ("now", "texts"),
    [
        (table("id int", "a int", "b varchar(9)"), ["ADD c INT"]),
        (table("id int", "a int", "c int", "b varchar(9)"), ["ADD c INT"]),
        (table("id int", "a int", "b varchar(9)", "c int", "d int"), ["ADD c INT"]),
        (table("id int", "a bigint", "b varchar(9)", "c int"), ["ADD c INT"]),
        (table("id int", "a int", "b varchar(9)"), ["DROP nothing"]),
        (table("id int", "a int", "b varchar(9)", "c int"), ["ADD c INT AFTER nothing"]),
        (table("id int", "a bigint", "b varchar(9)"), ["COMMENT 'x', DROP INDEX i"]),
    ],
)  # fmt: skip
def test_statement_that_is_missing_in_the_log_is_a_new_copy(now: TableDefinition, texts: list[str]) -> None:
    assert isinstance(effect(BEFORE, now, *texts), NewCopy)


def test_clauses_that_depend_on_what_exists_are_decided_by_the_columns() -> None:
    after = table("id int", "a int", "b varchar(9)", "c int")
    carried = Carried(after, (AddColumn(column("c", "int")),))
    assert effect(BEFORE, after, "ADD IF NOT EXISTS c INT, ADD COLUMN IF NOT EXISTS a INT, DROP IF EXISTS x") == carried
    assert effect(after, after, "ADD COLUMN IF NOT EXISTS c INT") == NoEffect()
    assert effect(BEFORE, BEFORE, "MODIFY IF EXISTS x INT, RENAME COLUMN IF EXISTS y TO z") == NoEffect()


def test_names_of_columns_compare_without_regard_to_case() -> None:
    after = table("id int", "b varchar(9)")
    assert effect(BEFORE, after, "DROP COLUMN A") == Carried(after, (DropColumn("a"),))


def test_without_a_primary_key_several_statements_on_keys_are_a_new_copy() -> None:
    now = server(BEFORE, primary=False)
    assert effect(BEFORE, now, "DROP INDEX i") == NoEffect()
    assert isinstance(effect(BEFORE, now, "DROP INDEX i", "DROP INDEX k"), NewCopy)
    assert effect(BEFORE, server(BEFORE), "DROP INDEX i", "DROP INDEX k") == NoEffect()


def test_names_that_cannot_be_told_apart_are_a_new_copy() -> None:
    stored = table("id int", "ß int", "ss int")
    assert isinstance(effect(stored, table("id int", "ss int"), "DROP ß"), NewCopy)
    assert isinstance(effect(stored, table("id int", "ß int", "ss int", "c int"), "ADD c INT"), NewCopy)
