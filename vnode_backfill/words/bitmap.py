"""Assigns vnodes to workers, and moves as few as possible when the number of workers changes.

An assignment is one `VnodeBitmap` per worker. It must always be disjoint and complete: a vnode in two bitmaps would be
snapshotted twice, a vnode in none would never be. `check_assignment` refuses both and names the vnodes.

A worker has no state: what is kept is kept per vnode. So a rescale only hands vnodes over, and `reassign` hands over as
few as possible. With 8 vnodes, from 2 workers to 3:

    worker 0   0-3   →   0-2        keeps 3
    worker 1   4-7   →   4-6        keeps 3
    worker 2         →   3,7        two vnodes moved; with fewer it would have none, or the others would be uneven
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from vnode_backfill.words.errors import BitmapError
from vnode_backfill.words.key import VnodeId, check_vnode_count

_NAMED_RANGES = 20
"""An error names at most this many ranges of vnodes."""
_MOST_DIGITS = 9


@dataclass(frozen=True, slots=True)
class VnodeBitmap:
    """An immutable set of vnodes out of `vnode_count`; bit v of `bits` is vnode v."""

    vnode_count: int
    bits: int

    def __post_init__(self) -> None:
        check_vnode_count(self.vnode_count)
        if not 0 <= self.bits < 1 << self.vnode_count:
            raise BitmapError(f"bitmap {self.bits:#x} has vnodes outside 0-{self.vnode_count - 1}")

    @classmethod
    def parse(cls, text: str, vnode_count: int) -> VnodeBitmap:
        """Read `0-63,128`, the form `str` prints; the empty text is the empty set."""
        check_vnode_count(vnode_count)
        bits = 0
        for piece in text.split(",") if text.strip() else ():
            first, last = _parse_piece(piece.strip(), text, vnode_count)
            bits |= (1 << (last + 1)) - (1 << first)
        return cls(vnode_count, bits)

    @classmethod
    def of(cls, vnodes: Iterable[int], vnode_count: int) -> VnodeBitmap:
        check_vnode_count(vnode_count)
        marks = bytearray(vnode_count)
        for vnode in vnodes:
            if not 0 <= vnode < vnode_count:
                raise BitmapError(f"vnode {vnode} is not between 0 and {vnode_count - 1}")
            marks[vnode] = 1
        return cls(vnode_count, int(marks[::-1].translate(_DIGITS), 2))

    @classmethod
    def full(cls, vnode_count: int) -> VnodeBitmap:
        check_vnode_count(vnode_count)
        return cls(vnode_count, (1 << vnode_count) - 1)

    @classmethod
    def empty(cls, vnode_count: int) -> VnodeBitmap:
        return cls(vnode_count, 0)

    def __contains__(self, vnode: int) -> bool:
        return 0 <= vnode < self.vnode_count and bool(self.bits >> vnode & 1)

    def __iter__(self) -> Iterator[VnodeId]:
        """The vnodes in ascending order."""
        return (VnodeId(vnode) for first, last in self._runs() for vnode in range(first, last + 1))

    def __len__(self) -> int:
        return self.bits.bit_count()

    def __or__(self, other: VnodeBitmap) -> VnodeBitmap:
        return VnodeBitmap(self._common_count(other), self.bits | other.bits)

    def __and__(self, other: VnodeBitmap) -> VnodeBitmap:
        return VnodeBitmap(self._common_count(other), self.bits & other.bits)

    def __sub__(self, other: VnodeBitmap) -> VnodeBitmap:
        return VnodeBitmap(self._common_count(other), self.bits & ~other.bits)

    def __str__(self) -> str:
        return ",".join(self._pieces())

    def named(self) -> str:
        """As `str`, but cut off after some ranges, for messages."""
        pieces = self._pieces()
        more = len(pieces) - _NAMED_RANGES
        return ",".join(pieces[:_NAMED_RANGES]) + (f" and {more} more ranges" if more > 0 else "")

    def _pieces(self) -> list[str]:
        return [str(first) if first == last else f"{first}-{last}" for first, last in self._runs()]

    def _runs(self) -> Iterator[tuple[int, int]]:
        """First and last of each unbroken run of vnodes."""
        rest, offset = self.bits, 0
        while rest:
            zeros = (rest & -rest).bit_length() - 1
            rest >>= zeros
            ones = (~rest & (rest + 1)).bit_length() - 1
            rest >>= ones
            yield offset + zeros, offset + zeros + ones - 1
            offset += zeros + ones

    def _common_count(self, other: VnodeBitmap) -> int:
        if self.vnode_count != other.vnode_count:
            raise BitmapError(f"bitmaps of {self.vnode_count} and of {other.vnode_count} vnodes cannot be combined")
        return self.vnode_count


_DIGITS = bytes.maketrans(b"\x00\x01", b"01")


def split_evenly(vnode_count: int, workers: int) -> tuple[VnodeBitmap, ...]:
    """One contiguous bitmap per worker; their sizes differ by at most one."""
    _check_workers(vnode_count, workers)
    size, larger = divmod(vnode_count, workers)
    starts = [worker * size + min(worker, larger) for worker in range(workers + 1)]
    return tuple(VnodeBitmap(vnode_count, (1 << high) - (1 << low)) for low, high in pairwise(starts))


def check_assignment(bitmaps: Sequence[VnodeBitmap], vnode_count: int) -> None:
    """Refuse an assignment in which a vnode has two workers or none. A worker without vnodes is allowed."""
    seen = overlap = VnodeBitmap.empty(vnode_count)
    for bitmap in bitmaps:
        overlap |= seen & bitmap
        seen |= bitmap
    if overlap:
        owners = [worker for worker, bitmap in enumerate(bitmaps) if bitmap & overlap]
        raise BitmapError(
            f"vnodes {overlap.named()} are in more than one bitmap",
            detail=f"They are shared by workers {', '.join(map(str, owners[:_NAMED_RANGES]))}.",
            hint="Give each vnode to exactly one worker.",
        )
    holes = VnodeBitmap.full(vnode_count) - seen
    if holes:
        raise BitmapError(
            f"vnodes {holes.named()} are in no bitmap",
            detail=f"{len(holes)} of {vnode_count} vnodes would never be copied.",
            hint="Give each vnode to exactly one worker.",
        )


def reassign(assignment: Sequence[VnodeBitmap], workers: int) -> tuple[VnodeBitmap, ...]:
    """Spread the vnodes of any complete assignment evenly over `workers`, moving as few vnodes as possible.

    Old workers keep their relative order and new ones follow them. When there are fewer workers than before, those that
    had the most vnodes stay. The same input gives the same output, also after a restart.
    """
    vnode_count = assignment[0].vnode_count if assignment else 0
    _check_workers(vnode_count, workers)
    check_assignment(assignment, vnode_count)
    staying = _staying(assignment, workers)
    quotas = _quotas(staying, vnode_count)
    kept = [_lowest(bitmap, quota) for bitmap, quota in zip(staying, quotas, strict=True)]
    homeless = iter(VnodeBitmap.full(vnode_count) - _union(kept, vnode_count))
    return tuple(
        bitmap | VnodeBitmap.of((next(homeless) for _ in range(quota - len(bitmap))), vnode_count)
        for bitmap, quota in zip(kept, quotas, strict=True)
    )


def moved(old: Sequence[VnodeBitmap], new: Sequence[VnodeBitmap]) -> VnodeBitmap:
    """The vnodes that change hands between two complete assignments.

    A worker's number may change when others leave, and that alone moves nothing: a new worker continues the old one it
    shares most vnodes with (of equals the one with the same number, then the lowest), and each old one is continued
    once.
    """
    vnode_count = old[0].vnode_count if old else 0
    check_assignment(old, vnode_count)
    check_assignment(new, vnode_count)
    staying = VnodeBitmap.empty(vnode_count)
    continued: set[int] = set()
    continuing: set[int] = set()
    for before, after in _by_overlap(old, new, vnode_count):
        if before not in continued and after not in continuing:
            continued.add(before)
            continuing.add(after)
            staying |= old[before] & new[after]
    return VnodeBitmap.full(vnode_count) - staying


def _by_overlap(old: Sequence[VnodeBitmap], new: Sequence[VnodeBitmap], vnode_count: int) -> list[tuple[int, int]]:
    """Pairs of an old and a new worker that share vnodes, the closest first."""
    overlap = Counter(zip(_owners(old, vnode_count), _owners(new, vnode_count), strict=True))
    return sorted(overlap, key=lambda pair: (-overlap[pair], pair[0] != pair[1], pair))


def _owners(assignment: Sequence[VnodeBitmap], vnode_count: int) -> list[int]:
    owners = [0] * vnode_count
    for worker, bitmap in enumerate(assignment):
        for vnode in bitmap:
            owners[vnode] = worker
    return owners


def _staying(assignment: Sequence[VnodeBitmap], workers: int) -> list[VnodeBitmap]:
    largest = sorted(range(len(assignment)), key=lambda worker: (-len(assignment[worker]), worker))[:workers]
    staying = [assignment[worker] for worker in sorted(largest)]
    return staying + [VnodeBitmap.empty(assignment[0].vnode_count)] * (workers - len(staying))


def _quotas(staying: Sequence[VnodeBitmap], vnode_count: int) -> list[int]:
    """How many vnodes each worker gets. Those with the most vnodes get the one more, so that they give up less."""
    size, larger = divmod(vnode_count, len(staying))
    quotas = [size] * len(staying)
    for worker in sorted(range(len(staying)), key=lambda each: (-len(staying[each]), each))[:larger]:
        quotas[worker] += 1
    return quotas


def _lowest(bitmap: VnodeBitmap, quota: int) -> VnodeBitmap:
    if len(bitmap) <= quota:
        return bitmap
    return VnodeBitmap.of(list(bitmap)[:quota], bitmap.vnode_count)


def _union(bitmaps: Iterable[VnodeBitmap], vnode_count: int) -> VnodeBitmap:
    union = VnodeBitmap.empty(vnode_count)
    for bitmap in bitmaps:
        union |= bitmap
    return union


def _parse_piece(piece: str, text: str, vnode_count: int) -> tuple[int, int]:
    ends = [end.strip() for end in piece.split("-")]
    if len(ends) > 2 or not all(end.isascii() and end.isdigit() and len(end) <= _MOST_DIGITS for end in ends):
        raise BitmapError(
            f"{piece!r} in vnodes {text!r} is neither a vnode nor a range of vnodes", hint="Write `0-63,128`."
        )
    first, last = int(ends[0]), int(ends[-1])
    if first > last:
        raise BitmapError(f"range {piece!r} in vnodes {text!r} runs backwards")
    if last >= vnode_count:
        raise BitmapError(f"vnode {last} in vnodes {text!r} is not between 0 and {vnode_count - 1}")
    return first, last


def _check_workers(vnode_count: int, workers: int) -> None:
    check_vnode_count(vnode_count)
    if not 1 <= workers <= vnode_count:
        raise BitmapError(
            f"{workers} workers cannot share {vnode_count} vnodes",
            detail=f"There must be between 1 and {vnode_count} workers, one vnode each at least.",
            hint="Set `workers` or --workers.",
        )
