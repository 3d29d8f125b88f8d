"""Decodes the server's character sets: exactly, or not at all.

A row image holds text in the column's own character set, while a SELECT returns it converted by the server. Both ways
must give the same text, so each entry was compared with the server's own conversion: every byte of the single-byte
sets, every pair of the multi-byte sets. Where Python's codec differs, the difference is written here. A byte the server
has no character for becomes what the server makes of it (`?`, in tis620 U+FFFD). A set that is not listed is refused:
big5, armscii8, geostd8 and keybcs2 have no codec that agrees.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from vnode_backfill.words.errors import LogFormatError, PlanRefusedError

_SINGLE_BYTE = {
    "latin1": "cp1252", "latin2": "iso8859_2", "latin5": "iso8859_9", "latin7": "iso8859_13", "cp1250": "cp1250",
    "cp1251": "cp1251", "cp1256": "cp1256", "cp1257": "cp1257", "cp850": "cp850", "cp852": "cp852", "cp866": "cp866",
    "koi8r": "koi8_r", "koi8u": "koi8_u", "greek": "iso8859_7", "hebrew": "iso8859_8", "tis620": "tis_620",
    "macce": "mac_latin2", "macroman": "mac_roman", "hp8": "hp_roman8", "dec8": "latin_1", "swe7": "ascii",
}  # fmt: skip
_DIFFERENCES: dict[str, dict[int, str]] = {
    "latin1": {byte: chr(byte) for byte in (0x81, 0x8D, 0x8F, 0x90, 0x9D)},
    "cp1256": dict.fromkeys((0x8A, 0x8F, 0x98, 0x9A, 0x9F, 0xAA, 0xC0, 0xFF), "?"),
    "cp866": {0xFC: "ⁿ", 0xFD: "²"},
    "koi8u": {0x95: "•"},
    "greek": {0xA1: "ʽ", 0xA2: "ʼ", 0xA4: "?", 0xA5: "?", 0xAA: "?"},
    "hebrew": {0xAF: "‾"},
    "tis620": dict.fromkeys((0xA0, 0xDB, 0xDC, 0xDD, 0xDE, 0xFC, 0xFD, 0xFE, 0xFF), "\ufffd"),
    "dec8": {
        **dict.fromkeys((0xA4, 0xA6, 0xAC, 0xAD, 0xAE, 0xAF, 0xB4, 0xB8, 0xBE, 0xD0, 0xDE, 0xF0, 0xFE, 0xFF), "?"),
        0xA8: "¤", 0xD7: "Œ", 0xDD: "Ÿ", 0xF7: "œ", 0xFD: "ÿ",
    },
    "swe7": {
        0x40: "É", 0x5B: "Ä", 0x5C: "Ö", 0x5D: "Å", 0x5E: "Ü", 0x60: "é", 0x7B: "ä", 0x7C: "ö", 0x7D: "å", 0x7E: "ü",
        0x7F: "?",
    },
}  # fmt: skip
_MULTI_BYTE = {
    "ucs2": ("utf_16_be", 2), "utf16": ("utf_16_be", 4), "utf16le": ("utf_16_le", 4), "utf32": ("utf_32_be", 4),
    "gbk": ("gbk", 2), "gb2312": ("gb2312", 2), "gb18030": ("gb18030", 4), "euckr": ("cp949", 2),
    "sjis": ("shift_jis", 2),
    "cp932": ("cp932", 2), "ujis": ("euc_jp", 3), "eucjpms": ("euc_jp", 3),
}  # fmt: skip
_CHARACTERS: dict[str, dict[int, str]] = {
    name: {ord(ours): theirs for ours, theirs in pairs.items()}
    for name, pairs in {
        "sjis": {"＼": "\\"},
        "ujis": {"＼": "\\"},
        "eucjpms": {"〜": "～", "‖": "∥", "−": "－", "¢": "￠", "£": "￡", "¬": "￢"},
        "gb18030": {"\ue7c7": "ḿ", "ḿ": "\ue7c7"},
    }.items()
}
CLIENT_CHARSETS = (*_SINGLE_BYTE, *(name for name in _MULTI_BYTE if not name.startswith(("ucs", "utf"))))
"""Those besides UTF-8 that a client may send its statements in."""
_UTF8 = {"utf8mb4": 4, "utf8mb3": 3, "utf8": 3, "ascii": 1, "": 4}


@dataclass(frozen=True, slots=True)
class Charset:
    """How the bytes of one character set become text."""

    name: str
    max_bytes: int
    """Bytes of the longest character: a column of n characters may hold n times as many bytes."""
    is_utf8: bool = False
    """The bytes are UTF-8 already."""
    table: tuple[str, ...] = ()
    """One character per byte, for single-byte sets."""
    codec: str = ""

    def decode(self, raw: bytes) -> str:
        """Raise where the bytes are not text of this character set."""
        if self.table:
            return "".join(map(self.table.__getitem__, raw))
        try:
            text = raw.decode("utf-8" if self.is_utf8 else self.codec)
        except UnicodeDecodeError as error:
            raise LogFormatError(
                f"the log holds bytes that are no {self.name} text", detail=f"{raw[:40].hex()}: {error.reason}."
            ) from error
        differences = _CHARACTERS.get(self.name)
        return text.translate(differences) if differences else text


@cache
def charset_named(name: str) -> Charset:
    """The character set, or a refusal. The empty name means utf8mb4, which the server uses for its own texts."""
    if name in _UTF8:
        return Charset(name or "utf8mb4", _UTF8[name], is_utf8=True)
    if name in _SINGLE_BYTE:
        return Charset(name, 1, table=_single_byte_table(name))
    if name in _MULTI_BYTE:
        codec, max_bytes = _MULTI_BYTE[name]
        return Charset(name, max_bytes, codec=codec)
    raise PlanRefusedError(
        f"character set {name} cannot be decoded exactly as the server does",
        hint="Convert the column to utf8mb4, or leave the table out.",
    )


def _single_byte_table(name: str) -> tuple[str, ...]:
    characters = [bytes((byte,)).decode(_SINGLE_BYTE[name], "replace").replace("\ufffd", "?") for byte in range(256)]
    for byte, character in _DIFFERENCES.get(name, {}).items():
        characters[byte] = character
    return tuple(characters)
