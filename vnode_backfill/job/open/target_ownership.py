"""Checks that a new job may write to its target, and takes over the target that a copy has filled.

What must be true: a target that cannot be used is refused before anything is written, like a wrong configuration. The
commits that make the table the job's own check the same again (see `sinks.delta.target`), because somebody may have
been faster; but they need the job's lease, and taking that makes the job's folder.
"""

from __future__ import annotations

from vnode_backfill.config.job import Config
from vnode_backfill.delta.commits import DeltaLog
from vnode_backfill.job.open.handoff import StoredHandoff
from vnode_backfill.job.sink.configured import configured_sink
from vnode_backfill.job.sink.description import Owner
from vnode_backfill.sinks.delta.target import can_take_over, take_over
from vnode_backfill.words.columns import TableDefinition
from vnode_backfill.words.errors import ConfigError, PlanRefusedError, SinkError


def check_target(config: Config, definition: TableDefinition, handoff: StoredHandoff | None, successor: str) -> None:
    """Refuse a target that a new job could not write to; `successor` is its state folder. Writes nothing."""
    try:
        if handoff is not None and _is_left_to(config, handoff, successor):
            configured_sink(config).check_left(definition)
        else:
            configured_sink(config).check_free(definition)
    except SinkError as error:
        if error.retryable:
            raise
        raise PlanRefusedError(error.message, detail=error.detail, hint=error.hint) from error


def take_target_over(config: Config, job_id: str, handoff: StoredHandoff, successor: str, generation: int) -> bool:
    """Make the target that another job has filled this one's; False if it is not that job's any more.

    A job that is configured to follow that one is refused then.
    """
    log = configured_sink(config).ownership(Owner(handoff.job, handoff.id, job_id, generation))
    taken = take_over(log, handoff.id, successor)
    if not taken and config.mysql.cdc.specific is not None:
        raise _not_filled_by(handoff, log)
    return taken


def _is_left_to(config: Config, handoff: StoredHandoff, successor: str) -> bool:
    """Whether the target is the one that the copying job has filled.

    A job that is configured to follow that one needs it to be.
    """
    log = configured_sink(config).ownership(Owner(handoff.job, handoff.id))
    if can_take_over(log, handoff.id, successor):
        return True
    if config.mysql.cdc.specific is not None:
        raise _not_filled_by(handoff, log)
    return False


def _not_filled_by(handoff: StoredHandoff, log: DeltaLog) -> ConfigError:
    return ConfigError(
        f"mysql.cdc.specific.from_job is {handoff.job}; {log.storage.path} no longer is the table that job has filled",
        hint="Copy the table again with a new job of startup_mode snapshot or initial.",
    )
