"""Guesses a key about half-way between two others, so that the server can be asked for the first row beyond it.

A guess is never a bound and never compared: the server's answer is the bound, and the order is the server's. So a guess
may be wrong in any way. A bad one only fails to divide the rows.

The first part in which the two keys differ is halved: numbers, dates and moments by value, bytes and text as the digits
of a number. The digits of text are the characters that keys of the table were seen to hold (`Alphabet`), because the
half of all characters is a letter that most tables never use:

    keys seen       alphabet          between 00… and ff…    between 3e1… and 3f0…
    uuids           - 0…9 a…f         7                      3e8
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import ROUND_FLOOR, Context, Decimal

from vnode_backfill.words.key import Key, KeyPart, KeyValue

__all__ = ["Alphabet", "guesses"]

_DIGITS = 8
"""How many characters or bytes after the common beginning count."""
_BYTES = 256
_WIDE = Context(prec=100, rounding=ROUND_FLOOR)


@dataclass(slots=True)
class Alphabet:
    """The characters that text keys were seen to hold, in the order of their code points."""

    letters: list[str] = field(default_factory=list)

    def learn(self, key: Key) -> None:
        new = {letter for value in key if isinstance(value, str) for letter in value}.difference(self.letters)
        if new:
            self.letters = sorted([*self.letters, *new])


def guesses(parts: Sequence[KeyPart], low: Key, last: Key, alphabet: Alphabet) -> Iterator[Key]:
    """Keys that may lie between two others, the best guess first; none where the two do not differ."""
    place = next((number for number, (a, b) in enumerate(zip(low, last, strict=True)) if a != b), None)
    if place is None:
        return
    part, begins, rest = parts[place], low[:place], len(parts) - place - 1
    for value in _halves(part, low[place], last[place], alphabet):
        if rest == 0:
            yield (*begins, value)
        elif value != low[place]:
            yield (*begins, value, *low[place + 1 :])
    if rest:
        # Neighbours such as 7 and 8: rows of the one end where rows of the other begin.
        yield (*begins, low[place], *last[place + 1 :])
        yield (*begins, last[place], *low[place + 1 :])


def _halves(part: KeyPart, low: KeyValue, last: KeyValue, alphabet: Alphabet) -> Iterator[KeyValue]:
    if isinstance(low, datetime) and isinstance(last, datetime):
        if (low.tzinfo is None) == (last.tzinfo is None):
            yield low + (last - low) / 2
    elif isinstance(low, date) and isinstance(last, date):
        yield low + timedelta(days=(last - low).days // 2)
    elif isinstance(low, int) and isinstance(last, int):
        yield (low + last) // 2
    elif isinstance(low, Decimal) and isinstance(last, Decimal):
        yield _WIDE.quantize(_WIDE.divide(_WIDE.add(low, last), Decimal(2)), Decimal(1).scaleb(-part.scale))
    elif isinstance(low, bytes) and isinstance(last, bytes):
        yield bytes(digit - 1 for digit in _half_way(_digits(low), _digits(last), _BYTES + 1))
    elif isinstance(low, str) and isinstance(last, str):
        yield from _text_halves(low, last, alphabet)


def _text_halves(low: str, last: str, alphabet: Alphabet) -> Iterator[str]:
    """By the characters as they are, and then without regard to case, as many collations compare."""
    for fold in (str, str.lower):
        letters = sorted({small for letter in alphabet.letters for small in fold(letter)})
        place = {letter: number + 1 for number, letter in enumerate(letters)}
        first, second = ([place.get(letter, 0) for letter in fold(text)] for text in (low, last))
        yield "".join(letters[digit - 1] for digit in _half_way(first, second, len(letters) + 1) if digit)


def _digits(value: bytes) -> list[int]:
    return [byte + 1 for byte in value]


def _half_way(low: Sequence[int], last: Sequence[int], base: int) -> list[int]:
    """The number half-way between two, as digits from 1 on; 0 is what follows the end. Digits after the first 0 go."""
    same = next((n for n, (a, b) in enumerate(zip(low, last, strict=False)) if a != b), min(len(low), len(last)))
    half = (_number(low[same:], base) + _number(last[same:], base)) // 2
    digits: list[int] = []
    for _ in range(_DIGITS):
        half, digit = divmod(half, base)
        digits.insert(0, digit)
    return [*low[:same], *(digits[: digits.index(0)] if 0 in digits else digits)]


def _number(digits: Sequence[int], base: int) -> int:
    number = 0
    for place in range(_DIGITS):
        number = number * base + (digits[place] if place < len(digits) else 0)
    return number
