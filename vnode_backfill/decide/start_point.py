"""Decides where a job begins, from its configuration, its own progress, and what the server's log holds.

What must be true: a job begins where it left off or where its configuration says, or not at all. Saved progress always
wins over the configured mode, and the plan says so. A point that the log no longer holds, does not hold yet, or that is
of another server is refused before anything is written; a configured point with its YAML path and what is available
instead, a saved one with what to do next. A point inside a transaction cannot be seen from here: the reader that takes
the point up walks the log to it.

After a failover a file name means nothing, so a point of another server is followed by its GTIDs or refused. A log that
was reset and has grown past a stored position since shows by its GTIDs, and where these have grown past the stored ones
too, by the identity of the file (see `consume_upstream.log.identity`).

| mode | copies the table | follows the log from | ends |
|---|---|---|---|
| initial | yes | the visible offset, sampled before the plan | no |
| snapshot | yes | the visible offset, sampled before the plan | at one consistent offset |
| latest | no | the visible offset | no |
| earliest | no | the oldest position held, or behind what was stated of the table before its first rows | no |
| specific | no | the position, GTID set or handoff | no |
| timestamp | no | the first transaction at or after the moment | no |
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import assert_never

from consume_upstream.log.gtid import GtidSet, MariaDbGtidPosition, parse_gtids
from consume_upstream.log.identity import LogIdentity, what_differs
from consume_upstream.log.offset import CdcOffset
from consume_upstream.log.source_log import SourceLog
from vnode_backfill.config.job import CdcConfig, SpecificConfig, StartupMode
from vnode_backfill.words.errors import BackfillError, BinlogPurgedError, ConfigError, PlanRefusedError, SourceError
from vnode_backfill.words.hints import READ_AGAIN


@dataclass(frozen=True, slots=True)
class SavedProgress:
    """The last commit of this very job, and the mode it was created with.

    `seen` are GTIDs of transactions whose effects the target may hold beyond the offset: another server must have them
    too.
    """

    offset: CdcOffset
    mode: StartupMode
    seen: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Handoff:
    """Up to where another job's copy is complete: the point from which its target can be kept in step."""

    job: str
    offset: CdcOffset


@dataclass(frozen=True, slots=True)
class Latest:
    """From the visible offset at the moment the job is created."""


@dataclass(frozen=True, slots=True)
class Earliest:
    """From the oldest position the server holds."""

    offset: CdcOffset


@dataclass(frozen=True, slots=True)
class At:
    """From a position of this server."""

    offset: CdcOffset


@dataclass(frozen=True, slots=True)
class AtGtids:
    """From the first transaction that is not among these."""

    gtids: str


@dataclass(frozen=True, slots=True)
class AtTime:
    """From the first transaction written at or after the moment."""

    moment: datetime


@dataclass(frozen=True, slots=True)
class Saved:
    """From the job's last commit; by its GTIDs if the server is another one than before."""

    offset: CdcOffset
    by_gtids: bool = False


StartFrom = Latest | Earliest | At | AtGtids | AtTime | Saved


@dataclass(frozen=True, slots=True)
class StartPlan:
    """What a start does: whether the table is copied, where the log is taken up, whether the job ends by itself."""

    snapshot: bool
    from_: StartFrom
    bounded: bool = False
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def plan_start(
    cdc: CdcConfig, log: SourceLog, *, saved: SavedProgress | None = None, handoff: Handoff | None = None
) -> StartPlan:
    """Decide where to begin; a point that cannot be taken up raises, and nothing has been written yet.

    `handoff` is that of the job named by `specific.from_job`, or for `latest` that of an earlier job with the same
    target, if there is one.
    """
    if not log.files:
        raise PlanRefusedError(
            "the server keeps no binary log",
            detail="Without it, changes made while the table is copied cannot be known.",
            hint="Set log_bin and binlog_format=ROW, and restart the server.",
        )
    return _plan_new(cdc, log, handoff) if saved is None else _plan_restart(cdc, log, saved)


def why_not_held(offset: CdcOffset, log: SourceLog) -> str:
    """Why the log cannot be read from a stored offset on, as what follows "the offset"; empty if it can.

    An offset of another server is not looked for by its GTIDs: what was read there counts there alone.
    """
    if offset.server != log.server:
        return f"is of {offset.server}, this is {log.server}"
    fault = _fault(offset, log)
    return "" if fault is None else f"{fault.text}: {fault.detail}"


def _plan_new(cdc: CdcConfig, log: SourceLog, handoff: Handoff | None) -> StartPlan:
    match cdc.startup_mode:
        case StartupMode.INITIAL:
            return StartPlan(snapshot=True, from_=Latest())
        case StartupMode.SNAPSHOT:
            return StartPlan(snapshot=True, from_=Latest(), bounded=True)
        case StartupMode.LATEST:
            return StartPlan(snapshot=False, from_=Latest(), warnings=_gap_warnings(handoff, log))
        case StartupMode.EARLIEST:
            warning = f"the log begins at {log.oldest}; rows last written before that are not copied"
            return StartPlan(snapshot=False, from_=Earliest(log.oldest), warnings=(warning,))
        case StartupMode.SPECIFIC:
            return StartPlan(snapshot=False, from_=_specific(cdc.specific, log, handoff))
        case StartupMode.TIMESTAMP:
            return StartPlan(snapshot=False, from_=_at_time(cdc.timestamp, log))
        case _:
            assert_never(cdc.startup_mode)


def _plan_restart(cdc: CdcConfig, log: SourceLog, saved: SavedProgress) -> StartPlan:
    """Go on from the last commit, as the job it was created as."""
    by_gtids = saved.offset.server != log.server
    fault = _fault(saved.offset, log) or (_lacking(saved.seen, log) if by_gtids else None)
    if fault is not None:
        raise _cannot_go_on(fault, saved.offset)
    note = f"the job continues from its saved progress at {saved.offset}"
    changed = f"{note}; mysql.cdc.startup_mode {cdc.startup_mode} is not used, the job was created with {saved.mode}"
    moved = f"the server is another one than before; the log is taken up by GTID after {saved.offset.gtids}"
    same_mode = cdc.startup_mode is saved.mode
    return StartPlan(
        snapshot=saved.mode in (StartupMode.INITIAL, StartupMode.SNAPSHOT),
        from_=Saved(saved.offset, by_gtids=by_gtids),
        bounded=saved.mode is StartupMode.SNAPSHOT,
        notes=(note,) if same_mode else (),
        warnings=(*(() if same_mode else (changed,)), *((moved,) if by_gtids else ())),
    )


def _lacking(seen: tuple[str, ...], log: SourceLog) -> _Fault | None:
    """A replica that took over without the last transactions: the target holds what never happened there."""
    faults = (_gtid_fault(gtids, log) for gtids in seen if gtids)
    return next((fault for fault in faults if fault is not None and fault.kind is _FaultKind.AHEAD), None)


def _specific(specific: SpecificConfig | None, log: SourceLog, handoff: Handoff | None) -> At | AtGtids:
    if specific is None:
        raise ConfigError("mysql.cdc.specific is missing; must be given when startup_mode is specific")
    if specific.from_job is not None:
        return _at_handoff(specific.from_job, handoff, log)
    if specific.gtid is not None:
        _refuse("mysql.cdc.specific.gtid", specific.gtid, _gtid_fault(specific.gtid, log))
        return AtGtids(specific.gtid)
    if specific.file is None or specific.pos is None:
        raise ConfigError("mysql.cdc.specific must hold either file and pos, or gtid, or from_job")
    offset = CdcOffset.at(log.server, specific.file, specific.pos)
    _refuse("mysql.cdc.specific", str(offset), _position_fault(offset, log))
    return At(offset)


def _at_handoff(job: str, handoff: Handoff | None, log: SourceLog) -> At | AtGtids:
    path = "mysql.cdc.specific.from_job"
    if handoff is None or handoff.job != job:
        raise ConfigError(
            f"{path} is {job}; that job has stored no handoff",
            hint="Run it with startup_mode snapshot until it ends, under the same state.path.",
        )
    _refuse(path, f"{job}, whose handoff is {handoff.offset}", _fault(handoff.offset, log))
    return At(handoff.offset.in_era(0)) if handoff.offset.server == log.server else AtGtids(handoff.offset.gtids)


def _at_time(moment: datetime | None, log: SourceLog) -> AtTime:
    if moment is None:
        raise ConfigError("mysql.cdc.timestamp is missing; must be given when startup_mode is timestamp")
    if moment > log.now:
        raise ConfigError(
            f"mysql.cdc.timestamp is {moment.isoformat()}; must not be in the future",
            detail=f"The server's clock says {log.now.isoformat()}.",
        )
    if log.oldest_at is not None and moment < log.oldest_at:
        raise ConfigError(
            f"mysql.cdc.timestamp is {moment.isoformat()}; the log no longer holds that moment",
            detail=f"The oldest event the server still holds is of {log.oldest_at.isoformat()}.",
            hint="Use startup_mode earliest for what is left, or initial to copy the table.",
        )
    return AtTime(moment)


class _FaultKind(Enum):
    PURGED = "purged"
    AHEAD = "ahead"
    FOREIGN = "foreign"


@dataclass(frozen=True, slots=True)
class _Fault:
    """Why the log cannot be taken up at a point: `text` continues "the point …", `detail` says what is available."""

    kind: _FaultKind
    text: str
    detail: str


def _fault(offset: CdcOffset, log: SourceLog) -> _Fault | None:
    """A point this product stored: by position on its own server, by GTID on any other."""
    if offset.server == log.server:
        reset = _reset_fault(offset, log)
        return reset if reset is not None else _position_fault(offset.in_era(0), log)
    if not offset.gtids:
        detail = f"It was taken on {offset.server}, this is {log.server}, and no GTID was stored with it."
        return _Fault(_FaultKind.FOREIGN, "is of another server", detail)
    return _gtid_fault(offset.gtids, log) or _unrelated_fault(offset.gtids, log)


def _unrelated_fault(text: str, log: SourceLog) -> _Fault | None:
    """MariaDB counts transactions per domain, whoever wrote them: any server with a higher count seems to have them
    all. One that really has them knows each writer's last transaction."""
    wanted = parse_gtids(text)
    if not isinstance(wanted, MariaDbGtidPosition):
        return None
    last = {(domain, server): sequence for domain, server, sequence in map(_triple, log.last_gtids)}
    if all(last.get((domain, server), 0) >= sequence for domain, server, sequence in wanted.domains):
        return None
    detail = f"The last transaction of each writer it knows: {', '.join(log.last_gtids) or 'none'}."
    return _Fault(_FaultKind.AHEAD, "holds transactions that the server does not have", detail)


def _triple(gtid: str) -> tuple[int, int, int]:
    domain, server, sequence = map(int, gtid.split("-"))
    return domain, server, sequence


def _position_fault(offset: CdcOffset, log: SourceLog) -> _Fault | None:
    held = f"The server holds {log.oldest} to {log.newest}."
    gone = f"What was written from {offset} to {log.oldest} is missing. {held}"
    if offset.prefix != log.newest.prefix:
        return _Fault(_FaultKind.FOREIGN, "is not of this server's log", held)
    if offset.order < log.oldest.order:
        return _Fault(_FaultKind.PURGED, "is no longer held by the server", gone)
    if offset > log.newest:
        return _Fault(_FaultKind.AHEAD, "is after the end of the log", held)
    sizes = {CdcOffset.at(log.server, file.name, 0).number: file.size for file in log.files}
    if offset.number not in sizes:
        return _Fault(_FaultKind.PURGED, "is in a file that the server does not list", held)
    # The newest file grows while it is listed; its end is `newest`, which was compared above.
    if offset.number < log.newest.number and offset.pos > sizes[offset.number]:
        end = f"{offset.file} ends at {sizes[offset.number]}."
        return _Fault(_FaultKind.AHEAD, "is after the end of its file", end)
    return None


def _reset_fault(offset: CdcOffset, log: SourceLog) -> _Fault | None:
    """A log that was reset may have grown past the stored position again, and past its GTIDs; the identity of its file
    differs."""
    fault = _gtid_fault(offset.gtids, log) if offset.gtids and log.newest.gtids else None
    if fault is not None and fault.kind is not _FaultKind.PURGED:
        return fault
    if not offset.log or not log.file_now:
        return None
    differs = what_differs(LogIdentity.parse(offset.log), LogIdentity.parse(log.file_now))
    return _Fault(_FaultKind.AHEAD, "is of another log than the server has now", differs) if differs else None


def _gtid_fault(text: str, log: SourceLog) -> _Fault | None:
    if not log.newest.gtids:
        return _Fault(_FaultKind.FOREIGN, "cannot be found", "The server has no GTIDs.")
    wanted, executed, purged = parse_gtids(text), parse_gtids(log.newest.gtids), parse_gtids(log.purged_gtids)
    detail = f"The server has {executed}" + (f", of which {purged} are no longer in its log." if purged else ".")
    if isinstance(wanted, GtidSet) and isinstance(executed, GtidSet):
        known, held = executed.holds_all(wanted), not isinstance(purged, GtidSet) or wanted.holds_all(purged)
    elif isinstance(wanted, MariaDbGtidPosition) and isinstance(executed, MariaDbGtidPosition):
        known = executed.holds_all(wanted)
        held = not isinstance(purged, MariaDbGtidPosition) or wanted.holds_all(purged)
    else:
        return _Fault(_FaultKind.FOREIGN, "is not of this kind of server", detail)
    if not known:
        return _Fault(_FaultKind.AHEAD, "holds transactions that the server does not have", detail)
    return None if held else _Fault(_FaultKind.PURGED, "is followed by transactions no longer in the log", detail)


def _refuse(path: str, value: str, fault: _Fault | None) -> None:
    if fault is None:
        return
    hint = "Use startup_mode earliest for what is left, or initial to copy the table."
    raise ConfigError(
        f"{path} is {value}; it {fault.text}",
        detail=fault.detail,
        hint=hint if fault.kind is _FaultKind.PURGED else "",
    )


def _cannot_go_on(fault: _Fault, offset: CdcOffset) -> BackfillError:
    message = f"the job's saved position {offset} {fault.text}"
    match fault.kind:
        case _FaultKind.PURGED:
            return BinlogPurgedError(
                message, detail=fault.detail, hint=f"{READ_AGAIN} Raise binlog_expire_logs_seconds."
            )
        case _FaultKind.AHEAD:
            detail = f"{fault.detail} The log was reset, or the server lost transactions."
            return SourceError(message, detail=detail, hint=READ_AGAIN)
        case _FaultKind.FOREIGN:
            hint = f"Point mysql.host at the server the job has read. If that one is gone for good: {READ_AGAIN}"
            return SourceError(message, detail=fault.detail, hint=hint)
        case _:
            assert_never(fault.kind)


def _gap_warnings(handoff: Handoff | None, log: SourceLog) -> tuple[str, ...]:
    """`latest` after a backfill leaves out what was written in between: say how much that is."""
    if handoff is None or handoff.offset.in_era(0) == log.newest:
        return ()
    if handoff.offset.server == log.server and _fault(handoff.offset, log) is None:
        size = f"{_bytes_between(handoff.offset.in_era(0), log)} bytes of log"
    else:
        size = "an unknown amount of log, which this server no longer holds"
    hint = f"startup_mode specific with from_job {handoff.job} leaves none out"
    return (f"changes after the handoff of {handoff.job} at {handoff.offset} are left out: {size}; {hint}",)


def _bytes_between(start: CdcOffset, log: SourceLog) -> int:
    """The bytes of log from `start`, which the log holds, to its end."""
    if start.number == log.newest.number:
        return log.newest.pos - start.pos
    numbered = [(CdcOffset.at(log.server, file.name, 0).number, file.size) for file in log.files]
    between = sum(size for number, size in numbered if start.number <= number < log.newest.number)
    return between - start.pos + log.newest.pos
