"""The log decoder on bytes that real servers wrote: exact values, and no harm from damaged ones."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import zlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consume_upstream.mysql.binlog.split import first_damaged
from tests.unit.consume_upstream.mysql.binlog.log_bytes import FLAVOURS, CapturedLog, Flavour, block_of
from vnode_backfill.words.columns import Column, TableDefinition
from vnode_backfill.words.errors import (
    BackfillError,
    LogFormatError,
    PlanRefusedError,
    SchemaChangedError,
    SourceLostError,
)

FLIPS = int(os.environ.get("LOG_FUZZ_FLIPS", "200"))
"""Damaged logs per server; any number by an environment variable."""


@pytest.fixture(scope="module", params=FLAVOURS)
def log(request: pytest.FixtureRequest) -> CapturedLog:
    return CapturedLog.load(request.param)


def test_captured_log_yields_what_select_said(log: CapturedLog) -> None:
    assert log.read() == list(log.changes)


def test_log_without_checksums_yields_the_same(log: CapturedLog) -> None:
    assert log.without_checksums().read() == list(log.changes)


def test_transactions_of_other_tables_are_reported_too(log: CapturedLog) -> None:
    assert [t.gtid for batch in log.batches() for t in batch.transactions] == list(log.gtids)


def test_interpreted_kernels_give_the_same_values(log: CapturedLog) -> None:
    script = (
        "from tests.unit.consume_upstream.mysql.binlog.log_bytes import CapturedLog\n"
        "from consume_upstream.mysql.compiled import COMPILING\n"
        f"log = CapturedLog.load({log.flavour!r})\n"
        "assert not COMPILING\n"
        "assert log.read() == list(log.changes)\n"
    )
    assert _run_interpreted(script).returncode == 0


def test_damaged_bytes_never_lead_past_an_event(log: CapturedLog) -> None:
    """Interpreted, an index out of bounds raises IndexError, which is no `BackfillError`: the script would fail."""
    script = (
        "from tests.unit.consume_upstream.mysql.binlog.log_bytes import CapturedLog\n"
        "from tests.unit.consume_upstream.mysql.binlog.test_decoder import read_damaged\n"
        f"read_damaged(CapturedLog.load({log.flavour!r}).without_checksums(), seed=2, flips={FLIPS // 4})\n"
    )
    done = _run_interpreted(script)
    assert done.returncode == 0, done.stderr


def _run_interpreted(script: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "VNODE_BACKFILL_NUMBA": "0"}
    return subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)


def read_damaged(log: CapturedLog, *, seed: int, flips: int) -> None:
    """Flip bytes of random events, cut them or make them longer; each time an error or other values, never a crash."""
    chance = random.Random(seed)
    for _ in range(flips):
        index = chance.randrange(1, len(log.events))
        event = bytearray(log.events[index])
        for _ in range(chance.choice((1, 1, 2, 8))):
            event[chance.randrange(len(event))] = chance.choice(
                (0, 1, 0x7F, 0x80, 0xFB, 0xFC, 0xFF, chance.randrange(256))
            )
        if chance.random() < 0.3:
            event = event[: chance.randrange(19, len(event) + 1)] + bytes(chance.choice((0, 0, 3)))
        try:
            log.with_event(index, bytes(event)).read()
        except BackfillError:
            continue


def test_damaged_events_raise_or_yield_other_values(log: CapturedLog) -> None:
    read_damaged(log.without_checksums(), seed=1, flips=FLIPS)


def test_every_flipped_bit_is_caught_by_the_checksum(log: CapturedLog) -> None:
    chance = random.Random(7)
    for index in range(1, len(log.events)):
        event = bytearray(log.events[index])
        event[chance.randrange(len(event))] ^= 1 << chance.randrange(8)
        with pytest.raises(LogFormatError):
            log.with_event(index, bytes(event)).read()


def test_missing_event_is_noticed_by_its_position(log: CapturedLog) -> None:
    for index in range(2, len(log.events) - 1):
        with pytest.raises(BackfillError):
            replace(log, events=(*log.events[:index], *log.events[index + 1 :])).read()


def test_log_cut_after_any_event_is_not_finished(log: CapturedLog) -> None:
    for count in range(1, len(log.events)):
        with pytest.raises(SourceLostError, match="the binlog ended at"):
            replace(log, events=log.events[:count]).batches(stop=log.end)


@settings(deadline=None)
@given(st.lists(st.binary(min_size=23, max_size=1200), min_size=1, max_size=6), st.integers(0, 5))
def test_checksum_of_every_event_is_that_of_zlib(bodies: list[bytes], damaged: int) -> None:
    events = [body + zlib.crc32(body).to_bytes(4, "little") for body in bodies]
    if damaged < len(events):
        events[damaged] = bytes([events[damaged][0] ^ 1]) + events[damaged][1:]
    block = block_of(events)
    expected = damaged if damaged < len(events) else -1
    assert first_damaged(block.data, block.offsets, block.sizes, 0, len(events)) == expected


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize(
    ("column", "changed"),
    [
        ("c0", {"width": 2}), ("c1", {"unsigned": False}), ("c6", {"scale": 3}), ("c14", {"scale": 3}),
        ("c20", {"width": 21}),
        ("c24", {"type_name": "longtext"}), ("c28", {"labels": ("a", "b")}), ("c3", {"name": "other"}),
        ("c22", {"charset": "utf8mb4"}),
    ],
)  # fmt: skip
def test_definition_that_differs_names_the_column(flavour: Flavour, column: str, changed: dict[str, object]) -> None:
    log = CapturedLog.load(flavour)
    columns = tuple(_changed(c, changed) if c.name == column else c for c in log.definition.columns)
    with pytest.raises(SchemaChangedError, match=column):
        replace(log, definition=replace(log.definition, columns=columns)).read()


def _changed(column: Column, changed: dict[str, object]) -> Column:
    return replace(column, **changed)  # type: ignore[arg-type]


def test_definition_with_another_number_of_columns_is_refused(log: CapturedLog) -> None:
    shorter = replace(log.definition, columns=log.definition.columns[:-1])
    with pytest.raises(SchemaChangedError, match="33 columns"):
        replace(log, definition=shorter).read()


def test_character_set_without_an_exact_map_is_refused() -> None:
    column = Column.parse("a", "varchar(10)", nullable=True, charset="big5")
    log = CapturedLog.load("mysql")
    with pytest.raises(PlanRefusedError, match="character set big5"):
        replace(log, definition=TableDefinition("d", "t", (column,), ("a",))).read()


def test_table_that_is_not_in_the_log_has_no_changes(log: CapturedLog) -> None:
    batches = replace(log, definition=replace(log.definition, table="absent")).batches()
    assert sum(len(batch) for batch in batches) == 0
    assert [len(batch.transactions) for batch in batches] == [len(log.gtids)]


def test_images_that_do_not_exist_are_null(log: CapturedLog) -> None:
    for batch in log.batches():
        inserts, deletes = batch.op == 0, batch.op == 2
        assert np.array_equal(batch.before["id"].is_null().to_numpy(zero_copy_only=False), inserts)
        assert np.array_equal(batch.after["id"].is_null().to_numpy(zero_copy_only=False), deletes)


def test_more_transactions_than_one_batch_lists_are_all_reported(log: CapturedLog) -> None:
    plain = log.without_checksums()
    opening = next(event for event in plain.events if event[4] in (33, 162))
    closing = next(event for event in plain.events if event[4] == 16)
    batches = replace(plain, events=(plain.events[0], *(opening, closing) * 70_000)).batches()
    transactions = [t for batch in batches for t in batch.transactions]
    assert len(batches) > 1
    assert len(transactions) == 70_000
    assert [t.start for t in transactions[1:]] == [t.end for t in transactions[:-1]]
