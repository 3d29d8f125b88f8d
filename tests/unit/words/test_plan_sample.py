"""Halving keys of any kind gives ranges that tile the table, whatever is answered, and touches few rows if it can."""

from __future__ import annotations

import random
import uuid
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vnode_backfill.words.key import Key, KeyKind, KeyPart
from vnode_backfill.words.key_range import Bound, bound_of
from vnode_backfill.words.plan import (
    SAMPLED_ROWS,
    Answer,
    Cuts,
    EstimateRows,
    FirstBeyond,
    LastBefore,
    NextBound,
    Question,
    TableFacts,
    make_plan,
    plan_bounds,
)
from vnode_backfill.words.planner.guess import Alphabet, guesses
from vnode_backfill.words.planner.questions import Walk
from vnode_backfill.words.planner.sample import Sample

Lie = Callable[[int], int]
TEXT = (KeyPart("name", KeyKind.TEXT),)
PAIR = (KeyPart("a", KeyKind.INT), KeyPart("b", KeyKind.INT))
TENANT = (KeyPart("tenant", KeyKind.INT), KeyPart("name", KeyKind.TEXT))
laws = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def weighed(parts: tuple[KeyPart, ...], key: Key) -> Bound:
    """A server whose collation compares text without regard to case; equal then, by the text itself."""
    weights = [f"{value.lower()}\0{value}".encode() if isinstance(value, str) else None for value in key]
    return bound_of(parts, key, weights)


@dataclass
class Server:
    """Rows in the server's order; `lie` changes what estimates say. Rows may come and go between answers."""

    parts: tuple[KeyPart, ...]
    rows: list[Bound]
    lie: Lie = lambda truth: truth
    before_answer: Callable[[Server], None] = lambda _: None
    asked: list[Question] = field(default_factory=list)

    def answer(self, question: Question) -> Answer:
        self.asked.append(question)
        self.before_answer(self)
        match question:
            case EstimateRows(bounds=bounds):
                places = [bisect_left(self.rows, bound) for bound in bounds]
                return tuple(self.lie(high - low) for low, high in pairwise(places))
            case NextBound(after=after, rows=rows):
                return self._at(bisect_right(self.rows, after) + rows - 1)
            case FirstBeyond(key=key):
                return self._at(bisect_right(self.rows, weighed(self.parts, key)))
            case LastBefore(bound=bound):
                return self._at(bisect_left(self.rows, bound) - 1)

    def _at(self, place: int) -> Bound | None:
        return self.rows[place] if 0 <= place < len(self.rows) else None

    @property
    def counted(self) -> int:
        """How many rows of the index the server has gone over."""
        return sum(question.rows if isinstance(question, NextBound) else 1 for question in self.asked)


def server(parts: tuple[KeyPart, ...], keys: Iterable[Key], lie: Lie = lambda truth: truth) -> Server:
    return Server(parts, sorted({weighed(parts, key) for key in keys}), lie)


def halved(source: Server, target: int, cuts: Cuts | None = None, most: int | None = None) -> Cuts:
    """What a planner has settled that halves from the first row on; it is stopped after `most` questions."""
    low, high = source.rows[0], source.rows[-1]
    cuts = Cuts.none_from(low) if cuts is None else cuts
    asking = Sample(source.parts, Walk(high, target, len(source.rows))).finish(cuts)
    answer: Answer = None
    for _ in range(100_000 if most is None else most):
        try:
            question = asking.send(answer)
        except StopIteration:
            return cuts
        answer = source.answer(question)
    assert most is not None, "the planner did not come to an end"
    return Cuts(list(cuts.settled))


def held(source: Server, cuts: Cuts) -> list[int]:
    """How many rows each range holds."""
    plan = make_plan(source.parts, cuts.settled, 16)
    assert [each.range.high for each in plan.ranges[:-1]] == [each.range.low for each in plan.ranges[1:]]
    found = [plan.find(row.order) for row in source.rows]
    counts = dict.fromkeys((each.ordinal for each in plan.ranges), 0)
    for each in found:
        assert each is not None
        counts[each.ordinal] += 1
    return list(counts.values())


def keys_of_kind(kind: str, count: int, seed: int) -> Iterator[Key]:
    chance = random.Random(seed)
    for number in range(count):
        match kind:
            case "uuid":
                yield (str(uuid.UUID(int=chance.getrandbits(128))),)
            case "mixed case":
                yield ("".join(chance.choice("abcdefghijklmnopABCDEFGHIJKLMNOP") for _ in range(9)),)
            case "prefixes":
                place = min(int(chance.paretovariate(1.2)), 40)
                yield (f"https://shop.example.com/{'x' * place}/item-{chance.randrange(10**6):06d}",)
            case "pair":
                yield number // 7, number % 7
            case "few tenants":
                yield chance.choice((1, 2, 2, 2, 2, 9)), f"n{chance.randrange(10**6)}"
            case "date":
                yield (date(1990, 1, 1) + timedelta(days=number),)
            case "moment":
                yield (datetime(2024, 1, 1) + timedelta(microseconds=chance.randrange(10**14)),)
            case "decimal":
                yield (Decimal(chance.randrange(10**9)).scaleb(-2),)
            case _:
                yield (chance.randbytes(16),)


PARTS = {
    "uuid": TEXT, "mixed case": TEXT, "prefixes": TEXT, "pair": PAIR, "few tenants": TENANT,
    "date": (KeyPart("d", KeyKind.DATE),), "moment": (KeyPart("t", KeyKind.DATETIME),),
    "decimal": (KeyPart("n", KeyKind.DECIMAL, 2),), "binary": (KeyPart("b", KeyKind.BINARY),),
}  # fmt: skip


@pytest.mark.parametrize("kind", PARTS)
def test_every_kind_of_key_is_cut_into_ranges_near_the_target(kind: str) -> None:
    chance = random.Random(3)
    source = server(PARTS[kind], keys_of_kind(kind, 8_000, seed=5), lambda truth: int(truth * chance.uniform(0.7, 1.5)))
    counts = held(source, halved(source, target=100))
    assert sum(counts) == len(source.rows)
    assert max(counts) <= 300
    assert len(counts) <= 3 * len(source.rows) / 100
    assert source.counted <= 0.6 * len(source.rows), "a walk goes over all of them"


@pytest.mark.parametrize("estimate", [0, 1, 10**9])
def test_estimates_that_say_nothing_end_in_a_walk(estimate: int) -> None:
    source = server(TEXT, keys_of_kind("uuid", 5_000, seed=7), lambda _: estimate)
    counts = held(source, halved(source, target=100))
    assert sum(counts) == 5_000
    assert max(counts) <= 250
    assert len(source.asked) <= 3_000


def test_a_stretch_that_no_guess_divides_is_walked() -> None:
    """Only the last of 40 equal characters differs, and by characters that no known key has shown."""
    source = server(TEXT, [(f"{'x' * 40}{chr(0x4E00 + number)}",) for number in range(3_000)])
    counts = held(source, halved(source, target=100))
    assert sum(counts) == 3_000
    assert max(counts) <= 250


@laws
@given(
    st.lists(
        st.tuples(st.integers(-3, 3), st.text(alphabet="abAB1é", max_size=5)), min_size=2, max_size=80, unique=True
    ),
    st.integers(1, 20),
    st.integers(0, 2**32),
    st.sampled_from(["truth", "noise", "anything"]),
    st.booleans(),
)
def test_ranges_tile_the_table_whatever_is_answered(
    keys: list[Key], target: int, seed: int, estimates: str, moving: bool
) -> None:
    chance = random.Random(seed)
    lies: dict[str, Lie] = {
        "truth": lambda truth: truth, "noise": lambda truth: int(truth * chance.uniform(0.1, 10)),
        "anything": lambda _: chance.randrange(200),
    }  # fmt: skip
    source = server(TENANT, keys, lies[estimates])
    if len(source.rows) < 2:
        return
    low, high = source.rows[0], source.rows[-1]

    def move(moved: Server) -> None:
        """Rows come and go, outside the plan's ends too."""
        kept = [row for row in moved.rows if chance.random() > 0.02]
        new = weighed(TENANT, (chance.randrange(-5, 6), chance.choice("abAB1é")))
        moved.rows = sorted({*kept, new})

    if moving:
        source.before_answer = move
    cuts = halved(source, target)
    bounds = [bound for bound, _ in cuts.settled]
    assert (bounds[0], bounds[-1]) == (low, high)
    assert all(before < after for before, after in pairwise(bounds))
    assert all(rows >= 1 for _, rows in cuts.settled[:-1])
    if not moving:
        assert sum(held(source, cuts)) == len(source.rows)


@pytest.mark.parametrize("most", [10, 60, 150])
def test_a_planner_that_was_interrupted_continues_at_its_last_bound(most: int) -> None:
    source = server(TEXT, keys_of_kind("uuid", 8_000, seed=11))
    settled = halved(source, 100, most=most)
    asked, low = len(source.asked), settled.low
    whole = halved(source, 100, settled)
    assert sum(held(source, whole)) == 8_000
    later = [question for question in source.asked[asked:] if isinstance(question, NextBound)]
    assert all(question.after >= low for question in later)


def test_large_tables_are_sampled_and_small_ones_walked() -> None:
    low, high = (weighed(TEXT, (text,)) for text in ("a", "b"))
    large = next(plan_bounds(TableFacts(TEXT, low, high, SAMPLED_ROWS, 50), 5_000))
    small = next(plan_bounds(TableFacts(TEXT, low, high, SAMPLED_ROWS - 1, 50), 5_000))
    assert isinstance(large, FirstBeyond)
    assert isinstance(small, NextBound)


@pytest.mark.parametrize(
    ("parts", "low", "last", "expected"),
    [
        (PAIR, (1, 5), (9, 2), (5, 5)),
        (PAIR, (7, 5), (8, 2), (7, 2)),
        (PAIR, (7, 10), (7, 30), (7, 20)),
        (PARTS["date"], (date(2024, 1, 1),), (date(2024, 1, 11),), (date(2024, 1, 6),)),
        (PARTS["decimal"], (Decimal("1.00"),), (Decimal("2.01"),), (Decimal("1.50"),)),
        (PARTS["binary"], (b"ab\x00",), (b"ab\x80",), (b"ab\x40",)),
    ],
)
def test_a_guess_is_half_way(parts: tuple[KeyPart, ...], low: Key, last: Key, expected: Key) -> None:
    assert next(guesses(parts, low, last, Alphabet())) == expected


def test_text_is_halved_by_the_characters_that_keys_hold() -> None:
    alphabet = Alphabet()
    for text in ("0123456789", "abcdef"):
        alphabet.learn((text,))
    first = str(next(guesses(TEXT, ("00",), ("ff",), alphabet))[0])
    assert first == "8"
    assert str(next(guesses(TEXT, ("abc0",), ("abcf",), alphabet))[0]).startswith("abc7")
    assert list(guesses(TEXT, ("a",), ("a",), alphabet)) == []
