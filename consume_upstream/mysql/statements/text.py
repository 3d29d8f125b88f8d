"""Reads the words of a statement in the log as the server has read them.

The log holds the bytes that the client sent, and the number of the client's character set. Some statements the server
writes itself (`DROP TABLE`, `CREATE TABLE … SELECT`): these are UTF-8, whatever the number says. A prepared statement
has the character set and the `sql_mode` of its PREPARE, but the log says those of its EXECUTE. So a text is read in
every way in which the server may have read it, and the caller judges each reading. A reading that leaves a quote or a
comment open is not the server's.

A few character sets are not decoded here as the server does it. A PREPARE in one of them, and an EXECUTE in another,
leave bytes that seem to name some other table. So a name that must not be missed, and that no reading holds, is looked
for as bytes, too.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product

from pymysql import charset as driver_charsets

from consume_upstream.mysql.schema.charsets import CLIENT_CHARSETS, charset_named
from vnode_backfill.words.errors import LogFormatError, PlanRefusedError

__all__ = ["UNREADABLE", "Token", "folded", "readings", "texts"]

UNREADABLE = "\ufffd"
"""Replaces bytes that this client cannot decode as the server does."""

# Characters of several bytes whose last bytes may be ASCII: the server's lexer keeps them together, decodable or not.
_UNITS = {
    "big5": rb"[\xa1-\xf9][\x40-\x7e\xa1-\xfe]",
    "cp932": rb"[\x81-\x9f\xe0-\xfc][\x40-\x7e\x80-\xfc]|[\xa1-\xdf]",
    "sjis": rb"[\x81-\x9f\xe0-\xfc][\x40-\x7e\x80-\xfc]|[\xa1-\xdf]",
    "euckr": rb"[\x81-\xfe][\x41-\x5a\x61-\x7a\x81-\xfe]",
    "gb18030": rb"[\x81-\xfe](?:[\x40-\x7e\x80-\xfe]|[\x30-\x39][\x81-\xfe][\x30-\x39])",
    "gbk": rb"[\x81-\xfe][\x40-\x7e\x80-\xfe]",
}
_RUNS = rb"[\x80-\xff]+"
_HIGH_BYTE = rb"[\x80-\xff]"
_NOT_AFTER, _NOT_BEFORE = rb"(?<![\w$\x80-\xff])", rb"(?![\w$\x80-\xff])"
"""Around a whole name. Without them half of a letter in UTF-8 would pass for one of a set with a byte for each."""
_BIG5 = ("big5", "cp950", "big5hkscs")
"""What Python knows of big5: together they have every character that the server's has."""
_UNDECODED_LETTERS = "[\u00a0-\u017f]+|[\u0530-\u058f]+|[\u10a0-\u10ff]+"
"""Of keybcs2, armscii8 and geostd8, which have one byte for each."""
_SWE7 = str.maketrans(dict.fromkeys("[]{|}~^", UNREADABLE))


@dataclass(frozen=True, slots=True)
class Token:
    """A word, a quoted text or a symbol; `text` of words and names is folded."""

    text: str
    bare: bool
    """A word without quotes: may be a keyword."""
    name: bool
    """May name something: a word, or text in backticks, double quotes or brackets."""
    spelled: str = ""
    """A word or name as it is written: `text` is not enough where case matters."""

    def says(self, *words: str) -> bool:
        return self.bare and self.text in words


def folded(name: str) -> str:
    """A name without regard to case. It makes equal whatever a server's own rule makes equal, and a little more."""
    return name.replace("\u0130", "i").replace("\u0131", "i").replace("\xa0", " ").casefold()


def texts(raw: bytes, collation: int | None, names: tuple[str, ...]) -> list[str]:
    """What the bytes may say, the client's character set first. `names` are those that must not be missed."""
    charset = _client_charset(collation)
    if raw.isascii() and charset != "swe7":
        return [raw.decode("ascii")]
    found = [_decoded(raw, charset)]
    with contextlib.suppress(UnicodeDecodeError):
        found.append(raw.decode())
    beyond_ascii = [folded(name) for name in names if not name.isascii()]
    if beyond_ascii:
        others = (_decoded(raw, each) for each in CLIENT_CHARSETS)
        found += [text for text in others if any(name in folded(text) for name in beyond_ascii)]
        held = {token.text for text in found for tokens in readings(text) for token in tokens if token.name}
        missed = [name for name in names if folded(name) not in held]
        found += [_decoded(said, "utf8mb4") for name in missed for said in _said_undecoded(raw, name)]
    return list(dict.fromkeys(found))


def readings(text: str) -> list[list[Token]]:
    """The tokens of the text in every way in which a server may read it; none if each leaves something open.

    The ways differ in backslashes (`sql_mode`) and in comments that only MariaDB executes. An executable comment that
    was passed over is a plain one in the log: the server blanks its `!`.
    """
    backslashes = (3, 1, 0) if "\\" in text else (3,)
    executed = ("M?", "") if "/*M!" in text else ("M?",)
    ways = (_tokens(text, _lexemes(*way)) for way in product(backslashes, executed))
    return [tokens for tokens in ways if tokens is not None]


@cache
def _client_charset(collation: int | None) -> str:
    """Numbers above 1023 are MariaDB's collations without padding; the others that are not known are of Unicode."""
    number = collation or 0
    try:
        found = driver_charsets.charset_by_id(number - 1024 if number > 1023 else number)
    except KeyError:
        return "utf8mb4"
    return str(found.name)  # type: ignore[attr-defined] # the stubs leave the attribute out


def _decoded(raw: bytes, charset: str) -> str:
    """Every byte counts: what cannot be decoded becomes `UNREADABLE`."""
    if charset == "swe7":
        return raw.decode("ascii", "replace").translate(_SWE7)
    found, at = [], 0
    for unit in re.finditer(_UNITS.get(charset, _RUNS), raw):
        found += [raw[at : unit.start()].decode("ascii", "replace"), _unit(unit.group(), charset)]
        at = unit.end()
    return "".join(found) + raw[at:].decode("ascii", "replace")


def _unit(raw: bytes, charset: str) -> str:
    try:
        known = charset_named("utf8mb4" if charset == "binary" else charset)
        text = known.decode(raw)
    except (LogFormatError, PlanRefusedError):
        return UNREADABLE
    # The lexer takes the no-break space of a single-byte set for a space.
    return text.replace("\xa0", " ") if known.table else text


def _said_undecoded(raw: bytes, name: str) -> Iterator[bytes]:
    """The bytes with the name in UTF-8, if a client may have sent it in a character set that is not decoded here."""
    for pattern in _undecoded_patterns(name):
        said, count = pattern.subn(lambda _: name.encode(), raw)
        if count:
            yield said


@cache
def _undecoded_patterns(name: str) -> tuple[re.Pattern[bytes], ...]:
    beyond = "".join(character for character in name if not character.isascii())
    spelled = []
    if beyond and re.fullmatch(_UNDECODED_LETTERS, beyond):
        spelled.append([re.escape(each.encode()) if each.isascii() else _HIGH_BYTE for each in name])
    if beyond and all(map(_in_big5, beyond)):
        spelled.append([b"(?:" + b"|".join(_in_big5(each)) + b")" for each in name])
    return tuple(re.compile(_NOT_AFTER + b"".join(each) + _NOT_BEFORE, re.IGNORECASE) for each in spelled)


@cache
def _in_big5(character: str) -> tuple[bytes, ...]:
    """The bytes that the character may be, in either case; none if it cannot be."""
    found = []
    for each, codec in product((character, character.lower(), character.upper()), _BIG5):
        with contextlib.suppress(UnicodeEncodeError):
            found.append(re.escape(each.encode(codec)))
    return tuple(dict.fromkeys(found))


@cache
def _lexemes(backslashes: int, executed: str) -> re.Pattern[str]:
    """`backslashes` has bit 1 where they escape in single quotes, bit 2 in double quotes."""
    single = r"(?:[^'\\]|\\.|'')*" if backslashes & 1 else r"(?:[^']|'')*"
    double = r'(?:[^"\\]|\\.|"")*' if backslashes & 2 else r'(?:[^"]|"")*'
    return re.compile(
        rf"""
          (?P<space>[\x00-\x20]+|(?:--(?=[\x00-\x20\x7f]|\Z)|\#)[^\n]*)
        | (?P<open>/\*{executed}!\d*)
        | (?P<comment>/\*.*?\*/)
        | (?P<close>\*/)
        | (?P<quoted>`(?:[^`]|``)*`|\[(?:[^\]]|\]\])*\]|"{double}")
        | (?P<string>'{single}')
        | (?P<word>[0-9A-Za-z_$@\u0080-\U0010ffff]+)
        | (?P<broken>['"`]|/\*)
        | (?P<symbol>.)
        """,
        re.VERBOSE | re.DOTALL,
    )


def _tokens(text: str, lexemes: re.Pattern[str]) -> list[Token] | None:
    found, depth = [], 0
    for kind, raw in _matches(text, lexemes):
        if kind == "open":
            depth += 1
        elif kind == "close":
            depth -= 1
        elif kind == "word":
            found.append(Token(folded(raw), bare=True, name=True, spelled=raw))
        elif kind == "quoted":
            end = "]" if raw[0] == "[" else raw[0]
            written = raw[1:-1].replace(end * 2, end)
            found.append(Token(folded(written), bare=False, name=True, spelled=written))
        elif kind in ("string", "symbol"):
            found.append(Token(raw, bare=False, name=False))
        if kind == "broken" or depth < 0:
            return None
    return found if depth == 0 else None


def _matches(text: str, lexemes: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    return ((str(lexeme.lastgroup), lexeme.group()) for lexeme in lexemes.finditer(text))
