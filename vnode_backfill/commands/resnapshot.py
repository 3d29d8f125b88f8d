"""Asks a job to read chosen vnodes, a stretch of keys, or the whole table again.

The source is asked nothing, with one exception: the bounds of `--where-key` on a text key, whose order only the
database knows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal, InvalidOperation

from progress.state.backfill_state import Request, RequestKind
from vnode_backfill.commands.requests import ask, writable_job
from vnode_backfill.commands.tables.asked import check_one_table
from vnode_backfill.commands.tables.requests import ask_tables, the_one_table
from vnode_backfill.config.job import Config
from vnode_backfill.words.bitmap import VnodeBitmap
from vnode_backfill.words.errors import ConfigError
from vnode_backfill.words.key import Key, KeyKind, KeyPart, KeyValue
from vnode_backfill.words.key_range import Bound, SplitPlan, bound_of


def resnapshot(
    config: Config, *, only: str | None, where_key: str | None, everything: bool, tables: Sequence[str] = ()
) -> int:
    """Read chosen vnodes, a stretch of keys, or the whole table again; what the sink holds of them is replaced."""
    if sum((only is not None, where_key is not None, everything)) != 1:
        raise ConfigError("resnapshot needs exactly one of --only, --where-key, --all")
    if not config.many:
        check_one_table(config, tables)
    elif (part := the_one_table(config, tables)) is not None:
        config = part
    else:
        return _of_several(config, tables, only=only, where_key=where_key)
    store, loaded = writable_job(config)
    store.check_possible(RequestKind.RESNAPSHOT)
    count = loaded.record.vnode_count
    if everything:
        request = Request(0, RequestKind.RESNAPSHOT, vnodes=frozenset(VnodeBitmap.full(count)), extend=True)
        return ask(store, request, "the whole table, keys that came after planning included")
    if only is not None:
        vnodes = frozenset(VnodeBitmap.parse(only, count))
        if not vnodes:
            raise ConfigError("--only names no vnode", hint="For example: resnapshot --only 3,17-20")
        ranges = sum(planned.vnode in vnodes for planned in loaded.plan.ranges)
        print(
            f"planned ranges of these vnodes, read again: {ranges}. Keys that came after planning are in no range: "
            "they are left as they are; `--all`, or `--where-key` beyond the plan, covers them too"
        )
        return ask(
            store, Request(0, RequestKind.RESNAPSHOT, vnodes=vnodes), f"vnodes {only}, ranges read again: {ranges}"
        )
    low, high = _stretch(config, loaded.plan, where_key or "")
    ordinals = frozenset(p.ordinal for p in loaded.plan.ranges if _meets(p.range.low, p.range.high, low, high))
    outside = _reaches_outside(loaded.plan, low, high)
    request = Request(0, RequestKind.RESNAPSHOT, ordinals=ordinals, extend=outside)
    return ask(store, request, f"{len(ordinals)} ranges" + (" and the keys outside the plan" if outside else ""))


def _of_several(config: Config, tables: Sequence[str], *, only: str | None, where_key: str | None) -> int:
    """The same of several tables. They share no key, and a vnode of one has nothing to do with that of another."""
    if where_key is not None:
        raise ConfigError("--where-key needs one table: tables share no key", hint="Name it with --table.")
    if only is not None:
        raise ConfigError("--only needs one table: each has its own vnodes", hint="Name it with --table, or use --all.")

    def whole(count: int) -> Request:
        return Request(0, RequestKind.RESNAPSHOT, vnodes=frozenset(VnodeBitmap.full(count)), extend=True)

    return ask_tables(config, tables, whole, "whole tables, keys that came after planning included")


def _stretch(config: Config, plan: SplitPlan, text: str) -> tuple[Bound, Bound]:
    """`LOW..HIGH`, both included; columns of a composite key are separated by commas."""
    low, sign, high = text.partition("..")
    if not sign:
        raise ConfigError(f"--where-key {text}: expected LOW..HIGH", hint="For example: --where-key 1000..2000")
    if not plan.compares_keys:
        raise ConfigError(
            f"--where-key {text}: the table is one range, because its keys have no order here",
            hint="Read it again with --all.",
        )
    keys = [_key(plan.parts, low), _key(plan.parts, high)]
    if any(part.kind is KeyKind.TEXT for part in plan.parts):
        from vnode_backfill.job.open.source import open_table

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
    """Bytes of the command line that are no character cannot be sent to a server.

    Asking for them raises a ValueError.
    """
    return word.encode().decode()


def _meets(range_low: Bound | None, range_high: Bound | None, low: Bound, high: Bound) -> bool:
    return (range_low is None or range_low <= high) and (range_high is None or low <= range_high)


def _reaches_outside(plan: SplitPlan, low: Bound, high: Bound) -> bool:
    if not plan.ranges:
        return True
    first, last = plan.ranges[0].range.low, plan.ranges[-1].range.high
    return (first is not None and low < first) or (last is not None and high > last)
