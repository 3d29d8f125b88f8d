"""Warns once of a job that an earlier release has run: its target may lack rows, or hold labels that were read wrongly.

Releases before this one cut a MySQL transaction that is one compressed event (`binlog_transaction_compression`) after
its first row where it was the last of an epoch. They also took ENUM and SET labels as the server lists them: with its
escapes, and with `?` for characters beyond U+FFFF (see `consume_upstream.mysql.schema.labels`). Nothing in the state
shows whether that happened; `verify` does. So each job has a row in the table `notices` of its state folder: from its
creation on if this release or a later one created it, else from the first run that could look at the server and has
said what there is to say. A job without the row was only ever run by earlier releases.
"""

from __future__ import annotations

import pyarrow as pa

from consume_upstream.upstream_table import UpstreamTable
from progress.store.reader import folder_name
from progress.store.state_table import DEFAULT_RETENTION, StateTable
from vnode_backfill.config.job import Config
from vnode_backfill.config.values import reveal
from vnode_backfill.words.columns import TableDefinition, relabelled
from vnode_backfill.words.errors import SourceError

__all__ = ["is_settled", "lines", "settle"]

_PACKED = "packed-transactions"
_SCHEMA = pa.schema([("id", pa.string()), ("notice", pa.string())])


def is_settled(config: Config, job: str, job_id: str) -> bool:
    """Whether nothing is left to say of this job."""
    return {"id": job_id, "notice": _PACKED} in _table(config, job).rows().to_pylist()


def settle(config: Config, job: str, job_id: str) -> None:
    """Everything was said, or there is nothing to say."""
    _table(config, job).add(pa.Table.from_pylist([{"id": job_id, "notice": _PACKED}], schema=_SCHEMA))


def lines(table: UpstreamTable, stored: TableDefinition) -> tuple[str, ...] | None:
    """What to say of a job that earlier releases have run; None where the server cannot be asked now."""
    packed = _packed(table)
    return None if packed is None else (*packed, *_wrong_labels(table, stored))


def _wrong_labels(table: UpstreamTable, stored: TableDefinition) -> tuple[str, ...]:
    names = ", ".join(relabelled(stored, table.definition) or ())
    if not names:
        return ()
    return (
        f"warning: an earlier release ran this job, and wrote labels of {names} wrongly in rows that came by the log",
        "detail: Labels with a backslash, a line break or a character beyond U+FFFF are read right from this release on.",
        "hint: Compare once the job is live: `vnode-backfill verify`. This is not said again.",
        "hint: Where they differ, `vnode-backfill resnapshot --all` reads every row again; with `executor: single`, a new job.",
    )


def _packed(table: UpstreamTable) -> tuple[str, ...] | None:
    try:
        packed = table.may_hold_packed_transactions()
    except SourceError:
        return None
    if not packed:
        return ()
    return (
        "warning: an earlier release ran this job, and could lose rows of transactions that the server had compressed",
        "detail: The server uses binlog_transaction_compression, or did since it was started.",
        "hint: Compare source and target once the job is live: `vnode-backfill verify`. This is not said again.",
    )


def _table(config: Config, job: str) -> StateTable:
    folder = f"{config.state.path.rstrip('/')}/{folder_name(job)}"
    return StateTable(f"{folder}/notices", _SCHEMA, reveal(config.storage.options), DEFAULT_RETENTION)
