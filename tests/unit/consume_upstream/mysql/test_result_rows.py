"""Result rows become the canonical values, and bytes that are no row never become values or a crash."""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from consume_upstream.mysql.rows.kernels import Split, split_rows
from consume_upstream.mysql.rows.prepared_statement import RowBlock, WireColumn, encode_parameters
from consume_upstream.mysql.rows.result_rows import RowDecoder
from vnode_backfill.words.columns import Column
from vnode_backfill.words.errors import SchemaChangedError, SourceError, SourceLostError

INT, BIG, TEXT, MONEY = (
    Column.parse("id", "int", nullable=False),
    Column.parse("big", "bigint unsigned", nullable=True),
    Column.parse("name", "varchar(50)", nullable=True, charset="utf8mb4", collation="utf8mb4_bin"),
    Column.parse("amount", "decimal(18,4)", nullable=True),
)
AT = Column.parse("at", "datetime(6)", nullable=True)
COLUMNS = (INT, BIG, TEXT, MONEY, AT)
Cell = bytes | None


def packed_row(cells: Sequence[Cell]) -> bytes:
    """A row of the binary protocol: a zero byte, the NULL bitmap (2 bits in), the values."""
    bitmap = sum(1 << (index + 2) for index, cell in enumerate(cells) if cell is None)
    size = (len(cells) + 9) // 8
    return b"\0" + bitmap.to_bytes(size, "little") + b"".join(cell for cell in cells if cell is not None)


def sized(value: bytes) -> bytes:
    return (bytes([len(value)]) if len(value) < 251 else b"\xfc" + struct.pack("<H", len(value))) + value


def moment(at: datetime) -> bytes:
    return struct.pack("<BHBBBBBI", 11, at.year, at.month, at.day, at.hour, at.minute, at.second, at.microsecond)


def block_of(rows: Sequence[bytes]) -> RowBlock:
    ends = np.cumsum([len(row) for row in rows], dtype=np.int64)
    starts = ends - np.array([len(row) for row in rows], dtype=np.int64)
    return RowBlock(np.frombuffer(b"".join(rows), np.uint8), starts, ends)


def decode(columns: Sequence[Column], *rows: bytes) -> list[tuple[object, ...]]:
    batch = RowDecoder(columns).decode(block_of(rows))
    batch.validate(full=True)
    return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))


SAMPLE = (
    packed_row([
        struct.pack("<i", -7), struct.pack("<Q", 2**64 - 1), sized("Grüße".encode()), sized(b"-12.5000"),
        moment(datetime(2024, 2, 29, 23, 59, 59, 999999)),
    ]),
    packed_row([struct.pack("<i", 8), None, None, None, None]),
    packed_row([struct.pack("<i", 9), struct.pack("<Q", 0), sized(b""), sized(b"0.0001"), moment(datetime(1, 1, 1))]),
)  # fmt: skip
SAMPLE_VALUES = [
    (-7, Decimal(2**64 - 1), "Grüße", Decimal("-12.5000"), datetime(2024, 2, 29, 23, 59, 59, 999999)),
    (8, None, None, None, None),
    (9, Decimal(0), "", Decimal("0.0001"), datetime(1, 1, 1)),
]


def test_values_of_common_types_are_canonical() -> None:
    assert decode(COLUMNS, *SAMPLE) == SAMPLE_VALUES


@pytest.mark.parametrize(
    ("column_type", "sent", "value"),
    [
        ("tinyint", b"\x80", -128),
        ("tinyint unsigned", b"\xff", 255),
        ("smallint unsigned", b"\xff\xff", 65535),
        ("mediumint", struct.pack("<i", -8388608), -8388608),
        ("int unsigned", b"\xff\xff\xff\xff", 4294967295),
        ("bigint", struct.pack("<q", -(2**63)), -(2**63)),
        ("float", struct.pack("<f", 0.1), struct.unpack("<f", struct.pack("<f", 0.1))[0]),
        ("double", struct.pack("<d", 0.1), 0.1),
        ("bit(1)", sized(b"\x01"), True),
        ("bit(10)", sized(b"\x02\x01"), b"\x02\x01"),
        ("year", struct.pack("<H", 2155), 2155),
        ("date", struct.pack("<BHBB", 4, 1969, 12, 31), date(1969, 12, 31)),
        ("timestamp", struct.pack("<BHBBBBB", 7, 2038, 1, 19, 3, 14, 7), datetime(2038, 1, 19, 3, 14, 7, tzinfo=UTC)),
        ("datetime(3)", struct.pack("<BHBB", 4, 9999, 12, 31), datetime(9999, 12, 31)),
        ("decimal(38,0)", sized(b"-" + b"9" * 38), Decimal("-" + "9" * 38)),
        ("decimal(65,30)", sized(b"1." + b"0" * 30), "1." + "0" * 30),
        ("enum('a','b')", sized(b"b"), "b"),
        ("varbinary(300)", sized(bytes(range(256))), bytes(range(256))),
    ],
)
def test_value_of_each_type_is_canonical(column_type: str, sent: bytes, value: object) -> None:
    column = Column.parse("c", column_type, nullable=True)
    assert decode([column], packed_row([sent]), packed_row([None])) == [(value,), (None,)]


@pytest.mark.parametrize(
    "sent",
    [b"\x00", struct.pack("<BHBB", 4, 2024, 0, 15), struct.pack("<BHBB", 4, 2024, 2, 31)],
    ids=["zero", "no month", "31 February"],
)
def test_day_outside_the_calendar_is_null_or_an_error_by_configuration(sent: bytes) -> None:
    block = block_of([packed_row([struct.pack("<i", 1), sent])])
    assert RowDecoder([INT, AT]).decode(block).column(1).to_pylist() == [None]
    with pytest.raises(SourceError, match="column at holds a datetime that is not a day of the calendar"):
        RowDecoder([INT, AT], zero_dates="error").decode(block)


def test_day_outside_the_calendar_in_a_key_is_always_an_error() -> None:
    with pytest.raises(SourceError, match="not a day of the calendar"):
        RowDecoder([AT], key=["at"]).decode(block_of([packed_row([b"\x00"])]))


def test_batch_does_not_change_when_the_buffer_is_used_again() -> None:
    buffer = np.frombuffer(b"".join(SAMPLE), np.uint8).copy()
    block = block_of(SAMPLE)
    batch = RowDecoder(COLUMNS).decode(RowBlock(buffer, block.starts, block.ends))
    buffer[:] = 0xAA
    assert batch.column(2).to_pylist() == ["Grüße", None, ""]


def test_row_cut_at_any_byte_is_refused() -> None:
    for size in range(len(SAMPLE[0])):
        with pytest.raises(SourceLostError, match="cannot be split"):
            decode(COLUMNS, SAMPLE[0][:size])


def test_row_with_bytes_left_over_is_refused() -> None:
    with pytest.raises(SourceLostError, match="row 1 of a block"):
        decode(COLUMNS, SAMPLE[0], SAMPLE[1] + b"\0")


def test_flipped_bytes_never_read_outside_the_row() -> None:
    random = Random(7)
    decoder = RowDecoder(COLUMNS)
    for _ in range(3000):
        damaged = bytearray(SAMPLE[0])
        for _ in range(random.randint(1, 4)):
            damaged[random.randrange(len(damaged))] = random.randrange(256)
        try:
            batch = decoder.decode(block_of([bytes(damaged)]))
        except SourceError:
            continue
        assert sum(len(value or "") for value in batch.column(2).cast(pa.binary()).to_pylist()) < len(damaged)


def test_result_with_another_type_is_a_changed_schema() -> None:
    decoder = RowDecoder([INT])
    decoder.check([WireColumn("id", 3, unsigned=False)])
    with pytest.raises(SchemaChangedError, match="column id is no longer int"):
        decoder.check([WireColumn("id", 8, unsigned=False)])
    with pytest.raises(SchemaChangedError, match="column id is no longer int"):
        decoder.check([WireColumn("id", 3, unsigned=True)])
    with pytest.raises(SchemaChangedError, match="sends 2 columns, 1 were asked for"):
        decoder.check([WireColumn("id", 3, unsigned=False)] * 2)


def test_decimal_that_does_not_fit_its_definition_is_a_changed_schema() -> None:
    with pytest.raises(SchemaChangedError, match=r"not a decimal\(18,4\)"):
        decode([MONEY], packed_row([sized(b"1.00005")]))


def split(data: bytes, sequence: int = 1, room: int = 10) -> tuple[int, int, int, int]:
    starts, ends = np.empty(room, np.int64), np.empty(room, np.int64)
    return split_rows(np.frombuffer(data, np.uint8), 0, len(data), sequence, starts, ends, 0)


def packet(payload: bytes, sequence: int) -> bytes:
    return len(payload).to_bytes(3, "little") + bytes([sequence]) + payload


def test_rows_are_split_only_when_they_are_whole() -> None:
    data = packet(b"\0abc", 255) + packet(b"\0de", 0)
    assert split(data, 255) == (Split.NEED_MORE, 2, len(data), 1)
    for size in range(8, len(data)):
        assert split(data[:size], 255) == (Split.NEED_MORE, 1, 8, 0)
    assert split(data, 255, room=1) == (Split.FULL, 1, 8, 0)


def test_anything_but_a_row_stops_the_split() -> None:
    row = packet(b"\0", 1)
    assert split(row + packet(b"\xfe\0\0\x02\0", 2))[:2] == (Split.OTHER_PACKET, 1)
    assert split(row + packet(b"\xff\x25\x05killed", 2))[:2] == (Split.OTHER_PACKET, 1)
    assert split(row + packet(b"", 2))[:2] == (Split.OTHER_PACKET, 1)
    assert split(row + packet(b"\0", 3))[:2] == (Split.OUT_OF_SEQUENCE, 1)
    assert split(row + b"\xff\xff\xff\x02\0")[:2] == (Split.LONG_PACKET, 1)


def test_parameters_are_sent_typed() -> None:
    assert encode_parameters([-1]) == b"\0\x01\x08\x00" + b"\xff" * 8
    assert encode_parameters([2**64 - 1]) == b"\0\x01\x08\x80" + b"\xff" * 8
    assert encode_parameters(["é", b"\xff"]) == b"\0\x01\xfd\x00\xfc\x00" + b"\x02\xc3\xa9" + b"\x01\xff"
    assert encode_parameters([Decimal("1E+2")]) == b"\0\x01\xf6\x00\x03100"
    assert encode_parameters([date(2024, 1, 2)]) == b"\0\x01\x0a\x00" + struct.pack("<BHBB", 4, 2024, 1, 2)
    assert encode_parameters([datetime(2024, 1, 2, tzinfo=UTC)]) == b"\0\x01\x0c\x00" + moment(datetime(2024, 1, 2))


_WITHOUT_NUMBA = """
import pickle, sys
from consume_upstream.mysql.compiled import COMPILING
from tests.unit.consume_upstream.mysql.test_result_rows import COLUMNS, SAMPLE, decode, split, packet
answer = (COMPILING, decode(COLUMNS, *SAMPLE), split(packet(b"\\0abc", 1) + packet(b"\\0", 2)))
sys.stdout.buffer.write(pickle.dumps(answer))
"""


def test_without_numba_the_same_values_come_out() -> None:
    answer = subprocess.run(
        [sys.executable, "-c", _WITHOUT_NUMBA],
        env={**os.environ, "VNODE_BACKFILL_NUMBA": "0"},
        stdout=subprocess.PIPE,
        check=True,
    ).stdout
    assert pickle.loads(answer) == (False, SAMPLE_VALUES, split(packet(b"\0abc", 1) + packet(b"\0", 2)))
