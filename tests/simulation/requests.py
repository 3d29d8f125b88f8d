"""Makes what an operator may ask of a job, at random."""

from __future__ import annotations

from random import Random

from progress.state.backfill_state import Request, RequestKind
from vnode_backfill.words.key import VnodeId


def some_request(random: Random, number: int, vnode_count: int) -> Request:
    kind = random.choice((*RequestKind, RequestKind.RESNAPSHOT, RequestKind.RESCALE))
    match kind:
        case RequestKind.RESCALE:
            return Request(number, kind, workers=random.randrange(1, vnode_count + 1))
        case RequestKind.RATE_LIMIT:
            return Request(number, kind, rows_per_second=random.choice((None, 0, 5)))
        case RequestKind.RESNAPSHOT:
            vnodes = frozenset({VnodeId(random.randrange(vnode_count))})
            return Request(number, kind, vnodes=vnodes, extend=random.random() < 0.5)
        case _:
            return Request(number, kind)


def draining_request(random: Random, number: int, vnode_count: int) -> Request:
    """One that a SyncCheckpoint is for."""
    workers = random.randrange(vnode_count + 1)
    return Request(number, RequestKind.RESCALE, workers=workers) if workers else Request(number, RequestKind.STOP)
