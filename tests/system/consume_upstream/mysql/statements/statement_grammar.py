"""Statements of every form that a client can send, around one table: some change it, some only look as if they did.

`Grammar.case` draws one. It is a template, with names spelled in one of the ways the server accepts, with comments and
conditional comments, in one of the character sets that can write it, sent directly, prepared (also under another
`sql_mode` or character set than it runs in), or from a procedure.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field

ANSI, MSSQL, PLAIN, NO_ESCAPES = "ANSI_QUOTES", "MSSQL", "", "NO_BACKSLASH_ESCAPES"
CODECS = {
    "utf8mb4": "utf-8", "latin1": "cp1252", "gbk": "gbk", "sjis": "shift_jis", "cp932": "cp932", "big5": "big5",
    "cp850": "cp850",
    "gb18030": "gb18030", "ujis": "euc_jp", "macroman": "mac_roman", "binary": "utf-8",
}  # fmt: skip

# {T} the table, {O} another in its database, {N} a new name there, {D} its database; {X} a table of another database,
# {Y} a new one there, {E} that database, {P} and {Q} partitioned tables, {S} the table's name alone, {I} any of the
# rest.
BOTH = (
    "TRUNCATE {T}", "TRUNCATE TABLE {T}", "TRUNCATE {O}", "TRUNCATE TABLE {X}", "ALTER TABLE {T} ADD COLUMN c INT",
    "ALTER TABLE {T} RENAME COLUMN a TO b", "ALTER TABLE {O} RENAME COLUMN a TO {S}",
    "ALTER TABLE {X} ADD COLUMN {S} INT",
    "ALTER TABLE {T} RENAME TO {N}", "ALTER TABLE {T} RENAME {N}", "ALTER TABLE {T} RENAME AS {Y}",
    "ALTER TABLE {O} RENAME TO {N}",
    "ALTER TABLE {T} COMMENT 'it''s'", "ALTER TABLE {T} COMMENT 'a\\'b'", "ALTER TABLE {O} COMMENT 'TRUNCATE {S}'",
    "ALTER TABLE {T} ADD INDEX i (a)",
    "ALTER TABLE {O} COMMENT 'a\\\\', ADD COLUMN {S} INT", "ALTER TABLE {T} ENGINE=InnoDB",
    "ALTER TABLE {T} FORCE, ALGORITHM=COPY",
    "CREATE INDEX i ON {T} (a)", "CREATE UNIQUE INDEX {S} ON {O} (id)", "CREATE INDEX i USING BTREE ON {T} (a)",
    "DROP TABLE {T}", "DROP TABLE {O}, {T}",
    "DROP TABLE {X}", "DROP TABLE IF EXISTS {N}, {T}", "DROP TABLE IF EXISTS {Y}", "DROP TABLES {O}, {X}",
    "RENAME TABLE {T} TO {N}",
    "RENAME TABLE {O} TO {N}, {T} TO {O}", "RENAME TABLE {T} TO {N}, {O} TO {T}", "RENAME TABLE {X} TO {Y}",
    "RENAME TABLE {T} TO {Y}, {X} TO {T}",
    "DROP DATABASE {D}", "DROP SCHEMA IF EXISTS {D}", "DROP DATABASE {E}", "CREATE DATABASE IF NOT EXISTS {D}",
    "ALTER DATABASE {D} CHARACTER SET latin1", "ALTER DATABASE {E} CHARACTER SET latin1",
    "CREATE TABLE IF NOT EXISTS {T} (id INT PRIMARY KEY)",
    "CREATE TABLE {N} LIKE {T}", "CREATE TABLE {N} AS SELECT * FROM {T}", "CREATE TABLE {Y} SELECT 1 AS {S}",
    "CREATE TABLE {Y} (a INT COMMENT '{S}')",
    "CREATE TEMPORARY TABLE {T} (a INT)", "CREATE TEMPORARY TABLE {N} SELECT * FROM {T}",
    "ALTER TABLE {Q} EXCHANGE PARTITION p0 WITH TABLE {T}",
    "ALTER TABLE {P} DROP PARTITION p1", "ALTER TABLE {P} TRUNCATE PARTITION p0",
    "ALTER TABLE {T} PARTITION BY KEY (id) PARTITIONS 2",
    "ALTER TABLE {T} AUTO_INCREMENT = 1000", "ALTER TABLE {T} DISCARD TABLESPACE", "ALTER TABLE {X} ADD INDEX {S} (a)",
    "ANALYZE TABLE {T}",
    "OPTIMIZE TABLE {T}", "OPTIMIZE LOCAL TABLE {T}", "REPAIR TABLE {T}", "FLUSH TABLES {T}", "FLUSH TABLES",
    "GRANT SELECT ON {T} TO root@127.0.0.1",
    "CREATE OR REPLACE VIEW {N} AS SELECT * FROM {T}", "CREATE TRIGGER {I} AFTER INSERT ON {T} FOR EACH ROW SET @x = 1",
    "DROP TRIGGER IF EXISTS {I}",
    "CREATE PROCEDURE {I}() TRUNCATE {T}",
    "CREATE FUNCTION {I}() RETURNS INT DETERMINISTIC RETURN (SELECT MAX(id) FROM {T})",
    "CREATE EVENT {I} ON SCHEDULE EVERY 1 DAY DISABLE DO TRUNCATE {T}", "INSERT INTO {T} VALUES (101, 1)",
    "UPDATE {T} SET a = a + 1",
    "DELETE FROM {T}", "DELETE FROM {T} WHERE id > 1 LIMIT 1", "REPLACE INTO {T} SELECT id, a + 1 FROM {X}",
    "DELETE {T} FROM {T} JOIN {X} USING (id)",
    "UPDATE {T} JOIN {X} USING (id) SET {X}.a = 1", "UPDATE {O}, {T} SET {T}.a = 9 WHERE {O}.id = {T}.id",
    "INSERT INTO {X} SELECT id + 10, a FROM {T}",
    "INSERT INTO {O} VALUES (77, 1)", "INSERT INTO {X} VALUES (77, 1)", "INSERT INTO {E}.bait VALUES (201, 1)",
    "UPDATE {E}.bait SET a = a + 1",
    "UPDATE {E}.seen SET a = a + 5", "INSERT INTO {E}.seen VALUES (301, 1)", "DELETE FROM {E}.seen WHERE id = 2",
    "SELECT {E}.adds(401)", "DO {E}.adds(402)",
    "INSERT INTO {X} VALUES ({E}.adds(403), 1)", "UPDATE {X} SET a = {E}.adds(id + 500)", "SET @x = {E}.adds(404)",
    "CALL {E}.empties()", "CALL {E}.fills()",
    "DELETE FROM {X} WHERE id = {E}.adds(405)", "LOAD DATA INFILE '/nothing' INTO TABLE {T}", "XA START 'x'", "COMMIT",
    "ROLLBACK", "BEGIN", "SAVEPOINT s",
    "SELECT {E}.pure(1)", "INSERT INTO {X} VALUES ({E}.pure(800), 1)", "CREATE TABLE {Y} AS SELECT {E}.adds(410) AS a",
    "DROP INDEX i ON {T}",
)  # fmt: skip
MARIADB = (
    "SET STATEMENT max_statement_time=60 FOR {stmt}", "SET STATEMENT sql_mode='ANSI_QUOTES' FOR {stmt}",
    "SET STATEMENT sort_buffer_size=100000, lock_wait_timeout=5 FOR {stmt}",
    "CREATE OR REPLACE TABLE {T} (id INT PRIMARY KEY, a INT)",
    "CREATE OR REPLACE TABLE {X} (id INT PRIMARY KEY, a INT)", "CREATE OR REPLACE TABLE {T} SELECT 1 AS id",
    "CREATE OR REPLACE DATABASE {D}",
    "CREATE OR REPLACE SCHEMA {E}", "DROP TABLE {T} WAIT 5", "TRUNCATE {T} NOWAIT", "TRUNCATE .{S}",
    "ALTER ONLINE TABLE {T} ADD COLUMN c INT",
    "ALTER IGNORE TABLE {T} ADD UNIQUE (a)", "ALTER TABLE IF EXISTS {T} ADD COLUMN IF NOT EXISTS c INT",
    "RENAME TABLE IF EXISTS {T} TO {N}",
    "CREATE SEQUENCE {N}", "CREATE OR REPLACE SEQUENCE {T}", "DROP SEQUENCE IF EXISTS {N}",
    "ALTER TABLE {T} ADD SYSTEM VERSIONING", "DELETE HISTORY FROM {T}",
    "ALTER TABLE {Q} CONVERT TABLE {T} TO PARTITION p2 VALUES LESS THAN (30)",
    "ALTER TABLE {P} CONVERT PARTITION p1 TO TABLE {N}",
    "ANALYZE DELETE FROM {T} WHERE id = 1", "ANALYZE FORMAT=JSON UPDATE {T} SET a = 8",
    "ANALYZE INSERT INTO {E}.bait VALUES (202, 1)",
    "INSERT INTO {T} VALUES (102, 1) RETURNING id", "ALTER TABLE {T} RENAME = {N}",
    "CREATE OR REPLACE INDEX i ON {T} (a)",
    "CREATE TABLE {Y} AS VALUES ({E}.adds(411))", "EXECUTE IMMEDIATE 'TRUNCATE {T}'",
    "BEGIN NOT ATOMIC TRUNCATE {T}; END", "TRUNCATE {T} WAIT 1",
    "CREATE TEMPORARY TABLE {N} SELECT {E}.adds(412) AS a", "DROP TABLE /* c */ IF EXISTS {T}", "REPAIR VIEW {E}.seen",
)  # fmt: skip
MYSQL = (
    "CREATE TABLE {Y} TABLE {T}", "WITH c AS (SELECT 1 AS id) UPDATE {T} JOIN c USING (id) SET a = 4",
    "ALTER TABLE {T} ALTER INDEX i INVISIBLE",
    "WITH c AS (SELECT 1 AS id) DELETE FROM {T} WHERE id IN (SELECT id FROM c)",
    "ALTER TABLE {T} ADD COLUMN c INT, ALGORITHM=INSTANT",
    "UPDATE /*+ SET_VAR(sort_buffer_size=100000) */ {T} SET a = 3", "ALTER TABLE {T} ADD COLUMN c INT INVISIBLE",
    "ALTER TABLE {T} SECONDARY_ENGINE = NULL",
    "INSERT INTO {T} VALUES ROW(103, 1)", "INSERT INTO {X} TABLE {T}", "ANALYZE TABLE {T} UPDATE HISTOGRAM ON a",
    "CREATE SPATIAL REFERENCE SYSTEM IF NOT EXISTS 99999999 NAME '{S}' DEFINITION 'x'",
    "DROP UNDO TABLESPACE {I}",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Names:
    """The table under test, and what stands beside it."""

    database: str
    table: str
    other: str = "elsewhere"


@dataclass(frozen=True, slots=True)
class Case:
    """Statements of one session; the last one is the drawn one, the others set it up. All are sent as they are."""

    text: str
    sent: tuple[bytes, ...]
    statement_format: bool

    def __str__(self) -> str:
        return f"{'STATEMENT ' if self.statement_format else ''}{' ; '.join(map(repr, self.sent))}"


@dataclass(slots=True)
class Grammar:
    flavour: str
    names: Names
    random: random.Random
    templates: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.templates = BOTH + (MARIADB if self.flavour == "mariadb" else MYSQL)

    def case(self) -> Case:
        draw = self.random
        mode = draw.choices([PLAIN, ANSI, NO_ESCAPES, MSSQL], [6, 3, 2, 1 if self.flavour == "mariadb" else 0])[0]
        default = draw.choice([self.names.database, self.names.database, self.names.other])
        text = self._disguised(self._filled(draw.choice(self.templates), mode, default))
        charset, raw = self._encoded(text)
        as_statement = draw.random() < 0.3
        session = [f"USE `{default}`", f"SET sql_mode = '{mode}'", f"SET NAMES {charset}"]
        session.append(f"SET SESSION binlog_format = {'STATEMENT' if as_statement else 'ROW'}")
        return Case(text, (*(each.encode() for each in session), *self._way(raw)), as_statement)

    def _filled(self, template: str, mode: str, default: str) -> str:
        if "{stmt}" in template:
            inner = self._filled(self.random.choice(self.templates), mode, default)
            return template.replace("{stmt}", inner)
        if self.random.random() < 0.3:
            template = "".join(
                part if part.startswith("{") else part.lower() for part in re.split(r"(\{\w+\})", template)
            )
        ours, theirs = self.names.database, self.names.other
        tables = {
            "T": (ours, self.names.table), "O": (ours, "other"), "N": (ours, "fresh"),
            "X": (theirs, self.random.choice(["other", self.names.table])),
            "Y": (theirs, "fresh"), "P": (ours, "parted"), "Q": (theirs, "parted"),
        }  # fmt: skip
        for key, (database, table) in tables.items():
            while f"{{{key}}}" in template:
                template = template.replace(f"{{{key}}}", self._spelled(database, table, mode, default), 1)
        alone = {"D": ours, "E": theirs, "S": self.names.table, "I": "whatever"}
        for key, name in alone.items():
            while f"{{{key}}}" in template:
                template = template.replace(f"{{{key}}}", self._quoted(name, mode), 1)
        return template

    def _spelled(self, database: str, table: str, mode: str, default: str) -> str:
        name = self._quoted(table, mode)
        if database == default and self.random.random() < 0.6:
            return name
        return f"{self._quoted(database, mode)}{self.random.choice(['.', '.', ' . ', '. /* c */'])}{name}"

    def _quoted(self, name: str, mode: str) -> str:
        ways = [name, name, f"`{name}`"]
        if mode in (ANSI, MSSQL):
            ways.append(f'"{name}"')
        if mode == MSSQL:
            ways.append(f"[{name}]")
        return self.random.choice(ways)

    def _disguised(self, text: str) -> str:
        """Comments where spaces are, and comments around; the quotes of a text stay whole."""
        draw = self.random
        if draw.random() < 0.4:
            gaps = [
                " ",
                "  ",
                "\t",
                "\n",
                "\r\n",
                " /* c */ ",
                " -- c\n",
                " # c\n",
                "/**/",
                " /*! */ ",
                "\v",
                "\f",
                f" /* {self.names.table} */ ",
            ]
            outside = "'" not in text
            text = "".join(draw.choice(gaps) if c == " " and outside and draw.random() < 0.5 else c for c in text)
        head, _, rest = text.partition(" ")
        return draw.choices([
            text, f"/*!50000 {text} */", f"/*!{text}*/", f"/*M!100100 {text} */", f"{head} /*!50000 {rest} */",
            f"/*!99999 TRUNCATE {self.names.table} */ {text}",
            f"{text} /*!99999 , {self.names.table} /* in */ */", f"/* lead */ {text}", f"-- lead\n{text}",
            f"#lead\n{text}", f"/*!99999 /* x */ BEGIN */ {text}",
            f"/*!50701 {text} */", f"{text};", f"/*!100000 {text} */", f"/*!80000 {text} */", f"--\x01 BEGIN\n{text}",
            f"/*M!{text}*/",
        ], [20, *[1] * 16])[0]  # fmt: skip

    def _encoded(self, text: str) -> tuple[str, bytes]:
        """One of the character sets that can write it; a space of latin1 may be the one that does not break."""
        able = {name: codec for name, codec in CODECS.items() if _writable(text, codec)}
        charset = self.random.choice(["utf8mb4", *able])
        raw = text.encode(able[charset])
        if charset == "latin1" and self.random.random() < 0.3 and "'" not in text:
            raw = raw.replace(b" ", b"\xa0", 1)
        return charset, raw

    def _way(self, raw: bytes) -> tuple[bytes, ...]:
        """Sent, prepared, prepared and then run in another mode or character set, or from a procedure."""
        prepare = (b"SET @q = x'" + raw.hex().encode() + b"'", b"PREPARE s FROM @q")
        create = (
            b"SET SESSION sql_log_bin = 0",
            b"CREATE PROCEDURE elsewhere.runs() " + raw,
            b"SET SESSION sql_log_bin = 1",
        )
        another = self.random.choice(
            [
                b"SET sql_mode = ''",
                b"SET sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES'",
                b"SET NAMES latin1",
                b"SET NAMES utf8mb4",
            ]
        )
        ways: list[tuple[bytes, ...]] = [
            (raw,), (*prepare, b"EXECUTE s"), (*prepare, another, b"EXECUTE s"), (*create, b"CALL elsewhere.runs()"),
            (*create, another, b"CALL elsewhere.runs()"),
        ]  # fmt: skip
        return self.random.choices(ways, [12, 2, 2, 2, 1])[0]


def _writable(text: str, codec: str) -> bool:
    try:
        return text.encode(codec).decode(codec) == text
    except UnicodeError:
        return False
