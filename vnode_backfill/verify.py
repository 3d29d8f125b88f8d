"""Whether the target holds exactly the rows of the source.

What must be true: every row of the source is read once and every row of the target is read once, also those outside the
plan, and no two rows that differ count as equal. Why it is:

- the planned ranges and the stretches before, between and behind them tile the whole key (`stretches_of`); the server
  decides by its own order which row is in which, so none is read twice or left out;
- the target is read at one version, which is fixed before the first row;
- rows meet by the values of their key, byte by byte: a text key that differs only in case or in trailing spaces is
  another key here, whatever its collation says;
- values are compared by two hashes over all columns, each beginning with another seed. A NULL changes no hash of Spark's,
  so every column brings a flag along that says whether it is NULL: (NULL, 'a') and ('a', NULL) differ.

Only keys and hashes are shuffled. The rows of differing keys, at most `limit`, are then fetched from both sides and
compared column by column. FLOAT and DOUBLE are compared by value: -0.0 is 0.0.

    source          target             result
    1  'a'          1  'a'             equal
    2  'b'          2  ''              different, column name
    3  'c'                             missing
                    4  'd'             extra
    5  'e'          5  'e', 5  'e'     extra: a key the target holds twice

What breaks it: a source that is written to meanwhile. Then differences may be changes under way, and `source_moved` is
true (any write to the server's log counts, also to another table).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
from delta.tables import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, Observation, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark programmer knows
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from consume_upstream.upstream_table import UpstreamSession, UpstreamTable
from vnode_backfill.columns import Kind, TableDefinition
from vnode_backfill.errors import ActorError, BackfillError, LawBrokenError, SchemaChangedError, SinkError
from vnode_backfill.keys import Bound, KeyRange, SplitPlan
from vnode_backfill.verification import Difference, DifferenceKind, Value, Verification, render, to_json
from vnode_backfill.vnode import Key, keys_of

__all__ = [
    "Difference",
    "DifferenceKind",
    "Stretch",
    "Verification",
    "render",
    "stretches_of",
    "to_json",
    "verify_table",
]

_SUB_READ_ROWS = 100_000
_SEEDS = (0x5EED_0001, 0x5EED_0002)
_IN_SOURCE, _IN_TARGET = "in_source", "in_target"
_HASHES = ("first_hash", "second_hash")


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of the key that is read in one go: `range`, without the keys up to `after` itself."""

    range: KeyRange
    after: Key | None = None


def verify_table(
    spark: SparkSession,
    table: UpstreamTable,
    plan: SplitPlan,
    target_path: str,
    *,
    workers: int,
    limit: int = 100,
    storage_options: Mapping[str, str] | None = None,
) -> Verification:
    """Compare every row of the source with the Delta table at `target_path`; changes neither.

    `workers` connections read the source. `limit` bounds the keys whose difference is told; all are counted.
    `storage_options` are given to Spark's reader (`fs.…`).
    """
    started = time.monotonic()
    _check_definition(table)
    before = table.written_offset()
    target, version = _open_target(spark, target_path, storage_options or {})
    columns = _column_differences(table.definition, target.schema)
    stretches = stretches_of(plan)
    rows = _Comparison(table, _read_source(spark, table, stretches, workers), target, columns)
    with _spark_errors(f"comparing {table.definition.database}.{table.definition.table} with {target_path}"):
        suspects, totals = rows.suspects(limit)
        differences = [*columns, *rows.explain(spark, suspects)]
    return Verification(
        rows_source=totals[_IN_SOURCE],
        rows_target=totals[_IN_TARGET],
        rows_compared=totals["compared"],
        ranges=len(stretches),
        missing=totals["missing"],
        extra=totals["extra"],
        different=totals["different"],
        columns=len(columns),
        differences=tuple(differences),
        source_moved=table.written_offset() != before,
        target_version=version,
        seconds=time.monotonic() - started,
    )


def stretches_of(plan: SplitPlan) -> tuple[Stretch, ...]:
    """The planned ranges and what lies before, between and behind them: together every key, each once."""
    if not plan.ranges:
        return (Stretch(KeyRange(None, None)),)
    ranges = [planned.range for planned in plan.ranges]
    stretches = [Stretch(KeyRange(None, ranges[0].low))]
    for here, following in pairwise([*ranges, None]):
        assert here is not None
        stretches.append(Stretch(here))
        low = following.low if following is not None else None
        if here.high is None or here.high != low:
            stretches.append(_behind(here, low))
    return tuple(stretches)


def _behind(here: KeyRange, high: Bound | None) -> Stretch:
    if here.closed and here.high is not None:
        return Stretch(KeyRange(None, high), after=here.high.key)
    return Stretch(KeyRange(here.high, high))


class _Comparison:
    """Both sides as data frames of the same columns, and the two passes over them."""

    def __init__(self, table: UpstreamTable, source: DataFrame, target: DataFrame, told: Sequence[Difference]) -> None:
        self._table = table
        self._definition = table.definition
        self._source = source
        self._target = target
        apart = {difference.column for difference in told}
        self._columns = [column.name for column in table.definition.columns if column.name not in apart]

    def suspects(self, limit: int) -> tuple[list[Row], Mapping[str, int]]:
        """The first `limit` keys that are not equal, and how many there are of each kind, in one pass over both sides.

        The totals are observed in the stage whose result is collected: a task that is repeated counts once.
        """
        keys = [_nth(i) for i in range(len(self._definition.key))]
        grouped = self._hashed(self._source, source=1).unionAll(self._hashed(self._target, source=0)).groupBy(*keys)
        met = grouped.agg(
            *[F.sum(name).alias(name) for name in (_IN_SOURCE, _IN_TARGET)],
            *[F.bit_xor(name).alias(name) for name in _HASHES],
        )
        observed = Observation()
        counted = met.observe(observed, *_totals())
        rows = counted.where(~_is_equal()).orderBy(*keys).limit(limit).collect()
        totals = {name: int(value or 0) for name, value in observed.get.items()}
        if totals["read_twice"]:
            raise LawBrokenError(f"{totals['read_twice']} keys of the source were read more than once")
        return rows, totals

    def explain(self, spark: SparkSession, suspects: Sequence[Row]) -> list[Difference]:
        """What is wrong with each suspect, in their order."""
        keys = _keys_as_arrow(self._definition, suspects)
        changed = [position for position, row in enumerate(suspects) if row[_IN_SOURCE] == row[_IN_TARGET] == 1]
        told = self._compare_rows(spark, keys.take(pa.array(changed, pa.int64())))
        differences: list[Difference] = []
        for position, (row, key) in enumerate(zip(suspects, _tuples(keys), strict=True)):
            if position in changed:
                differences += told.get(key) or [Difference(DifferenceKind.DIFFERENT, key)]
                continue
            kind = DifferenceKind.EXTRA if row[_IN_TARGET] else DifferenceKind.MISSING
            differences.append(Difference(kind, key, None, row[_IN_SOURCE], row[_IN_TARGET]))
        return differences

    def _hashed(self, frame: DataFrame, *, source: int) -> DataFrame:
        values = [each for name in self._columns for each in (_col(name).isNull(), _col(name))]
        return frame.select(
            *[_sortable(self._definition, name).alias(_nth(i)) for i, name in enumerate(self._definition.key)],
            F.lit(source).cast("long").alias(_IN_SOURCE),
            F.lit(1 - source).cast("long").alias(_IN_TARGET),
            *[F.xxhash64(F.lit(seed), *values).alias(name) for name, seed in zip(_HASHES, _SEEDS, strict=True)],
        )

    def _compare_rows(self, spark: SparkSession, keys: pa.Table) -> dict[tuple[Value, ...], list[Difference]]:
        """The differing columns of the rows with these keys; a row that is gone or equal by now has none."""
        if not keys.num_rows:
            return {}
        target = self._by_key(self._fetch_target(spark, keys))
        told: dict[tuple[Value, ...], list[Difference]] = {}
        for key, row in self._by_key(self._fetch_source(keys)).items():
            pairs = zip(self._columns, row, target.get(key, row), strict=True)
            told[key] = [Difference(DifferenceKind.DIFFERENT, key, name, a, b) for name, a, b in pairs if a != b]
        return told

    def _fetch_source(self, keys: pa.Table) -> pa.Table:
        columns = [column.combine_chunks() for column in keys.columns]
        batches: list[pa.RecordBatch] = []
        with self._table.session() as session:
            for key in keys_of(self._definition.key_parts, columns):
                # Only the key of a bound is sent to the server; its place in the order is for the client to compare.
                bound = Bound(key, b"")
                batches += session.read_range(KeyRange(bound, bound, closed=True))
        schema = _nullable(self._definition)
        return pa.Table.from_batches([batch.cast(schema) for batch in batches], schema).select(self._columns)

    def _fetch_target(self, spark: SparkSession, keys: pa.Table) -> pa.Table:
        wanted = spark.createDataFrame(keys.rename_columns([_nth(i) for i in range(keys.num_columns)]))
        same = [F.col(_nth(i)).eqNullSafe(_col(name)) for i, name in enumerate(self._definition.key)]
        matching = self._target.join(F.broadcast(wanted), same, "left_semi")
        found = matching.select(*[_col(name) for name in self._columns]).toArrow()
        schema = _nullable(self._definition)
        return found.cast(pa.schema([schema.field(name) for name in self._columns]))

    def _by_key(self, rows: pa.Table) -> dict[tuple[Value, ...], tuple[Value, ...]]:
        return dict(zip(_tuples(rows.select(list(self._definition.key))), _tuples(rows), strict=True))


def _is_equal() -> SparkColumn:
    """Once on each side, with the same hashes: x xor x is 0."""
    once = (F.col(_IN_SOURCE) == 1) & (F.col(_IN_TARGET) == 1)
    return once & (F.col(_HASHES[0]) == 0) & (F.col(_HASHES[1]) == 0)


def _totals() -> list[SparkColumn]:
    in_source, in_target = F.col(_IN_SOURCE), F.col(_IN_TARGET)
    once = (in_source == 1) & (in_target == 1)
    return [
        F.sum(in_source).alias(_IN_SOURCE),
        F.sum(in_target).alias(_IN_TARGET),
        F.count_if((in_source > 0) & (in_target > 0)).alias("compared"),
        F.count_if(in_target == 0).alias("missing"),
        F.count_if((in_source == 0) | (in_target > 1)).alias("extra"),
        F.count_if(once & ~_is_equal()).alias("different"),
        F.count_if(in_source > 1).alias("read_twice"),
    ]


def _col(name: str) -> SparkColumn:
    return F.col("`" + name.replace("`", "``") + "`")


def _nth(position: int) -> str:
    """Key columns go by their place, so that no column of the table can be taken for one of ours."""
    return f"key_{position}"


def _sortable(definition: TableDefinition, name: str) -> SparkColumn:
    # A collected TIMESTAMP would come in this process's own time zone.
    return F.unix_micros(_col(name)) if definition.column(name).kind is Kind.TIMESTAMP else _col(name)


def _keys_as_arrow(definition: TableDefinition, rows: Sequence[Row]) -> pa.Table:
    arrays = []
    for position, column in enumerate(definition.key_columns):
        values = [row[_nth(position)] for row in rows]
        sent = pa.int64() if column.kind is Kind.TIMESTAMP else column.arrow_type
        arrays.append(pa.array(values, sent).cast(column.arrow_type))
    return pa.table(arrays, names=list(definition.key))


def _nullable(definition: TableDefinition) -> pa.Schema:
    """Every column may be NULL: Spark would not look for a NULL where it is told that there is none."""
    return pa.schema([field.with_nullable(True) for field in definition.arrow_schema])


def _tuples(rows: pa.Table) -> list[tuple[Value, ...]]:
    return list(zip(*[column.to_pylist() for column in rows.columns], strict=True))


def _read_source(spark: SparkSession, table: UpstreamTable, stretches: Sequence[Stretch], workers: int) -> DataFrame:
    """The source's rows, read by one task per worker when an action asks for them."""
    count = max(1, min(workers, len(stretches)))
    lanes = [tuple(stretches[i::count]) for i in range(count)]
    schema = from_arrow_schema(_nullable(table.definition), prefer_timestamp_ntz=True)
    return spark.range(0, count, 1, count).mapInArrow(_lane_reader(table, lanes), schema)


def _lane_reader(
    table: UpstreamTable, lanes: Sequence[Sequence[Stretch]]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for lane in batch.column(0).to_pylist():
                with table.session() as session:
                    for stretch in lanes[lane]:
                        yield from _read_stretch(session, table.definition, stretch)

    return read


def _read_stretch(session: UpstreamSession, definition: TableDefinition, stretch: Stretch) -> Iterator[pa.RecordBatch]:
    """All rows of a stretch, by queries of bounded size: no read view stays open for long, whatever a stretch holds."""
    after = stretch.after
    while True:
        rows, last = 0, None
        for batch in session.read_range(stretch.range, after=after, limit=_SUB_READ_ROWS):
            if batch.num_rows:
                rows, last = rows + batch.num_rows, batch.slice(batch.num_rows - 1)
                yield batch
        if last is None or rows < _SUB_READ_ROWS:
            return
        (after,) = keys_of(definition.key_parts, [last.column(name) for name in definition.key])


def _check_definition(table: UpstreamTable) -> None:
    """A column that the job does not know would not be compared."""
    if table.current_definition() != table.definition:
        raise SchemaChangedError(
            f"table {table.definition.database}.{table.definition.table} is no longer defined as when the job was created",
            hint="Change it back, or drop the job and create it again.",
        )


def _open_target(spark: SparkSession, path: str, options: Mapping[str, str]) -> tuple[DataFrame, int]:
    """The table at its newest version, and that version's number."""
    try:
        (newest,) = DeltaTable.forPath(spark, path, dict(options)).history(1).select("version").collect()
        version = int(newest["version"])
        return spark.read.format("delta").options(**options).option("versionAsOf", version).load(path), version
    except (PySparkException, Py4JJavaError) as error:
        raise SinkError(f"the Delta table at {path} cannot be read", detail=_first_lines(error)) from error


def _column_differences(definition: TableDefinition, target: StructType) -> list[Difference]:
    """Columns that cannot be compared. Demands the key columns: without them no row can be found."""
    wanted = from_arrow_schema(_nullable(definition), prefer_timestamp_ntz=True)
    source_types = {field.name: field.dataType.simpleString() for field in wanted}
    target_types = {field.name: field.dataType.simpleString() for field in target}
    names = [*source_types, *(name for name in target_types if name not in source_types)]
    apart = [name for name in names if source_types.get(name) != target_types.get(name)]
    lost = [name for name in definition.key if name in apart]
    if lost:
        raise SinkError(
            f"key column {lost[0]} of the target is not the source's",
            detail=f"Expected {source_types[lost[0]]}, found {target_types.get(lost[0], 'no such column')}.",
        )
    return [
        Difference(DifferenceKind.DIFFERENT, (), name, source_types.get(name), target_types.get(name)) for name in apart
    ]


@contextmanager
def _spark_errors(attempt: str) -> Iterator[None]:
    """Spark tells an error of a task as text; what happened stands in the detail."""
    try:
        yield
    except BackfillError:
        raise
    except (PySparkException, Py4JJavaError) as error:
        raise ActorError(f"{attempt} failed", detail=_first_lines(error)) from error


def _first_lines(error: Exception) -> str:
    return str(error).strip()[:2000]
