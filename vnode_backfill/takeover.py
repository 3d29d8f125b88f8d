"""Whether a new job may write to the target its configuration names, and how it takes over the one that a copy has filled.

What must be true: a target that cannot be had is refused before anything is written, like a wrong configuration. The commits that make the
table the job's own check the same again (see `sinks.delta_target`), because somebody may have been faster; but they need the job's
lease, and taking that makes the job's folder.
"""

from __future__ import annotations

import os

from vnode_backfill.columns import TableDefinition
from vnode_backfill.config import Config
from vnode_backfill.config_values import reveal
from vnode_backfill.delta_files import Storage
from vnode_backfill.delta_log import DeltaLog
from vnode_backfill.errors import ConfigError, PlanRefusedError, SinkError
from vnode_backfill.handoff import StoredHandoff
from vnode_backfill.places import receipts_path
from vnode_backfill.sinks.delta import DeltaSink
from vnode_backfill.sinks.delta_target import can_take_over, take_over
from vnode_backfill.sinks.iotdb import refuse_foreign_points


def check_target(config: Config, definition: TableDefinition, handoff: StoredHandoff | None, successor: str) -> None:
    """Refuse a target that a new job could not write to; `successor` is its state folder. Writes nothing."""
    delta, iotdb = config.sink.delta, config.sink.iotdb
    try:
        if handoff is not None and _is_left_to(config, handoff, successor):
            return
        if delta is not None:
            options = reveal(config.storage.options)
            DeltaSink(delta.path, definition, "", storage_options=options, replace=delta.replace).check()
        elif iotdb is not None and not iotdb.replace:
            refuse_foreign_points(iotdb, definition, iotdb.resolve_password(os.environ).get_secret_value())
    except SinkError as error:
        if error.retryable:
            raise
        raise PlanRefusedError(error.message, detail=error.detail, hint=error.hint) from error


def take_target_over(config: Config, job_id: str, handoff: StoredHandoff, successor: str, generation: int) -> bool:
    """Make the target that another job has filled this one's; False if it is not that job's any more.

    A job told to follow that one is refused then.
    """
    log = _log(config, handoff, job_id, generation)
    taken = take_over(log, handoff.id, successor)
    if not taken and config.mysql.cdc.specific is not None:
        raise _not_filled_by(handoff, log)
    return taken


def _is_left_to(config: Config, handoff: StoredHandoff, successor: str) -> bool:
    """Whether the target is the one that the copying job has filled; a job told to follow that one needs it to be."""
    log = _log(config, handoff)
    if can_take_over(log, handoff.id, successor):
        return True
    if config.mysql.cdc.specific is not None:
        raise _not_filled_by(handoff, log)
    return False


def _log(config: Config, handoff: StoredHandoff, job_id: str = "", generation: int = 0) -> DeltaLog:
    """Where it is written whose the target is: in the target itself, or beside the copying job's state."""
    delta = config.sink.delta
    path = delta.path if delta else receipts_path(config, handoff.job, handoff.id)
    what = "the target table" if delta else "the table of receipts"
    return DeltaLog(Storage.of(path, reveal(config.storage.options)), job_id, what, generation)


def _not_filled_by(handoff: StoredHandoff, log: DeltaLog) -> ConfigError:
    return ConfigError(
        f"mysql.cdc.specific.from_job is {handoff.job}; {log.storage.path} no longer is the table that job has filled",
        hint="Copy the table again with a new job of startup_mode snapshot or initial.",
    )
