"""The files of a target give the sums of groups, the digests of a group's rows, and rows by their keys."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from consume_upstream.mysql.rows.value_forms import SameForms, digests, row_forms
from consume_upstream.upstream_table import FORM, ROW_DIGEST
from tests.tables import ORDERS, batch, order, plan
from vnode_backfill.delta.storage import Storage
from vnode_backfill.verify.delta_version import TargetView, open_target
from vnode_backfill.verify.groups import placement_of, stretches_of
from vnode_backfill.verify.tasks import Placement, TargetDigests, TargetRows, TargetSums, combined
from vnode_backfill.words.errors import SinkError

ROWS = pa.Table.from_batches([batch(ORDERS, [order(number) for number in range(1, 41)])])
STRETCHES = stretches_of(plan(ORDERS, (10,), (20,), (30,)))


@pytest.fixture
def view(tmp_path: Path) -> TargetView:
    """Forty rows in four files."""
    for first in (0, 10, 20, 30):
        write_deltalake(tmp_path, ROWS.slice(first, 10).cast(_nullable()), mode="append")
    return open_target(ORDERS, Storage.of(str(tmp_path)), SameForms())


def _nullable() -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in ORDERS.arrow_schema])


def placement(buckets: int = 1) -> Placement:
    ranges = placement_of(ORDERS, STRETCHES, 0)
    return Placement(ranges.parts, ranges.starts, buckets)


def test_files_tell_the_sums_of_the_ranges(view: TargetView) -> None:
    told = combined([TargetSums(files, placement()).run() for files in view.lanes(3)])
    values = digests(row_forms(ORDERS.columns, ROWS))
    assert (view.rows, told.groups.tolist(), told.rows.tolist()) == (40, [0, 1, 2, 3], [9, 10, 11, 10])
    assert int(told.sums[0]) == int(values[:9].sum())


def test_buckets_of_a_range_make_up_the_range(view: TargetView) -> None:
    (files,) = view.lanes(1)
    whole, cut = TargetSums(files, placement()).run(), TargetSums(files, placement(8), np.array([2])).run()
    assert set(cut.groups // 8) == {2}
    assert (cut.rows.sum(), cut.sums.sum()) == (whole.rows[2], whole.sums[2])


def test_digests_are_told_of_the_wanted_groups_only(view: TargetView) -> None:
    (files,) = view.lanes(1)
    told = TargetDigests(files, placement(), np.array([0, 3])).run().sort_by("id")
    assert told.column("id").to_pylist() == [*range(1, 10), *range(31, 41)]
    assert told.column(ROW_DIGEST).to_pylist()[:9] == digests(row_forms(ORDERS.columns, ROWS))[:9].tolist()


def test_rows_are_found_by_the_forms_of_their_keys(view: TargetView) -> None:
    found = [TargetRows(files, (b"7", b"33", b"99"), whole=True).run() for files in view.lanes(4)]
    rows = pa.concat_tables([table for table in found if table.num_rows]).sort_by("id")
    assert rows.column(FORM).to_pylist() == [b"7", b"33"]
    assert rows.drop_columns([FORM]).to_pylist() == ROWS.take([6, 32]).to_pylist()


def test_only_files_that_may_hold_a_range_are_read_for_it(view: TargetView) -> None:
    assert [file.low for file in view.files_of([STRETCHES[0]], ORDERS.key_parts)] == [(1,)]
    assert len(view.files_of([STRETCHES[1]], ORDERS.key_parts)) == 2
    assert {file.low for file in view.files_of([STRETCHES[3]], ORDERS.key_parts)} == {(21,), (31,)}
    assert len(view.files_of([STRETCHES[0]], ())) == 4


def test_target_that_is_partitioned_is_refused(tmp_path: Path) -> None:
    write_deltalake(tmp_path, ROWS.cast(_nullable()), partition_by=["name"])
    with pytest.raises(SinkError, match="not one that this system writes"):
        open_target(ORDERS, Storage.of(str(tmp_path)), SameForms())
