"""Refuses a job whose name holds the state of another kind of job: of one table where many are named, or the reverse.

Both kinds keep their state in a folder by the job's name. Beside each other, one would write targets that the other
counts as its own. So whoever looks at a state is told which kind it is, before anything is written. A job that was
dropped has left nothing but its lease, and its name is free for either kind.
"""

from __future__ import annotations

import pyarrow as pa

from progress.store.rows.checkpoint_rows import JOB, TABLE, document_of
from progress.store.state_form import StateFolder
from vnode_backfill.words.errors import PlanRefusedError

__all__ = ["check_no_walk", "rows_of_many", "rows_of_one"]

_JOB_OF_WALK = pa.schema([("job", pa.string())])


def rows_of_many(job: str, rows: pa.Table) -> pa.Table:
    """The rows of `checkpoints` as a job of many tables has them."""
    if TABLE in rows.schema.names:
        return rows
    if document_of(rows, JOB) is not None:
        raise _of_one_table(job)
    return rows.append_column(TABLE, pa.nulls(rows.num_rows, pa.string()))


def rows_of_one(job: str, rows: pa.Table) -> pa.Table:
    """The rows of `checkpoints` as a job of one table has them."""
    if TABLE not in rows.schema.names:
        return rows
    if any(rows[TABLE].to_pylist()):
        raise PlanRefusedError(
            f"job {job!r} is a job of many tables",
            hint="Name them with `mysql.tables`, or give this job another name.",
        )
    return rows.drop_columns([TABLE])


def check_no_walk(folder: StateFolder) -> None:
    """Raise if the single executor has a job here: its state is in a table of its own, `walk`."""
    walk = folder.table("walk", _JOB_OF_WALK)
    if any(walk.read(walk.open(), ["job"])["job"].to_pylist()):
        raise _of_one_table(folder.job)


def _of_one_table(job: str) -> PlanRefusedError:
    return PlanRefusedError(
        f"job {job!r} is a job of one table",
        hint="Keep `mysql.database` and `mysql.table`, or give the job of many tables another name.",
    )
