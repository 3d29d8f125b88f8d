"""Writes and reads deletion vectors: which rows of a data file are gone.

What must be true: a vector that is read names exactly the rows that were deleted, or reading fails. A row too few and a
key is in the table twice; a row too many and one is lost. So size, checksum, format and number of rows are all checked,
and none of them is repaired.

All vectors of a commit are in one file: a byte for the version, then for each vector its size (4 bytes, the highest
first), its data and the CRC-32 of the data. The data is a number that tells the format (4 bytes, the lowest first) and
a 64-bit Roaring bitmap in its portable form.

    01 | 0000002c d1d33964 … bitmap … crc | 00000030 d1d33964 … bitmap … crc
         offset 1, size 44                  offset 53, size 48

The file is in `_dv`: nobody's VACUUM looks into a folder whose name begins with an underscore, while the one of
`deltalake` deletes vectors in use from the table's root. Vectors are never put into the log itself, because Spark's
VACUUM fails on such a table. Those of other writers are read wherever they are.
"""

from __future__ import annotations

import base64
import struct
import zlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from urllib.parse import unquote, urlsplit
from uuid import UUID, uuid4

import numpy as np

from vnode_backfill.delta.files import DeletionVector
from vnode_backfill.delta.rows import Rows
from vnode_backfill.delta.steps import Step, carried_out
from vnode_backfill.delta.storage import Storage, local_path, storage_errors
from vnode_backfill.words.errors import SinkError

FOLDER = "_dv"
_VERSION = b"\x01"
_PORTABLE = 1681511377
_BASE85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_LETTERS, _TO_BASE85, _TO_Z85 = frozenset(_Z85), bytes.maketrans(_Z85, _BASE85), bytes.maketrans(_BASE85, _Z85)
UUID_LETTERS = 20
_DAMAGED = "Restore the file from a copy, or re-snapshot the table: which rows are deleted is not known without it."
_MISSING = (
    "Restore the file from a copy, or re-snapshot the table. Let only this job sweep the table: "
    "a full VACUUM of deltalake deletes deletion vectors that are in use."
)


def write_vectors(storage: Storage, gone: Sequence[Rows]) -> list[DeletionVector]:
    """Write a vector for each, all in one new file, and say where each is. No rows to write, no file.

    A second call writes another file. A file that no commit names is swept like any other.
    """
    if not gone:
        return []
    name, content = uuid4(), bytearray(_VERSION)
    vectors: list[DeletionVector] = []
    for rows in gone:
        data = _serialized(rows)
        vectors.append(DeletionVector("u", FOLDER + _z85(name.bytes), len(content), len(data), rows.count))
        content += struct.pack(">I", len(data)) + data + struct.pack(">I", zlib.crc32(data))
    path = _file_name(FOLDER, name)
    what = f"deletion vectors cannot be written to {storage.path}/{path}"
    with storage_errors(what), carried_out(Step.WRITE_VECTORS, storage):
        storage.make_folder(FOLDER)
        storage.write_whole(path, bytes(content))
    return vectors


def read_vector(storage: Storage, vector: DeletionVector) -> Rows:
    """The rows a vector names, wherever it is stored; SinkError if it is missing or damaged."""
    where, data = _inline(vector) if vector.storage == "i" else _from_file(storage, vector)
    rows = _deserialized(where, data)
    if rows.count != vector.cardinality:
        raise _damaged(where, f"It names {rows.count} rows, and the table's log says {vector.cardinality}.")
    return rows


def vector_path(vector: DeletionVector) -> str | None:
    """The file that holds a vector, below the table's folder or absolute; None if the log itself holds it."""
    return path_of(vector.storage, vector.place)


def path_of(storage: str, place: str) -> str | None:
    """The same for a vector of which only the storage type and the place are known."""
    match storage:
        case "u":
            folder, encoded = place[:-UUID_LETTERS], place[-UUID_LETTERS:]
            return _file_name(folder, UUID(bytes=_from_z85(encoded)))
        case "p":
            return _absolute(place)
        case _:
            return None


class VectorCache:
    """Keeps the vectors used last, up to `limit_bytes`. Threads may share it.

    A vector never changes, so what is kept is right for as long as it is kept.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._kept: OrderedDict[str, Rows] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def read(self, storage: Storage, vector: DeletionVector) -> Rows:
        """The rows a vector names, from its place only if they are not kept here."""
        with self._lock:
            found = self._kept.get(vector.id)
            if found is not None:
                self._kept.move_to_end(vector.id)
                return found
        rows = read_vector(storage, vector)
        self.keep(vector, rows)
        return rows

    def keep(self, vector: DeletionVector, rows: Rows) -> None:
        """Keep the rows of a vector that was just written, so that it need not be read."""
        with self._lock:
            if vector.id not in self._kept:
                self._kept[vector.id] = rows
                self._bytes += rows.nbytes
            while self._bytes > self._limit:
                self._bytes -= self._kept.popitem(last=False)[1].nbytes


def _serialized(rows: Rows) -> bytes:
    from pyroaring import BitMap64

    bitmap = BitMap64(array("Q", rows.positions.tobytes()))
    bitmap.run_optimize()
    return struct.pack("<I", _PORTABLE) + bitmap.serialize()


def _deserialized(where: str, data: bytes) -> Rows:
    from pyroaring import BitMap64

    if len(data) < 12 or struct.unpack_from("<I", data)[0] != _PORTABLE:
        raise _damaged(where, f"It begins with {data[:4].hex()}, which is no format of a vector that is known.")
    try:
        positions = np.asarray(BitMap64.deserialize(data[4:]).to_array())
    except ValueError as error:
        raise _damaged(where, str(error)) from error
    return Rows.of(positions)


def _inline(vector: DeletionVector) -> tuple[str, bytes]:
    where = "in the table's log"
    try:
        data = _from_z85(vector.place)
    except ValueError as error:
        raise _damaged(where, str(error)) from error
    if not 0 <= len(data) - vector.size < 4:
        raise _damaged(where, f"It has {len(data)} bytes, and the log says {vector.size}.")
    return where, data[: vector.size]


def _from_file(storage: Storage, vector: DeletionVector) -> tuple[str, bytes]:
    folder, name = _place(storage, vector)
    where = f"in {folder.path}/{name}"
    with storage_errors(f"the deletion vector {where} cannot be read"):
        try:
            with folder.filesystem().open_input_file(name) as source:
                source.seek(vector.offset or len(_VERSION))
                held = source.read(vector.size + 8)
        except FileNotFoundError as error:
            raise SinkError(f"the deletion vector {where} is missing", detail=str(error), hint=_MISSING) from error
    return where, _checked(where, vector, held)


def _checked(where: str, vector: DeletionVector, held: bytes) -> bytes:
    """The data between size and checksum."""
    if len(held) != vector.size + 8:
        raise _damaged(where, f"The file ends {vector.size + 8 - len(held)} bytes too early.")
    size, data, checksum = held[:4], held[4:-4], held[-4:]
    if struct.unpack(">I", size)[0] != vector.size:
        raise _damaged(where, f"Its size is {struct.unpack('>I', size)[0]}, and the table's log says {vector.size}.")
    if struct.unpack(">I", checksum)[0] != zlib.crc32(data):
        raise _damaged(where, "Its checksum is another one.")
    return data


def _place(storage: Storage, vector: DeletionVector) -> tuple[Storage, str]:
    """The folder and the path in it."""
    try:
        path = vector_path(vector)
    except ValueError as error:
        raise _damaged("in the table's log", f"{vector.place!r}: {error}") from error
    if path is not None and vector.storage == "u":
        return storage, path
    if path is not None:
        folder, _, name = path.rpartition("/")
        return Storage.of(folder or "/", dict(storage.options)), name
    raise SinkError(
        f"a deletion vector of {storage.path} has the storage type {vector.storage!r}, which is not known",
        hint="Purge the table's deletion vectors with its writer (in Spark: REORG TABLE … APPLY (PURGE)).",
    )


def _absolute(place: str) -> str:
    """A path as Spark writes it: a URI, of which `file:/a%20b` and `/a%20b` are local ones."""
    return place if local_path(place) is None and not place.startswith("file:") else unquote(urlsplit(place).path)


def _file_name(folder: str, name: UUID) -> str:
    return f"{folder}/deletion_vector_{name}.bin" if folder else f"deletion_vector_{name}.bin"


def _z85(data: bytes) -> str:
    padded = data + b"\0" * (-len(data) % 4)
    return base64.b85encode(padded).translate(_TO_Z85).decode("ascii")


def _from_z85(text: str) -> bytes:
    encoded = text.encode("ascii")
    if not _LETTERS.issuperset(encoded) or len(encoded) % 5:
        raise ValueError("it is not text in base 85")
    return base64.b85decode(encoded.translate(_TO_BASE85))


def _damaged(where: str, detail: str) -> SinkError:
    return SinkError(f"the deletion vector {where} is damaged", detail=detail, hint=_DAMAGED)
