"""Checks that a log still is the one that was read: it may grow, it never shrinks.

A reset log (RESET MASTER), a server restored from a backup, or one that lost its last transactions in a crash continues
from an earlier point. Its positions mean something else from then on. What it holds below the old end would count as
read already, and would be lost without a sound. So every sample is compared with the last one, by position, and by
GTIDs where there are any. A reset log may have grown beyond the old one's end, in bytes and in GTIDs, which begin again
at 1. The identity of its file shows that (see `identity`). Every reader of the log compares it in its own dump, so that
nothing can happen between the check and the reading.
"""

from __future__ import annotations

from consume_upstream.log.gtid import GtidSet, MariaDbGtidPosition, parse_gtids
from consume_upstream.log.identity import LogIdentity, what_differs
from consume_upstream.log.offset import CdcOffset
from vnode_backfill.words.errors import SourceError
from vnode_backfill.words.hints import READ_AGAIN

_HINT = f"What changed in between is not known. {READ_AGAIN}"


def check_log_goes_on(read: CdcOffset, newest: CdcOffset) -> None:
    """Raise unless the log that ends at `newest` can hold what was read up to `read`."""
    if read <= newest and not _lacks(newest.gtids, read.gtids):
        return
    told = f"It has the transactions {newest.gtids or 'none'}; read were {read.gtids}. " if read.gtids else ""
    raise SourceError(
        f"the log of the source was read up to {read} and now ends at {newest}: it is not the same log",
        detail=f"{told}It was reset, or the server was restored or lost transactions.",
        hint=_HINT,
    )


def check_same_file(read: str, known: LogIdentity, found: LogIdentity) -> None:
    """Raise unless the file that was read up to the point `read` is the one that the server has now."""
    differs = what_differs(known, found)
    if differs:
        raise SourceError(
            f"the log of the source was read up to {read}, and the server now has another log",
            detail=f"{differs} The log was reset, or the server was restored.",
            hint=_HINT,
        )


def _lacks(newest: str, read: str) -> bool:
    """Whether transactions that were read are missing from the newest ones."""
    if not read:
        return False
    had, has = parse_gtids(read), parse_gtids(newest)
    if isinstance(had, GtidSet):
        return not (isinstance(has, GtidSet) and has.holds_all(had))
    if not isinstance(has, MariaDbGtidPosition):
        return True
    domains = {domain: (server, sequence) for domain, server, sequence in has.domains}
    return any(domain not in domains or _fell(domains[domain], (server, last)) for domain, server, last in had.domains)


def _fell(has: tuple[int, int], had: tuple[int, int]) -> bool:
    """Without strict mode, servers that write to one domain count each for itself.

    Only the same server's count must rise.
    """
    return has[0] == had[0] and has[1] < had[1]
