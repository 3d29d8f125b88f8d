"""Every planted difference between a table and its copy is found and named, and an exact copy has none."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError
from pyspark.sql import SparkSession

from consume_upstream.log.offset import CdcOffset
from consume_upstream.mysql.connection import SourceAddress
from consume_upstream.mysql.table import MySqlTable
from devkit.mysql import SqlServer
from devkit.orders import create_orders_table
from devkit.waiting import wait_for
from progress.state.target_health import VectorHealth
from tests.system.live_job import LiveJob, live_job, writing
from tests.tables import Change, change_table
from vnode_backfill.config.job import MergeMode
from vnode_backfill.delta.storage import Storage
from vnode_backfill.job.open.locations import state_store
from vnode_backfill.job.open.source import open_table
from vnode_backfill.sinks.changes import MemoryChanges
from vnode_backfill.sinks.delta.sink import DeltaSink
from vnode_backfill.verify.table import (
    Difference,
    DifferenceKind,
    JobProgress,
    Verification,
    render,
    to_json,
    verify_table,
)
from vnode_backfill.verify.tasks import Result, Source, Target, TaskRunner
from vnode_backfill.verify.tasks_here import TasksHere
from vnode_backfill.words.change import ChangeOp
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.errors import SchemaChangedError, SinkError
from vnode_backfill.words.key import Key
from vnode_backfill.words.key_range import KeyRange, SplitPlan, plan_of

MISSING, EXTRA, DIFFERENT = DifferenceKind

# (declaration, one value, another one); of every row of the table of types the copy has one value replaced.
TYPES: Sequence[tuple[str, str, str]] = [
    ("TINYINT", "-128", "127"),
    ("TINYINT(1)", "1", "2"),
    ("SMALLINT UNSIGNED", "65535", "0"),
    ("MEDIUMINT", "-8388608", "8388607"),
    ("INT UNSIGNED", "4294967295", "1"),
    ("BIGINT", "-9223372036854775808", "9223372036854775807"),
    ("BIGINT UNSIGNED", "18446744073709551615", "18446744073709551614"),
    ("DECIMAL(10,2)", "1.50", "1.51"),
    ("DECIMAL(38,20)", "0.00000000000000000001", "0.00000000000000000002"),
    ("DECIMAL(65,30)", "1.000000000000000000000000000001", "1.000000000000000000000000000002"),
    ("FLOAT", "1.5", "1.5000001"),
    ("DOUBLE", "0.1", "0.10000000000000002"),
    ("BIT(1)", "b'0'", "b'1'"),
    ("BIT(12)", "b'100000000001'", "b'100000000000'"),
    ("CHAR(5)", "'ab'", "'Ab'"),
    ("VARCHAR(50)", "'trailing'", "'trailing '"),
    ("VARCHAR(40) CHARACTER SET latin1", "'Grüße'", "'Grüsse'"),
    ("LONGTEXT", "CONCAT(REPEAT('é', 9000), 'x')", "CONCAT(REPEAT('é', 9000), 'y')"),
    ("ENUM('a','b')", "'a'", "'b'"),
    ("SET('x','y')", "'x,y'", "''"),
    ("JSON", """'{"a": 1}'""", """'{"a": 2}'"""),
    ("BINARY(4)", "0x01020304", "0x01020300"),
    ("LONGBLOB", "0x00ff", "0x00ff00"),
    ("POINT", "ST_GeomFromText('POINT(1 2)')", "ST_GeomFromText('POINT(1 3)')"),
    ("DATE", "'1000-01-01'", "'1000-01-02'"),
    ("DATETIME(6)", "'1969-12-31 23:59:59.000001'", "'1969-12-31 23:59:59.000002'"),
    ("TIMESTAMP(6) NULL", "'2024-10-27 01:30:00.000001'", "'2024-10-27 02:30:00.000001'"),
    ("TIME(3)", "'-838:59:58.999'", "'838:59:58.999'"),
    ("YEAR", "1901", "2155"),
    ("INT(8) ZEROFILL", "12", "13"),
    ("DECIMAL(10,2) ZEROFILL", "0.05", "0.06"),
    ("DECIMAL(12,0)", "-0.4", "-1"),
    ("FLOAT", "3.4028234e38", "1.4e-45"),
    ("DOUBLE", "1.7976931348623157e308", "5e-324"),
    ("BIT(64)", "18446744073709551615", "9223372036854775808"),
    ("VARCHAR(40) CHARACTER SET utf16", "'a,é🚀'", "'a,é'"),
    ("TEXT CHARACTER SET latin1", "'Grüße'", "'Grüße '"),
    ("ENUM('ä','b') CHARACTER SET latin1", "'ä'", "'b'"),
    ("SET('ä','b') CHARACTER SET latin1", "'ä,b'", "'ä'"),
    ("VARBINARY(9)", "0x2c004e", "0x2c00"),
    ("TINYBLOB", "0xff", "x''"),
    ("DATETIME", "'9999-12-31 23:59:59'", "'0001-01-01 00:00:00'"),
    ("DATETIME(3)", "'2024-02-29 12:00:00.120'", "'2024-02-29 12:00:00.121'"),
    ("TIMESTAMP NULL", "'1970-01-01 00:00:01'", "'2038-01-19 03:14:07'"),
    ("TIME(6)", "'00:00:00.000001'", "'-00:00:00.000001'"),
    ("TIME", "'12:00:00'", "'-12:00:00'"),
    ("BOOLEAN", "TRUE", "FALSE"),
]
MARIADB_TYPES: Sequence[tuple[str, str, str]] = [
    ("UUID", "'123e4567-e89b-12d3-a456-426655440000'", "'123e4567-e89b-12d3-a456-426655440001'"),
    ("INET6", "'::ffff:192.0.2.1'", "'2001:db8::ff00:42:8329'"),
]


def types_of(server: SqlServer) -> Sequence[tuple[str, str, str]]:
    return [*TYPES, *(MARIADB_TYPES if server.flavour == "mariadb" else ())]


@dataclass(frozen=True, slots=True)
class Case:
    """A table `t` on a server, and a folder for its copy."""

    server: SqlServer
    database: str
    tasks: TaskRunner
    path: str

    def run(self, *statements: str) -> None:
        with self.server.connect(self.database) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def table(self, name: str = "t") -> MySqlTable:
        address = SourceAddress(self.server.host, self.server.port, self.server.user, self.server.password)
        return MySqlTable.open(address, self.database, name)

    def copy(self, name: str = "t") -> pa.Table:
        """The whole table, as a correct copy would hold it."""
        table = self.table(name)
        with table.session() as session:
            batches = list(session.read_range(KeyRange(None, None)))
        # NOT NULL together with TIMESTAMP_NTZ makes a table by `deltalake` that Spark refuses to open.
        schema = pa.schema([field.with_nullable(True) for field in table.definition.arrow_schema])
        return pa.Table.from_batches([batch.cast(schema) for batch in batches], schema)

    def write(self, rows: pa.Table) -> None:
        write_deltalake(self.path, rows, mode="overwrite", schema_mode="overwrite")

    def copied_with_vectors(self) -> DeltaSink:
        """The table as a job copies it whose merges take rows away by deletion vectors."""
        table = self.table()
        sink = DeltaSink(self.path, table.definition, "job", creates=MergeMode.VECTORS)
        sink.prepare()
        with table.session() as session:
            read = sink.writer().write(Epoch(1), 0, 0, session.read_range(KeyRange(None, None)))
        sink.commit_reads(Epoch(1), [read], [], self.plan())
        return sink

    def merge(self, sink: DeltaSink, epoch: Epoch, *changes: Change) -> None:
        definition = self.table().definition
        sink.apply(epoch, MemoryChanges(change_table(definition, changes), definition.key))

    def plan(self, *bounds: Key, name: str = "t") -> SplitPlan:
        """Ranges between the bounds; without bounds a plan without ranges."""
        table = self.table(name)
        with table.session() as session:
            placed = session.order_bounds(list(bounds)) if bounds else []
        return plan_of(table.definition.key_parts, tuple((bound, 1) for bound in placed), 4)

    def verify(
        self, plan: SplitPlan | None, *, name: str = "t", limit: int = 100, job: Callable[[], JobProgress] | None = None
    ) -> Verification:
        return verify_table(self.tasks, self.table(name), plan, Storage.of(self.path), workers=2, limit=limit, job=job)

    def bytes_sent(self) -> int:
        """What the server has sent to all its clients since it was started."""
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SHOW GLOBAL STATUS LIKE 'Bytes_sent'")
            return int(cursor.fetchall()[0][1])


@pytest.fixture
def case(source_server: SqlServer, database: str, tmp_path: Path) -> Iterator[Case]:
    with TasksHere() as tasks:
        yield Case(source_server, database, tasks, str(tmp_path / "copy"))


def with_values(rows: pa.Table, column: str, values: Mapping[int, object]) -> pa.Table:
    """The rows with the values of one column replaced at the given places."""
    place = rows.schema.get_field_index(column)
    replaced = [values.get(i, value) for i, value in enumerate(rows.column(column).to_pylist())]
    return rows.set_column(place, rows.schema.field(place), pa.array(replaced, rows.schema.field(place).type))


def without(rows: pa.Table, *places: int) -> pa.Table:
    return rows.take([i for i in range(rows.num_rows) if i not in places])


def last_line(verification: Verification) -> str:
    return render(verification).splitlines()[-1]


def test_exact_copy_has_no_differences_inside_and_outside_the_plan(case: Case) -> None:
    with case.server.connect() as connection:
        create_orders_table(connection, 5_000, seed=3, database=case.database, table="t")
    case.write(case.copy())
    found = case.verify(case.plan((1001,), (2000,), (3000,), (4000,)))
    assert (found.rows_source, found.rows_target, found.rows_compared, found.ranges) == (5000, 5000, 5000, 5)
    assert (found.equal, found.differences, found.source_moved) == (True, (), False)
    assert render(found) == "verified: 5,000 rows in 5 ranges, 0 differences"


def test_table_without_plan_is_read_in_several_queries_each_row_once(case: Case) -> None:
    with case.server.connect() as connection:
        create_orders_table(connection, 100_001, seed=4, database=case.database, table="t")
    case.write(case.copy())
    found = case.verify(case.plan())
    assert (found.rows_source, found.rows_compared, found.ranges, found.total) == (100_001, 100_001, 1, 0)


def test_two_empty_tables_are_equal(case: Case) -> None:
    case.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    case.write(case.copy())
    assert render(case.verify(case.plan())) == "verified: 0 rows in 1 ranges, 0 differences"


def test_missing_extra_and_doubled_rows_are_found_inside_and_outside_the_plan(case: Case) -> None:
    values = ", ".join(f"({i}, 'v{i}')" for i in range(1, 41))
    case.run("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(9))", f"INSERT INTO t VALUES {values}")
    rows = case.copy()
    extra = pa.table({"id": [-5, 99], "v": ["x", "y"]}, schema=rows.schema)
    # Keys 2 and 40 are outside the plan, 10 and 30 are its first and last; 15 is in the copy three times.
    broken = pa.concat_tables([without(rows, 1, 9, 19, 29, 39), extra, rows.slice(14, 1), rows.slice(14, 1)])
    case.write(broken)
    found = case.verify(case.plan((10,), (20,), (30,)))
    assert found.differences == (
        Difference(EXTRA, (-5,), None, 0, 1),
        *(Difference(MISSING, (key,), None, 1, 0) for key in (2, 10)),
        Difference(EXTRA, (15,), None, 1, 3),
        *(Difference(MISSING, (key,), None, 1, 0) for key in (20, 30, 40)),
        Difference(EXTRA, (99,), None, 0, 1),
    )
    assert (found.missing, found.extra, found.different, found.rows_compared) == (5, 3, 0, 35)
    assert "extra      (15): 3 rows in the target" in render(found)
    assert last_line(found) == "8 differences"


KEYS: Mapping[str, tuple[str, Callable[[int], int | str]]] = {
    "int": ("INT", lambda n: n),
    "text": ("VARCHAR(9)", lambda n: f"k{n:02d}"),
}
"""Where the client orders keys the groups are ranges, else they are buckets: each way reads the target by itself."""


@pytest.mark.parametrize("kind", KEYS)
def test_rows_that_vectors_take_away_do_not_count_and_one_that_should_be_there_is_missing(
    case: Case, kind: str
) -> None:
    declared, key = KEYS[kind]
    values = ", ".join(f"({key(n)!r}, 'v{n}')" for n in range(40))
    case.run(f"CREATE TABLE t (id {declared} PRIMARY KEY, v VARCHAR(9))", f"INSERT INTO t VALUES {values}")
    sink = case.copied_with_vectors()
    case.run(f"DELETE FROM t WHERE id IN ({key(7)!r}, {key(23)!r})", f"UPDATE t SET v = 'new' WHERE id = {key(9)!r}")
    plan = case.plan((key(10),), (key(20),), (key(30),))
    assert [(d.kind, d.key) for d in case.verify(plan).differences] == [
        (EXTRA, (key(7),)), (DIFFERENT, (key(9),)), (EXTRA, (key(23),)),
    ]  # fmt: skip
    merged = [(ChangeOp.DELETE, 1, (key(7), "")), (ChangeOp.UPDATE, 1, (key(9), "new"))]
    case.merge(sink, Epoch(2), *merged, (ChangeOp.DELETE, 1, (key(23), "")))
    assert sink.health().vectors == VectorHealth(gone_rows=3, worn_bytes=0)
    found = case.verify(plan)
    assert (found.equal, found.rows_source, found.rows_target, found.rows_compared) == (True, 38, 38, 38)
    case.merge(sink, Epoch(3), (ChangeOp.DELETE, 1, (key(15), "")))
    found = case.verify(plan)
    assert found.differences == (Difference(MISSING, (key(15),), None, 1, 0),)
    assert (found.rows_source, found.rows_target) == (38, 37)


def test_keys_between_two_generations_of_the_plan_are_compared(case: Case) -> None:
    values = ", ".join(f"({i}, {i})" for i in range(1, 31))
    case.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", f"INSERT INTO t VALUES {values}")
    plan = case.plan((1,), (5,), (10,))
    with case.table().session() as session:
        low, high = session.order_bounds([(20,), (25,)])
    case.write(with_values(case.copy(), "v", {9: 0, 14: 0, 27: 0}))
    found = case.verify(plan.extend(((low, 1), (high, 0))))
    assert [difference.key for difference in found.differences] == [(10,), (15,), (28,)]
    assert (found.rows_source, found.rows_compared) == (30, 30)


def test_changed_value_of_every_type_is_found_in_its_column(case: Case) -> None:
    kinds = types_of(case.server)
    columns = ", ".join(f"c{i} {declared}" for i, (declared, _, _) in enumerate(kinds))
    case.run(f"CREATE TABLE t (id INT PRIMARY KEY, {columns}) CHARACTER SET utf8mb4")
    for key in range(len(kinds) + 1):
        values = ", ".join(kind[1 + key % 2] for kind in kinds)
        case.run(f"INSERT INTO t VALUES ({key}, {values})")
    rows = case.copy()
    case.write(rows)
    assert case.verify(case.plan()).total == 0
    for i in range(len(kinds)):
        rows = with_values(rows, f"c{i}", {i: rows.column(f"c{i}")[i + 1].as_py()})
    case.write(rows)
    found = case.verify(case.plan((3,), (20,)))
    assert [(d.kind, d.key, d.column) for d in found.differences] == [
        (DIFFERENT, (i,), f"c{i}") for i in range(len(kinds))
    ]
    exact = case.copy()
    for i, difference in enumerate(found.differences):
        stored = (exact.column(f"c{i}")[i].as_py(), exact.column(f"c{i}")[i + 1].as_py())
        assert (difference.source, difference.target) == stored, kinds[i]
    assert json.loads(to_json(found))["differences"][6] == {
        "kind": "different", "key": ["6"], "column": "c6",
        "source": "18446744073709551615", "target": "18446744073709551614",
    }  # fmt: skip
    assert f"éx' ({9003:,} characters)" in render(found)


def test_null_empty_and_zero_are_three_values_and_null_in_another_column_is_seen(case: Case) -> None:
    case.run(
        "CREATE TABLE t (id INT PRIMARY KEY, a VARCHAR(9), b VARCHAR(9), n INT, f DOUBLE)",
        "INSERT INTO t VALUES (1, NULL, 'x', NULL, 0), (2, '', 'x', 0, 0), (3, '0', 'x', 0, 0), (4, 'a', NULL, 1, 0)",
    )
    rows = with_values(with_values(case.copy(), "a", {0: "", 1: None, 3: None}), "b", {3: "a"})
    rows = with_values(with_values(rows, "n", {0: 0, 2: None}), "f", {1: -0.0})
    case.write(rows)
    found = case.verify(case.plan())
    assert found.differences == (
        Difference(DIFFERENT, (1,), "a", None, ""),
        Difference(DIFFERENT, (1,), "n", None, 0),
        Difference(DIFFERENT, (2,), "a", "", None),
        Difference(DIFFERENT, (3,), "n", 0, None),
        Difference(DIFFERENT, (4,), "a", "a", None),
        Difference(DIFFERENT, (4,), "b", None, "a"),
    )
    assert render(found).splitlines()[0] == "different  (1): a: source NULL, target ''; n: source NULL, target 0"


def test_text_keys_that_only_the_collation_calls_equal_are_different_keys(case: Case) -> None:
    case.run(
        "CREATE TABLE t (k VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci PRIMARY KEY, v INT)",
        "INSERT INTO t VALUES ('Abc', 1), ('émile', 2), ('same', 3), ('spaces  ', 4), ('zebra', 5)",
    )
    rows = case.copy()
    keys = rows.column("k").to_pylist()
    case.write(with_values(rows, "k", {keys.index("Abc"): "abc", keys.index("spaces  "): "spaces"}))
    found = case.verify(case.plan(("abc",), ("ÉMILE",), ("same",)))
    assert {(d.kind, d.key) for d in found.differences} == {
        (MISSING, ("Abc",)), (EXTRA, ("abc",)), (MISSING, ("spaces  ",)), (EXTRA, ("spaces",)),
    }  # fmt: skip
    assert (found.rows_source, found.rows_compared, found.ranges) == (5, 3, 4)
    assert "missing    ('spaces  ')" in render(found)


def test_row_of_a_key_of_every_type_is_found_again_to_name_its_column(case: Case) -> None:
    case.run(
        "CREATE TABLE t (a BIGINT UNSIGNED, b DECIMAL(10,2), c VARCHAR(9), d VARBINARY(9), e DATE, f DATETIME(6), "
        "g TIMESTAMP(6) DEFAULT '2000-01-01', `odd `` v.alue` INT, PRIMARY KEY (a, b, c, d, e, f, g))",
        "INSERT INTO t VALUES (18446744073709551615, -1.50, 'é ', 0x00ff00, '1000-01-01', '1969-12-31 23:59:59.000001', "
        "'2024-10-27 01:30:00.000001', 7), (1, 2, 'c', 'd', '2024-01-01', '2024-01-01', '2024-01-01', 8)",
    )
    case.write(
        with_values(case.copy().rename_columns([*"abcdefg", "v"]), "v", {1: 9}).rename_columns(case.copy().column_names)
    )
    (difference,) = case.verify(case.plan()).differences
    assert (difference.column, difference.source, difference.target) == ("odd ` v.alue", 7, 9)
    assert difference.key == tuple(case.copy().select([*"abcdefg"]).slice(1).to_pylist()[0].values())
    assert difference.key[0] == Decimal(2**64 - 1)


def test_only_the_first_differences_are_shown_and_all_are_counted(case: Case) -> None:
    values = ", ".join(f"({i}, 1)" for i in range(300))
    case.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", f"INSERT INTO t VALUES {values}")
    case.write(with_values(case.copy(), "v", dict.fromkeys(range(100, 300), 2)).slice(50))
    found = case.verify(case.plan((100,), (200,)), limit=60)
    assert [d.key for d in found.differences] == [(key,) for key in [*range(50), *range(100, 110)]]
    assert (found.missing, found.different, found.total) == (50, 200, 250)
    assert last_line(found) == "250 differences (first 60 shown)"


def test_columns_that_only_one_side_has_or_of_another_type_are_told(case: Case) -> None:
    case.run("CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT)", "INSERT INTO t VALUES (1, 2, 3)")
    case.write(pa.table({"id": pa.array([1], pa.int32()), "a": pa.array([2], pa.int64()), "c": ["x"]}))
    found = case.verify(case.plan())
    assert found.differences == (
        Difference(DIFFERENT, (), "a", "int", "bigint"),
        Difference(DIFFERENT, (), "b", "int", None),
        Difference(DIFFERENT, (), "c", None, "string"),
    )
    assert (found.different, found.columns, last_line(found)) == (0, 3, "3 differences")
    assert "column     b: source int, target none" in render(found)


class RunsFirst(TasksHere):
    """Runs a statement on the server before the first round of tasks, when a comparison has begun."""

    def __init__(self, case: Case, statement: str) -> None:
        super().__init__()
        self._case, self._statement = case, statement

    def run(
        self, function: Callable[[Source | Target], Result], source: Sequence[Source], target: Sequence[Target]
    ) -> tuple[list[Result], list[Result]]:
        if self._statement:
            self._case.run(self._statement)
            self._statement = ""
        return super().run(function, source, target)


def test_write_to_the_source_meanwhile_is_told(case: Case) -> None:
    case.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1)")
    case.run("CREATE TABLE other (id INT AUTO_INCREMENT PRIMARY KEY)")
    case.write(case.copy())
    with RunsFirst(case, "INSERT INTO other VALUES ()") as tasks:
        found = replace(case, tasks=tasks).verify(case.plan())
    assert (found.source_moved, found.total) == (True, 0)
    assert "written to meanwhile" in render(found)
    assert last_line(found) == "verified: 1 rows in 1 ranges, 0 differences"


def test_column_added_at_the_source_is_refused_instead_of_left_out(case: Case) -> None:
    case.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    table, plan = case.table(), case.plan()
    case.write(case.copy())
    case.run("ALTER TABLE t ADD COLUMN w INT")
    with pytest.raises(SchemaChangedError, match="the target has not followed it yet"):
        verify_table(case.tasks, table, plan, Storage.of(case.path), workers=1)


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("TRUNCATE TABLE t", "a statement in the log"),
        ("ALTER TABLE t ADD COLUMN w INT", "a statement in the log"),
        ("ALTER TABLE t DROP COLUMN v", "the table is not what it was"),
        ("RENAME TABLE t TO gone", "not there any more"),
    ],
)
def test_statement_meanwhile_is_named_and_no_row_is_called_different(case: Case, statement: str, reason: str) -> None:
    case.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1), (2, 2)")
    applied = case.table().written_offset()
    case.write(without(case.copy(), 0))
    with RunsFirst(case, statement) as tasks, pytest.raises(SchemaChangedError, match="has not followed it") as caught:
        replace(case, tasks=tasks).verify(case.plan(), job=lambda: JobProgress(applied, running=False))
    assert reason in caught.value.detail
    assert "then verify again" in caught.value.hint


def test_statement_without_effect_meanwhile_hides_no_difference(case: Case) -> None:
    case.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1), (2, 2)")
    case.write(without(case.copy(), 0))
    with RunsFirst(case, "CREATE INDEX i ON t (v)") as tasks:
        found = replace(case, tasks=tasks).verify(case.plan())
    assert found.differences == (Difference(MISSING, (1,), None, 1, 0),)


def test_target_that_does_not_exist_is_named(case: Case) -> None:
    case.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    with pytest.raises(SinkError, match="cannot be read"):
        case.verify(case.plan())


def random_floats(seed: int) -> list[tuple[float, float]]:
    """Floats and doubles of every exponent: any bits that are a finite number."""
    random = np.random.default_rng(seed)
    singles = random.integers(0, 2**32, 3_000, np.uint64).astype(np.uint32).view(np.float32)
    doubles = random.integers(0, 2**64, 3_000, np.uint64, endpoint=False).view(np.float64)
    finite = np.isfinite(singles) & np.isfinite(doubles)
    return list(zip(singles[finite].astype(np.float64).tolist(), doubles[finite].tolist(), strict=True))


def test_floats_of_every_size_are_compared_by_their_value(case: Case) -> None:
    case.run("CREATE TABLE t (id INT PRIMARY KEY, f FLOAT, d DOUBLE)")
    extremes = [(-0.0, -0.0), (1.401298464324817e-45, 5e-324), (3.4028234663852886e38, 1.7976931348623157e308)]
    pairs = [*extremes, *random_floats(11)]
    case.run("INSERT INTO t VALUES " + ", ".join(f"({i}, {f!r}, {d!r})" for i, (f, d) in enumerate(pairs)))
    rows = case.copy()
    assert rows.column("d").to_pylist()[1:] == [d for _, d in pairs[1:]]
    case.write(rows)
    assert case.verify(case.plan((10,), (900,))).total == 0
    nearest = {i: float(np.nextafter(pairs[i][1], 0)) for i in (1, 2, 50, 2000)}
    case.write(with_values(rows, "d", nearest))
    assert [d.key for d in case.verify(case.plan((10,), (900,))).differences] == [(key,) for key in nearest]


def test_day_that_is_not_in_the_calendar_is_null_on_both_sides(case: Case) -> None:
    days = [
        "0000-00-00",
        "2024-00-15",
        "2024-02-31",
        "2023-02-29",
        "2024-02-29",
        "1900-02-29",
        "2000-02-29",
        "2024-04-31",
    ]
    case.run(
        "SET sql_mode = 'ALLOW_INVALID_DATES'",
        "CREATE TABLE t (id INT PRIMARY KEY, a DATE, b DATETIME(3), c TIMESTAMP NULL)",
        *(f"INSERT INTO t VALUES ({i}, '{day}', '{day} 01:02:03.4', NULL)" for i, day in enumerate(days)),
        "INSERT INTO t VALUES (100, NULL, NULL, 0)",
    )
    rows = case.copy()
    assert rows.column("a").null_count == 7
    case.write(rows)
    assert case.verify(case.plan()).total == 0
    case.write(with_values(rows, "a", {0: date(1970, 1, 1)}))
    assert [(d.key, d.column, d.source) for d in case.verify(case.plan()).differences] == [((0,), "a", None)]


def test_equal_rows_do_not_travel(case: Case) -> None:
    case.run("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(200)) CHARACTER SET utf8mb4")
    case.run("INSERT INTO t VALUES " + ", ".join(f"({i}, REPEAT('{i:04d}', 50))" for i in range(9_000)))
    case.write(case.copy())
    plan, before = case.plan((0,), (3000,), (6000,), (8999,)), case.bytes_sent()
    assert case.verify(plan).equal
    assert case.bytes_sent() - before < 60_000
    case.write(with_values(case.copy(), "v", {4000: "x"}))
    before = case.bytes_sent()
    assert case.verify(plan).total == 1
    assert case.bytes_sent() - before < 200_000


def test_differences_of_a_large_range_are_found_among_its_buckets(case: Case) -> None:
    with case.server.connect() as connection:
        create_orders_table(connection, 30_000, seed=8, database=case.database, table="t")
    rows = case.copy()
    keys = rows.column("id").to_pylist()
    changed = with_values(rows, "name", {7: "planted", 20_000: "planted"})
    case.write(pa.concat_tables([without(changed, 12_345), rows.slice(3, 1)]))
    found = case.verify(case.plan((keys[0],), (keys[-1],)))
    assert {(d.kind, d.key) for d in found.differences} == {
        (DIFFERENT, (keys[7],)), (DIFFERENT, (keys[20_000],)), (MISSING, (keys[12_345],)), (EXTRA, (keys[3],)),
    }  # fmt: skip
    assert (found.rows_source, found.rows_target, found.rows_compared) == (30_000, 30_000, 29_999)


@pytest.mark.parametrize(
    ("declared", "values"),
    [
        ("ENUM('z','a','m')", ["'z'", "'a'", "'m'"]),
        ("SET('z','a')", ["''", "'a'", "'z,a'"]),
        ("DOUBLE", ["-1e308", "0.1", "5e-324"]),
        ("TIME(3)", ["'-01:00:00'", "'00:00:00.001'", "'838:59:59'"]),
        ("BIT(9)", ["b'1'", "b'10'", "b'111111111'"]),
        ("VARCHAR(9)", ["'a'", "'B'", "'é '"]),
    ],
)
def test_table_without_ranges_is_compared_whatever_its_key_is(case: Case, declared: str, values: list[str]) -> None:
    case.run(f"CREATE TABLE t (k {declared} PRIMARY KEY, v INT)")
    case.run(f"INSERT INTO t VALUES {', '.join(f'({value}, {i})' for i, value in enumerate(values))}")
    rows = case.copy()
    case.write(rows)
    assert render(case.verify(None)) == "verified: 3 rows in 1 ranges, 0 differences"
    case.write(with_values(without(rows, 2), "v", {0: -1}))
    found = case.verify(None)
    assert {(d.kind, d.key) for d in found.differences} == {
        (DIFFERENT, (rows.column("k")[0].as_py(),)), (MISSING, (rows.column("k")[2].as_py(),)),
    }  # fmt: skip


def moved_on(case: Case) -> CdcOffset:
    """A table whose copy is as of the offset that is returned, wrong in key 7; five keys were changed since."""
    values = ", ".join(f"({i}, {i})" for i in range(1, 41))
    case.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", f"INSERT INTO t VALUES {values}")
    case.write(with_values(case.copy(), "v", {6: -1}))
    applied = case.table().written_offset()
    case.run(
        "UPDATE t SET v = 0 WHERE id = 3", "DELETE FROM t WHERE id = 20", "INSERT INTO t VALUES (50, 50)",
        "UPDATE t SET id = 60 WHERE id = 30", "CREATE TABLE other (id INT PRIMARY KEY)", "INSERT INTO other VALUES (1)",
    )  # fmt: skip
    return applied


def test_changes_since_the_offset_of_a_stopped_job_are_no_differences(case: Case) -> None:
    applied = moved_on(case)
    found = case.verify(case.plan((10,), (35,)), job=lambda: JobProgress(applied, running=False))
    assert found.differences == (Difference(DIFFERENT, (7,), "v", 7, -1),)
    assert (found.total, found.changed_since, found.rechecked) == (1, 5, 0)
    assert "5 keys were changed at the source since" in render(found)
    assert json.loads(to_json(found))["changed_since"] == 5


def test_changes_of_a_running_job_are_compared_again_when_it_has_them(case: Case) -> None:
    """The job goes on when it is asked for the second time; one of the changes it applies wrongly."""
    applied, asked = moved_on(case), [0]

    def job() -> JobProgress:
        asked[0] += 1
        if asked[0] < 3:
            return JobProgress(applied, running=True)
        if asked[0] == 3:
            rows = case.copy()
            case.write(with_values(rows, "v", {rows.column("id").to_pylist().index(50): 51}))
        return JobProgress(case.table().written_offset(), running=True)

    found = case.verify(case.plan((10,), (35,)), job=job)
    assert {(d.key, d.column, d.source, d.target) for d in found.differences} == {
        ((7,), "v", 7, -1), ((50,), "v", 50, 51),
    }  # fmt: skip
    assert (found.changed_since, found.rechecked) == (0, 5)


def test_row_that_was_deleted_and_is_still_in_the_target_is_extra(case: Case) -> None:
    case.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)")
    case.write(case.copy())
    case.run("DELETE FROM t WHERE id = 2")
    applied = case.table().written_offset()
    found = case.verify(case.plan(), job=lambda: JobProgress(applied, running=False))
    assert (found.differences, found.changed_since) == ((Difference(EXTRA, (2,), None, 0, 1),), 0)


@pytest.mark.long
def test_live_table_under_write_has_no_difference_and_a_planted_one_is_found(
    source_server: SqlServer, spark: SparkSession, tmp_path: Path
) -> None:
    with live_job(spark, source_server, tmp_path) as job, writing(job, rate=80):
        with source_server.connect(job.case.database) as connection, connection.cursor() as cursor:
            cursor.execute(
                f"INSERT INTO {job.table.quoted} (id, big, amount, created, state, flag) "
                "VALUES (-5, 1, 1, '2024-01-01', 'new', 0)"
            )
        job.start().until_live()
        found = verified(job)
        assert (found.differences, found.source_moved) == ((), True)
        assert found.rows_compared > 5_000
        plant(job, "id = -5", {"flag": "-77"})
        found = verified(job)
        assert [(d.key, d.column, d.target) for d in found.differences] == [((-5,), "flag", -77)]
        job.stop()
    assert found.total == 1


def verified(job: LiveJob) -> Verification:
    loaded = state_store(job.config).load()
    assert loaded is not None
    return verify_table(
        TasksHere(), open_table(job.config), loaded.plan, Storage.of(str(job.case.lake)), workers=2,
        job=lambda: JobProgress(job.state.lowest_applied, running=job.running),
    )  # fmt: skip


def plant(job: LiveJob, predicate: str, updates: dict[str, str]) -> None:
    """Change a row of the target behind the job's back, between two of its commits."""

    def changed() -> bool:
        try:
            return bool(DeltaTable(str(job.case.lake)).update(updates, predicate=predicate)["num_updated_rows"])
        except CommitFailedError:
            return False

    wait_for(changed, "the row is planted", seconds=60)
