"""Refuses a job whose name holds the state of another kind of job: of one table where many are named, or the reverse.

Both kinds keep their state in a folder by the job's name. Beside each other, one would write targets that the other
counts as its own. So whoever looks at a state is told which kind it is, before anything is written.
"""

from __future__ import annotations

import pyarrow as pa

from progress.store.state_form import StateFolder
from vnode_backfill.words.errors import PlanRefusedError

_JOB_OF_WALK = pa.schema([("job", pa.string())])


def of_one_table(job: str) -> PlanRefusedError:
    return PlanRefusedError(
        f"job {job!r} is a job of one table",
        hint="Keep `mysql.database` and `mysql.table`, or give the job of many tables another name.",
    )


def of_many_tables(job: str) -> PlanRefusedError:
    return PlanRefusedError(
        f"job {job!r} is a job of many tables",
        hint="Name them with `mysql.tables`, or give this job another name.",
    )


def check_no_walk(folder: StateFolder) -> None:
    """Raise if the single executor has a job here: its state is in a table of its own, `walk`."""
    walk = folder.table("walk", _JOB_OF_WALK)
    if any(walk.read(walk.open(), ["job"])["job"].to_pylist()):
        raise of_one_table(folder.job)
