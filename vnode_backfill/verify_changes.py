"""Which keys the log says were changed since the target's offset, read piece by piece as the comparison goes on.

A key that no change of `(since, upto]` names had one and the same row at the source all the while. Both images of a change count, so that
the two keys of a row whose key was changed are both named.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from consume_upstream.log import LogBatch
from consume_upstream.mysql.server import MySqlTable
from consume_upstream.mysql.value_forms import row_forms
from consume_upstream.offset import CdcOffset

__all__ = ["ChangedKeys"]

_INSERT, _DELETE = 0, 2


class ChangedKeys:
    """The forms of the keys that were changed behind `since`, as far as the log was read."""

    def __init__(self, table: MySqlTable, since: CdcOffset) -> None:
        self._table = table
        self._upto = since
        self.forms: set[bytes] = set()
        self.newest: CdcOffset | None = None
        """Where the event of the last change that was found ends."""

    def read(self, upto: CdcOffset) -> None:
        """Read on up to an end of the log, which must be the end of a transaction."""
        if upto <= self._upto:
            return
        first, last = self._table.server_ids
        for low, high in self._table.log_stretches(self._upto, upto):
            # The last id of the range: the readers of a running job take the first ones.
            for batch in self._table.read_log(low, high, reader=last - first):
                self._add(batch)
        self._upto = upto

    def _add(self, batch: LogBatch) -> None:
        if not len(batch):
            return
        key = self._table.definition.key_columns
        for image, absent in ((batch.before, _INSERT), (batch.after, _DELETE)):
            there = image.filter(pa.array(batch.op != absent))
            self.forms.update(row_forms(key, there).to_pylist())
        at = int(np.argmax(batch.pos))
        self.newest = replace(self._upto, number=batch.file, pos=int(batch.pos[at]), gtids="")
