"""Finds the versions of targets that upkeep must keep: those that the newest cut of a job names.

What must be true: what `vnode-backfill cut` prints can be read, with all its tables, until another cut is made, and at
most for `cut_kept_for`. Why it is:

- Whatever deletes files or commits of a target is told the version first: a driver when it opens a table and before
  each time that it tidies, `compact` and `upgrade` when they begin. The cut itself is in the state, so nothing else has
  to remember it.
- A cut that is made while somebody works with the one before names versions that were the newest a moment ago. Their
  files and commits stay for the retention in any case, which is an hour at least, and no upkeep works for so long.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from progress.state.cut import Cut
from progress.store.tables_store import TablesStore
from vnode_backfill.config.job import Config
from vnode_backfill.words.errors import StateError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeptVersions:
    """The newest cut as upkeep sees it at one moment; None if there is none."""

    cut: Cut | None
    now: datetime
    kept_for: timedelta

    @classmethod
    def of(cls, config: Config, store: TablesStore) -> KeptVersions:
        """A cut that cannot be read is told to nobody, so nothing has to be kept for it."""
        text = store.cut()
        try:
            cut = None if text is None else Cut.from_json(text)
        except StateError as error:
            log.warning("the cut keeps no versions error=%s", error.message)
            cut = None
        return cls(cut, datetime.now(UTC), config.cut_kept_for)

    def version_of(self, table: str, sink: str) -> int | None:
        """The version of this table's target to keep; `sink` names the target as in job records."""
        return None if self.cut is None else self.cut.version_kept(table, sink, self.now, self.kept_for)
