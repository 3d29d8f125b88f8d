"""Rows become devices, times and measurements of IoTDB exactly, or are rejected; windows become slots."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from iotdb.utils.BitMap import BitMap
from iotdb.utils.IoTDBConstants import TSDataType
from iotdb.utils.NumpyTablet import NumpyTablet

from tests.tables import Row, batch, table_of
from vnode_backfill.config.iotdb import DecimalAs, IotdbSinkConfig, IotdbType, TimeUnit
from vnode_backfill.sinks.iotdb.mapping import PointMapping
from vnode_backfill.sinks.iotdb.server.paths import DeviceTemplate, path_of, split_path
from vnode_backfill.sinks.iotdb.server.tablets import calls
from vnode_backfill.sinks.iotdb.server.tags import Tag, TagNaming
from vnode_backfill.sinks.iotdb.values import (
    Precision,
    as_text,
    converted,
    default_type,
    from_text,
    from_ticks,
    in_ticks,
    is_exact,
    possible_types,
    restored,
)
from vnode_backfill.sinks.iotdb.window import IotdbWindow, slot_changes
from vnode_backfill.words.columns import TableDefinition
from vnode_backfill.words.errors import ConfigError

MS, US, NS = Precision
READINGS = table_of(
    {
        "id": "bigint",
        "region": "varchar(20)",
        "sensor": "int",
        "at": "datetime(6)",
        "temp": "decimal(9,3)",
        "note": "text",
    },
    "id",
)
AT = datetime(2024, 5, 1, 12, 0, 0, 1000)


def config(**overrides: object) -> IotdbSinkConfig:
    plain: dict[str, object] = {"host": "h", "device": "root.plant.{region}.s{sensor}", "time": {"column": "at"}}
    return IotdbSinkConfig.model_validate({**plain, **overrides})


def mapping(definition: TableDefinition = READINGS, precision: Precision = MS, /, **overrides: object) -> PointMapping:
    return PointMapping.of(config(**overrides), definition, precision)


def table(*rows: Row, definition: TableDefinition = READINGS) -> pa.Table:
    return pa.Table.from_batches([batch(definition, rows)])


@given(st.lists(st.text(max_size=6), min_size=2, max_size=2))
def test_any_texts_make_a_path_that_gives_them_back(values: list[str]) -> None:
    template = DeviceTemplate.parse("root.plant.{a}.x{b}y.fixed")
    nodes = split_path(template.device(values))
    assert template.values_of(path_of(nodes)) == {"a": values[0], "b": values[1]}
    assert split_path(path_of(nodes)) == nodes
    assert not {"time", "timestamp", "root"} & {node.casefold() for node in nodes[1:]}
    assert not {"\t", "\n"} & set("".join(nodes))


@pytest.mark.parametrize("value", ["time", "TIMESTAMP", "Root", "%74ime", "a.b", "`", "*", "", "1", "\t\n%", "a``b"])
def test_texts_that_a_server_would_misread_are_written_safely(value: str) -> None:
    template = DeviceTemplate.parse("root.plant.{a}")
    assert template.values_of(template.device([value])) == {"a": value}


TAGS = TagNaming("plant", "reading", (Tag("region", "Region"), Tag('odd "name"', "b")))


@given(
    st.lists(st.none() | st.text(max_size=6) | st.sampled_from(["'", "''", "' AND ", "NULL"]), min_size=2, max_size=2)
)
def test_any_tags_make_a_condition_that_gives_them_back(values: list[str | None]) -> None:
    assert TAGS.values_of(TAGS.device(values)) == {"Region": values[0], "b": values[1]}


def test_each_device_has_its_own_condition_over_its_tags() -> None:
    assert TAGS.device(["it's", None]) == """"region" = 'it''s' AND "odd ""name\""" IS NULL"""
    assert TAGS.device(["", "NULL"]) != TAGS.device([None, None])
    assert TAGS.values_of("\"region\" = 'x'") is None


def test_a_table_has_lower_names_its_tags_and_the_rest_as_fields() -> None:
    made = mapping(
        device=None, model="table", database="Plant", tags=["sensor", "region"], rename={"temp": "T", "region": "Area"}
    )
    assert isinstance(made.naming, TagNaming)
    assert (made.naming.database, made.naming.table) == ("plant", READINGS.table)
    assert [tag.name for tag in made.naming.tags] == ["sensor", "area"]
    assert [each.name for each in made.measurements] == ["id", "t", "note"]
    points, rejections = made.points(table((1, None, 7, AT, None, "x"), (2, "eu", None, AT, None, "y")))
    assert points.devices == (
        '"sensor" = \'7\' AND "area" IS NULL',
        '"sensor" IS NULL AND "area" = \'eu\'',
    )
    assert rejections == ()


@pytest.mark.parametrize(
    ("overrides", "path"),
    [
        ({"tags": ["nowhere"]}, "sink.iotdb.tags: "),
        ({"rename": {"temp": "Time"}}, "sink.iotdb.rename: the server accepts no column called 'time'"),
        ({"rename": {"temp": "NOTE"}}, "sink.iotdb.rename: two columns of the table would be called 'note'"),
        ({"rename": {"temp": "Region"}}, "sink.iotdb.rename: two columns of the table would be called 'region'"),
        ({"rename": {"region": "Note"}}, "sink.iotdb.rename: two columns of the table would be called 'note'"),
    ],
)
def test_a_table_model_that_does_not_fit_the_table_names_its_path(overrides: dict[str, object], path: str) -> None:
    with pytest.raises(ConfigError) as raised:
        mapping(**{"device": None, "model": "table", "database": "d", "tags": ["region", "sensor"], **overrides})
    assert raised.value.message.startswith(path)


def test_devices_of_other_templates_are_not_taken_for_this_ones() -> None:
    template = DeviceTemplate.parse("root.plant.{region}.s{sensor}")
    assert template.pattern == "root.`plant`.*.*"
    assert template.values_of("root.plant.eu.t1") is None
    assert template.values_of("root.other.eu.s1") is None
    assert template.values_of("root.plant.eu") is None
    assert template.told == {"region", "sensor"}
    assert DeviceTemplate.parse("root.plant.{a}{b}.{c}").told == {"c"}


def test_a_row_becomes_one_slot_and_a_point_per_value() -> None:
    points, rejections = mapping(decimal="text").points(
        table((7, "eu", 3, AT, Decimal("1.5"), None), (8, "eu", 3, AT, None, "x"))
    )
    assert rejections == ()
    assert (points.devices, points.device.tolist(), points.times.tolist()) == (
        ("root.`plant`.`eu`.`s3`",), [0, 0], [1714564800001, 1714564800001],
    )  # fmt: skip
    assert points.values.to_pylist() == [{"id": 7, "temp": "1.500", "note": None}, {"id": 8, "temp": None, "note": "x"}]


def test_columns_are_included_excluded_renamed_and_typed() -> None:
    made = mapping(exclude=["note"], rename={"temp": "t-1"}, types={"temp": "float", "id": "text"})
    assert [(m.name, m.kind) for m in made.measurements] == [("id", IotdbType.TEXT), ("t-1", IotdbType.FLOAT)]
    assert [m.name for m in mapping(include=["region", "id"]).measurements] == ["id", "region"]


def owner(definition: TableDefinition = READINGS, /, **overrides: object) -> list[str]:
    return [each.name for each in mapping(definition, **overrides).owner]


def test_a_slot_shows_its_key_by_itself_by_a_measurement_or_by_one_more() -> None:
    columns = {"a": "varchar(9)", "b": "decimal(9,2)", "at": "datetime(3)", "v": "int"}
    slotted, composite = table_of(columns, "a", "at"), table_of(columns, "a", "b", "at")
    assert owner() == ["id"]
    assert owner(rename={"id": "nr"}) == ["nr"]
    assert owner(exclude=["id"]) == ["_key"]
    assert owner(slotted, device="root.p.{a}") == []
    assert owner(slotted, device="root.p.{a}{b}") == ["_key"]
    assert owner(composite, device="root.p.{a}", decimal="text") == ["b"]
    assert owner(composite, device="root.p.{a}", decimal="double") == ["_key"]


@pytest.mark.parametrize("overrides", [{}, {"exclude": ["id"]}, {"types": {"id": "text"}}])
def test_keys_come_back_from_points(overrides: dict[str, object]) -> None:
    made = mapping(READINGS, US, **overrides)
    rows = table(*((n, "e.u", n % 2, AT, None, None) for n in (5, -(2**63), 7)))
    points, _ = made.points(rows)
    assert made.keys(made.stored_keys(points.devices, points.device, points.times, points.values)) == [
        (5,),
        (-(2**63),),
        (7,),
    ]


def test_keys_that_the_slot_shows_come_back_from_it() -> None:
    definition = table_of({"day": "date", "raw": "varbinary(9)", "at": "timestamp(6)", "v": "int"}, "day", "raw", "at")
    made = mapping(definition, US, device="root.p.{day}.x{raw}")
    key = (date(1000, 1, 1), b"\0\xff", datetime(2001, 2, 3, 4, 5, 6, 7, UTC))
    points, _ = made.points(table((*key, 1), definition=definition))
    back = made.stored_keys(points.devices, points.device, points.times, points.values)
    assert tuple(back.to_pylist()[0].values()) == key


def rejected(made: PointMapping, *rows: Row, definition: TableDefinition = READINGS) -> list[tuple[int, str, str]]:
    _, rejections = made.points(table(*rows, definition=definition))
    return [(each.row, each.column, each.value) for each in rejections]


def test_rows_without_device_or_time_or_with_too_fine_or_too_late_a_time_are_rejected() -> None:
    fine, late = datetime(2024, 1, 1, 0, 0, 0, 1), datetime(9999, 1, 1)
    rows: list[Row] = [(1, None, 1, AT, None, None), (2, "eu", 1, None, None, None), (3, "eu", 1, fine, None, None),
                       (4, "eu", 1, AT, None, None), (5, "eu", 1, late, None, None)]  # fmt: skip
    assert rejected(mapping(), *rows) == [
        (0, "region", "NULL"),
        (1, "at", "NULL"),
        (2, "at", str(fine)),
        (4, "at", str(late)),
    ]
    assert [row for row, _, _ in rejected(mapping(READINGS, US), *rows)] == [0, 1, 4]
    points, _ = mapping().points(table(*rows))
    assert points.rows.column("id").to_pylist() == [4]


def test_cells_that_the_type_cannot_hold_are_refused() -> None:
    made = mapping(types={"temp": "int32"})
    rows: list[Row] = [(1, "e", 1, AT, Decimal("1.5"), None), (2, "e", 1, AT, Decimal(5), None)]
    assert rejected(made, *rows) == [(0, "temp", "1.500")]


@pytest.mark.parametrize(
    ("unit", "precision", "value", "ticks"),
    [("s", MS, 5, 5000), ("ms", NS, 5, 5_000_000), ("ns", MS, 5_000_000, 5), ("ns", MS, 5, None),
     ("s", NS, 2**40, None),
     ("ms", MS, 10**13, 10**13), ("ms", MS, 10**13 + 1, None), ("us", US, -(2**63), -(2**63)),
     ("s", US, -7, -7_000_000)],
)  # fmt: skip
def test_whole_numbers_become_ticks_or_are_refused(
    unit: str, precision: Precision, value: int, ticks: int | None
) -> None:
    found = in_ticks(pa.array([value]), TimeUnit(unit), precision, (-(2**63), precision.highest))
    assert found.values.to_pylist() == [ticks]
    assert (found.refused is not None) == (ticks is None)
    if ticks is not None:
        assert from_ticks(found.values, TimeUnit(unit), precision, pa.int64()).to_pylist() == [value]


VALUES: list[tuple[pa.DataType, list[object]]] = [
    (pa.int8(), [-128, 0, 127]),
    (pa.int64(), [-(2**63), 2**63 - 1]),
    (pa.decimal128(20, 0), [Decimal(0), Decimal(2**64 - 1)]),
    (pa.decimal128(38, 10), [Decimal("0.0000000001"), Decimal("-12345678901234567890.5")]),
    (pa.bool_(), [True, False]),
    (pa.string(), ["", "a\0", "é😀"]),
    (pa.binary(), [b"", b"\0\xff\0"]),
    (pa.date32(), [date(1000, 1, 1), date(9999, 12, 31)]),
    (pa.timestamp("us"), [datetime(1000, 1, 1), datetime(2024, 5, 1, 1, 2, 3, 4000)]),
    (pa.timestamp("us", "UTC"), [datetime(1970, 1, 1, tzinfo=UTC), datetime(2038, 1, 19, 3, 14, 7, 999_000, UTC)]),
]


@pytest.mark.parametrize(("source", "values"), VALUES)
def test_exact_types_give_back_what_was_stored(source: pa.DataType, values: list[object]) -> None:
    column = pa.array([*values, None], source)
    assert from_text(as_text(column), source).equals(column)
    for kind in possible_types(source):
        found = converted(column, kind, MS)
        if is_exact(source, kind) and found.refused is None and not (pa.types.is_string(source) and kind == "blob"):
            assert restored(found.values, kind, MS, source).equals(column), kind


def test_types_follow_the_columns() -> None:
    kinds = [default_type(source, DecimalAs.TEXT) for source, _ in VALUES]
    assert [str(kind) for kind in kinds] == [
        "int32", "int64", "text", "text", "boolean", "text", "blob", "date", "timestamp", "timestamp",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("overrides", "path"),
    [
        ({"device": "root.plant.{nowhere}"}, "sink.iotdb.device"),
        ({"device": "root.{region}.{sensor}"}, "sink.iotdb.device"),
        ({"time": {"column": "note"}}, "sink.iotdb.time.column"),
        ({"time": {"column": "at", "unit": "ms"}}, "sink.iotdb.time.unit"),
        ({"time": {"column": "id"}}, "sink.iotdb.time.unit"),
        ({"include": ["nothing"]}, "sink.iotdb.include"),
        ({"types": {"note": "double"}}, "sink.iotdb.types.note"),
        ({"rename": {"temp": "Time"}}, "sink.iotdb.rename"),
        ({"rename": {"temp": "note"}}, "sink.iotdb.rename"),
        ({"exclude": ["id", "temp", "note"]}, "sink.iotdb"),
    ],
)
def test_a_configuration_that_does_not_fit_the_table_names_its_path(overrides: dict[str, object], path: str) -> None:
    with pytest.raises(ConfigError) as raised:
        mapping(**overrides)
    assert raised.value.message.startswith(f"{path}:")


def test_tablets_are_encoded_as_the_client_encodes_them() -> None:
    columns = {
        "d": "int",
        "at": "bigint",
        "i": "int",
        "l": "bigint",
        "f": "float",
        "g": "double",
        "b": "bit(1)",
        "s": "text",
    }
    definition = table_of(columns, "d", "at")
    made = mapping(definition, device="root.p.{d}", time={"column": "at", "unit": "ms"})
    rows: list[Row] = [
        (1, n, n, None if n == 3 else 2**40 + n, n / 2, n / 3, n % 2 == 0, f"é{n}" * n) for n in range(20)
    ]
    points, _ = made.points(table(*rows, definition=definition))
    ((tablet,),) = list(calls(points.by_slot(), made.measurements, 1000))
    kinds = [
        TSDataType.INT32,
        TSDataType.INT64,
        TSDataType.FLOAT,
        TSDataType.DOUBLE,
        TSDataType.BOOLEAN,
        TSDataType.TEXT,
    ]
    values = [np.array([row[2 + n] or 0 for row in rows], kind.np_dtype()) for n, kind in enumerate(kinds[:5])]
    missing = BitMap(20)
    missing.mark(3)
    expected = NumpyTablet(
        "d", tablet.measurements, kinds, [*values, np.array([row[7] for row in rows], object)],
        np.arange(20).astype(">i8"), bitmaps=[None, missing, None, None, None, None],
    )  # fmt: skip
    assert tablet.values == expected.get_binary_values()
    assert tablet.times == expected.get_binary_timestamps()
    assert tablet.types == [int(kind) for kind in kinds]


def test_tablets_are_cut_by_device_and_leave_out_what_is_empty() -> None:
    made = mapping(exclude=["id"])
    rows: list[Row] = [
        (n, f"r{n % 3}", 1, datetime(2024, 1, 1, 0, 0, n), None, "x" if n % 3 == 1 else None) for n in range(30)
    ]
    points, _ = made.points(table(*rows))
    groups = list(calls(points.by_slot(), made.measurements, 7))
    tablets = [tablet for group in groups for tablet in group]
    assert [tablet.rows for tablet in tablets] == [7, 3, 7, 3, 7, 3]
    assert [len(tablet.measurements) for tablet in tablets] == [1, 1, 2, 2, 1, 1]
    assert all(sum(tablet.rows for tablet in group) <= 7 for group in groups)


state = st.one_of(
    st.none(), st.tuples(st.integers(0, 3), st.sampled_from([None, "x"]), st.sampled_from([None, Decimal(1)]))
)


def _row(number: int, found: tuple[int, str | None, Decimal | None]) -> Row:
    return (number, "eu", 1, datetime(2024, 1, 1, 0, 0, found[0]), found[2], found[1])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(state, min_size=2, max_size=5), min_size=1, max_size=3), st.data())
def test_a_window_over_any_state_that_was_read_leaves_the_last_state(
    histories: list[list[tuple[int, str | None, Decimal | None] | None]], data: st.DataObject
) -> None:
    """The target as a dictionary per key; each key was read in some state of its history."""
    made = mapping()
    target = {}
    for number, states in enumerate(histories):
        seen = data.draw(st.sampled_from(states))
        if seen is not None:
            target[number, seen[0]] = {"note": seen[1], "temp": seen[2]}
    left = [_row(n, s) for n, states in enumerate(histories) for s in states[:-1] if s is not None]
    last = [_row(n, states[-1]) for n, states in enumerate(histories) if states[-1] is not None]
    found = slot_changes(made, IotdbWindow(table(*left), table(*last)))
    names = [each.name for each in made.measurements]
    for number, at in zip(
        found.left.rows.column("id").to_pylist(), found.left.rows.column("at").to_pylist(), strict=True
    ):
        target.pop((number, at.second), None)
    for place, row in enumerate(found.kept.rows.to_pylist()):
        slot = target.setdefault((row["id"], row["at"].second), {"note": None, "temp": None})
        slot.update({name: None for name, cell in zip(names, found.cells, strict=True) if cell[place] and name in slot})
        slot.update({name: row[name] for name in slot if row[name] is not None})
    wanted = {
        (n, states[-1][0]): {"note": states[-1][1], "temp": states[-1][2]}
        for n, states in enumerate(histories)
        if states[-1]
    }
    assert target == wanted
