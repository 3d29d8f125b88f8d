"""What an operator can ask of a job, whether its driver runs or not: written down as a request, acted on at the next barrier.

No JVM is started and the source is asked nothing, with one exception: the bounds of `resnapshot --where-key` on a text key, whose
order only the database knows. A request is checked against the job before it is written; what cannot be carried out is refused here,
with exit code 2.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal, InvalidOperation

from progress.report import JobPhase, Report
from progress.state import MOST_ROWS_PER_SECOND, Phase, Request, RequestKind
from progress.store import Loaded, StateStore
from vnode_backfill.bitmap import VnodeBitmap, check_assignment, split_evenly
from vnode_backfill.config import Config
from vnode_backfill.config_values import reveal
from vnode_backfill.delta_files import Storage
from vnode_backfill.errors import BitmapError, ConfigError, StateError
from vnode_backfill.keys import Bound, SplitPlan, bound_of
from vnode_backfill.places import buffer_path, owner, state_store
from vnode_backfill.status import find_report, read_report
from vnode_backfill.vnode import Key, KeyKind, KeyPart, KeyValue
from vnode_backfill.writable import check_state_readable, check_state_writable

_MOST_DIGITS = 9


def rescale(config: Config, *, workers: int | None, bitmaps: Sequence[str]) -> int:
    """Spread the vnodes over another number of workers, or exactly as the bitmaps say (`0=0-127 1=128-255`)."""
    store, loaded = _job(config)
    store.check_possible(RequestKind.RESCALE)
    if bitmaps:
        assignment = _assignment(bitmaps, loaded.record.vnode_count)
        _warn_of_slots(config, len(assignment))
        return _ask(
            store, Request(0, RequestKind.RESCALE, assignment=assignment), f"{len(assignment)} workers, as given"
        )
    if workers is None:
        raise ConfigError("rescale needs --workers or --bitmap", hint="For example: rescale --workers 8")
    split_evenly(loaded.record.vnode_count, workers)
    _warn_of_slots(config, workers)
    return _ask(store, Request(0, RequestKind.RESCALE, workers=workers), f"{workers} workers")


def throttle(config: Config, *, rows_per_second: int | None) -> int:
    """Limit the snapshot of the whole job; None takes the limit away, 0 pauses it. The log goes on being captured."""
    if rows_per_second is not None and not 0 <= rows_per_second <= MOST_ROWS_PER_SECOND:
        raise ConfigError(
            f"--rows-per-second must be from 0 to {MOST_ROWS_PER_SECOND}",
            hint="0 pauses the snapshot; `throttle --off` takes the limit away.",
        )
    text = "no limit" if rows_per_second is None else f"{rows_per_second:,} rows/s"
    return _ask(_job(config)[0], Request(0, RequestKind.RATE_LIMIT, rows_per_second=rows_per_second), text)


def pause(config: Config) -> int:
    return _ask(_job(config)[0], Request(0, RequestKind.PAUSE), "the snapshot waits, the log does not")


def resume(config: Config) -> int:
    return _ask(_job(config)[0], Request(0, RequestKind.RESUME), "the snapshot goes on")


def stop(config: Config) -> int:
    """Stop the running driver at a SyncCheckpoint; refused where none runs, because the next one would stop at once."""
    store, _ = _job(config)
    if store.current_lease() is None:
        raise StateError(f"nobody drives job {config.job} now, so there is nothing to stop")
    return _ask(store, Request(0, RequestKind.STOP), "everything captured is applied first")


def resnapshot(config: Config, *, only: str | None, where_key: str | None, everything: bool) -> int:
    """Read chosen vnodes, a stretch of keys, or the whole table again; what the sink holds of them is replaced."""
    store, loaded = _job(config)
    store.check_possible(RequestKind.RESNAPSHOT)
    if sum((only is not None, where_key is not None, everything)) != 1:
        raise ConfigError("resnapshot needs exactly one of --only, --where-key, --all")
    count = loaded.record.vnode_count
    if everything:
        request = Request(0, RequestKind.RESNAPSHOT, vnodes=frozenset(VnodeBitmap.full(count)), extend=True)
        return _ask(store, request, "the whole table, keys that came after planning included")
    if only is not None:
        vnodes = frozenset(VnodeBitmap.parse(only, count))
        if not vnodes:
            raise ConfigError("--only names no vnode", hint="For example: resnapshot --only 3,17-20")
        ranges = sum(planned.vnode in vnodes for planned in loaded.plan.ranges)
        print(
            f"planned ranges of these vnodes, read again: {ranges}. Keys that came after planning are in no range: they "
            "are left as they are; `--all`, or `--where-key` beyond the plan, covers them too"
        )
        return _ask(
            store, Request(0, RequestKind.RESNAPSHOT, vnodes=vnodes), f"vnodes {only}, ranges read again: {ranges}"
        )
    low, high = _stretch(config, loaded.plan, where_key or "")
    ordinals = frozenset(p.ordinal for p in loaded.plan.ranges if _meets(p.range.low, p.range.high, low, high))
    outside = _reaches_outside(loaded.plan, low, high)
    request = Request(0, RequestKind.RESNAPSHOT, ordinals=ordinals, extend=outside)
    return _ask(store, request, f"{len(ordinals)} ranges" + (" and the keys outside the plan" if outside else ""))


def drop(config: Config, *, say: Callable[[str], None] = print) -> int:
    """Remove a job's state and buffer after naming what goes. The target is never touched."""
    store, loaded = _job(config)
    buffer = buffer_path(config)
    say(f"removing the state of job {config.job} in {store.folder}")
    say(f"removing its buffer in {buffer}")
    say(f"the target {loaded.record.sink} stays as it is")
    store.drop(owner())
    # A migration that was killed may have left the job's older state behind; alone, it would count again.
    older = state_store(config)
    if older.exists():
        older.drop(owner())
    Storage.of(buffer, reveal(config.storage.options)).remove()
    return 0


def wait(config: Config, *, timeout: timedelta | None, pause_seconds: float = 1.0) -> int:
    """Return 0 once the job is live; raise if it failed or stopped before, or the time is over.

    A job that was only just started does not exist until its plan is made, so it is waited for as well; but not for ever: without
    a timeout a mistyped name must not hang.
    """
    ends = None if timeout is None else time.monotonic() + timeout.total_seconds()
    while ends is not None and time.monotonic() < ends:
        report = find_report(config)
        if report is not None and _is_live(config, report):
            return 0
        time.sleep(pause_seconds)
    while not _is_live(config, report := read_report(config)):
        if ends is not None:
            raise StateError(f"job {config.job} is not live yet: {report.phase}, {report.percent:.2f} %")
        time.sleep(pause_seconds)
    return 0


def _is_live(config: Config, report: Report) -> bool:
    """Whether there is nothing left to wait for; raises if that will not come. A stop drains the merge, so vnodes that are all live then
    are live at one offset. The percentage does not tell: it stays at 100 while a live job is read again."""
    stopped_live = report.phase is JobPhase.STOPPED and set(report.phases) == {Phase.LIVE}
    if report.phase in (JobPhase.FAILED, JobPhase.STOPPED) and not stopped_live:
        raise StateError(f"job {config.job} is {report.phase} at {report.percent:.2f} %")
    return stopped_live or report.phase is JobPhase.LIVE


def _job(config: Config) -> tuple[StateStore, Loaded]:
    store = state_store(config)
    loaded = store.load()
    if loaded is None:
        check_state_readable(config)
        raise StateError(f"there is no job {config.job} in {config.state.path}", hint="Check job and state.path.")
    check_state_writable(config)
    return store, loaded


def _warn_of_slots(config: Config, workers: int) -> None:
    """More workers than the running session has room for are no error: they take turns. Whoever asks should know."""
    slots = read_report(config).observed.task_slots
    needed = workers + config.limits.log_readers + 1
    if slots is not None and slots < needed:
        print(
            f"warning: {workers} workers, {config.limits.log_readers} log readers and the merge need {needed} task slots at the same "
            f"time; the running session has {slots}, so they wait in turn and epochs become longer",
            file=sys.stderr,
        )


def _ask(store: StateStore, request: Request, what: str) -> int:
    number = store.append_request(request, owner(), socket.gethostname())
    when = "at the next barrier" if store.current_lease() else "when the job is run again"
    print(f"request {number}: {request.kind} ({what}), {when}")
    return 0


def _assignment(bitmaps: Sequence[str], vnode_count: int) -> tuple[VnodeBitmap, ...]:
    found: dict[int, VnodeBitmap] = {}
    for text in bitmaps:
        worker, sign, vnodes = text.partition("=")
        if not sign or not worker.isdecimal() or len(worker) > _MOST_DIGITS or int(worker) in found:
            raise BitmapError(f"--bitmap {text}: expected WORKER=VNODES, each worker once", hint="For example: 0=0-127")
        found[int(worker)] = VnodeBitmap.parse(vnodes, vnode_count)
    if sorted(found) != list(range(len(found))):
        raise BitmapError(f"--bitmap: workers are {sorted(found)}, expected 0 to {len(found) - 1}")
    assignment = tuple(found[worker] for worker in range(len(found)))
    check_assignment(assignment, vnode_count)
    return assignment


def _stretch(config: Config, plan: SplitPlan, text: str) -> tuple[Bound, Bound]:
    """`LOW..HIGH`, both included; columns of a composite key are separated by commas."""
    low, sign, high = text.partition("..")
    if not sign:
        raise ConfigError(f"--where-key {text}: expected LOW..HIGH", hint="For example: --where-key 1000..2000")
    keys = [_key(plan.parts, low), _key(plan.parts, high)]
    if any(part.kind is KeyKind.TEXT for part in plan.parts):
        from vnode_backfill.opening import open_table

        with open_table(config).session() as session:
            first, last = session.order_bounds(keys)
    else:
        first, last = (bound_of(plan.parts, key) for key in keys)
    if last < first:
        raise ConfigError(f"--where-key {text}: the upper bound lies below the lower one")
    return first, last


def _key(parts: Sequence[KeyPart], text: str) -> Key:
    words = text.split(",") if len(parts) > 1 else [text]
    if len(words) != len(parts):
        raise ConfigError(f"--where-key {text}: the key has {len(parts)} columns: {', '.join(p.name for p in parts)}")
    return tuple(_value(part, word.strip()) for part, word in zip(parts, words, strict=True))


def _value(part: KeyPart, word: str) -> KeyValue:
    read: dict[KeyKind, Callable[[str], KeyValue]] = {
        KeyKind.INT: int, KeyKind.UINT: int, KeyKind.ENUM: int, KeyKind.DECIMAL: Decimal, KeyKind.TEXT: _storable,
        KeyKind.BINARY: bytes.fromhex, KeyKind.DATE: date.fromisoformat, KeyKind.DATETIME: datetime.fromisoformat,
    }  # fmt: skip
    try:
        return read[part.kind](word)
    except (ValueError, InvalidOperation) as error:
        raise ConfigError(f"--where-key: {word!r} is not a value of {part.name} ({part.kind})") from error


def _storable(word: str) -> str:
    """Bytes of the command line that are no character cannot be sent to a server; asking for them raises a ValueError."""
    return word.encode().decode()


def _meets(range_low: Bound | None, range_high: Bound | None, low: Bound, high: Bound) -> bool:
    return (range_low is None or range_low <= high) and (range_high is None or low <= range_high)


def _reaches_outside(plan: SplitPlan, low: Bound, high: Bound) -> bool:
    if not plan.ranges:
        return True
    first, last = plan.ranges[0].range.low, plan.ranges[-1].range.high
    return (first is not None and low < first) or (last is not None and high > last)
