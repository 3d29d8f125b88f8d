"""What orders of a run took in all is the sum of what each took, epoch by epoch."""

from __future__ import annotations

from benchmarks.process_tree import Cpu
from benchmarks.recorder import Mark
from benchmarks.runs import JobRun, Spent
from benchmarks.workers import ordered_seconds


def test_orders_of_one_name_are_added_up_and_others_left_out() -> None:
    marks = (
        Mark(1.0, "ReadRanges", "before", 1),
        Mark(2.0, "CommitReceipts", "before", 1),
        Mark(2.5, "CommitReceipts", "after", 1),
        Mark(4.0, "ReadRanges", "after", 1),
        Mark(4.0, "CommitEpoch", "before", 1),
        Mark(4.25, "CommitEpoch", "after", 1),
        Mark(5.0, "ReadRanges", "before", 2),
        Mark(5.5, "ReadRanges", "after", 2),
        Mark(6.0, "ReadRanges", "before", 3),
    )
    run = JobRun(Spent(9.0, Cpu(), 0.0, 0, 0, ""), marks)
    assert ordered_seconds(run, "ReadRanges") == 3.5
    assert ordered_seconds(run, "CommitReceipts", "CommitEpoch") == 0.75
