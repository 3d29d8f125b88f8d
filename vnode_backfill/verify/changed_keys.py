"""Reads from the log which keys were changed since the target's offset, piece by piece while the comparison runs.

A key that no change of `(since, upto]` names had one and the same row at the source all the time. Both images of a
change count, so that both keys are named where a row's key was changed.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from consume_upstream.log.batch import LogBatch
from consume_upstream.log.offset import CdcOffset
from consume_upstream.upstream_table import UpstreamTable

__all__ = ["ChangedKeys"]

_INSERT, _DELETE = 0, 2


class ChangedKeys:
    """The forms of the keys that were changed after `since`, as far as the log was read."""

    def __init__(self, table: UpstreamTable, since: CdcOffset) -> None:
        self._table = table
        self._upto = since
        self.forms: set[bytes] = set()
        self.newest: CdcOffset | None = None
        """Where the event of the last change that was found ends."""

    def read(self, upto: CdcOffset) -> None:
        """Read up to an end of the log, which must be the end of a transaction."""
        if upto <= self._upto:
            return
        for low, high in self._table.log_stretches(self._upto, upto):
            for batch in self._table.read_log(low, high, reader=self._table.spare_reader):
                self._add(batch)
        self._upto = upto

    def _add(self, batch: LogBatch) -> None:
        if not len(batch):
            return
        key = self._table.definition.key_columns
        for image, absent in ((batch.before, _INSERT), (batch.after, _DELETE)):
            there = image.filter(pa.array(batch.op != absent))
            self.forms.update(self._table.forms.row_forms(key, there).to_pylist())
        at = int(np.argmax(batch.pos))
        self.newest = replace(self._upto, number=batch.file, pos=int(batch.pos[at]), gtids="")
