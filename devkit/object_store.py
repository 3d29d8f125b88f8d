"""Serves a private object store that speaks as much S3 as Delta tables need: one bucket, in memory, on the loopback.

    with ObjectStore("lake") as store:
        options = store.options          # what a client needs; requests with another key are refused

Objects are whole or not there, a PUT with `If-None-Match: *` never overwrites, listings are in order: what a commit
relies on. Signatures are not checked, only whose they are: that is enough to see whether a client was given its
credentials.
"""

from __future__ import annotations

import re
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Iterable
from datetime import UTC, datetime
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

from devkit.process import GuardedProcess, free_ports

ACCESS_KEY = "devkit-access"
SECRET_KEY = "devkit-secret"
_RANGE = re.compile(r"bytes=(\d+)-(\d*)\Z")


class ObjectStore:
    """One bucket, in its own process.

    A client that holds Python's lock while it waits would wait for ever for a server in the same process.
    """

    def __init__(self, bucket: str) -> None:
        self.bucket = bucket
        self._folder = Path(tempfile.mkdtemp(prefix="vb-objects-"))
        self._process: GuardedProcess | None = None
        (self._port,) = free_ports()

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}"

    @property
    def options(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._port}", "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_REGION": "eu-central-1",
        }  # fmt: skip

    def __enter__(self) -> Self:
        command = [sys.executable, str(Path(__file__)), str(self._port)]
        self._process = GuardedProcess(
            command,
            log=self._folder / "store.log",
            environment={"PYTHONPATH": str(Path(__file__).parent.parent)},
            remove=self._folder,
        )
        self._process.wait_until(self._answers, seconds=60, what="the object store")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0


class Contents:
    """What the bucket holds, and uploads that are not complete."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        self.lock = threading.Lock()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: ClassVar[Contents] = Contents()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is inherited
        """Nobody reads it."""

    def do_GET(self) -> None:
        if (key := self._key()) == "":
            self._list()
        elif key is not None:
            self._send_object(key, body=True)

    def do_HEAD(self) -> None:
        if key := self._key():
            self._send_object(key, body=False)

    def do_PUT(self) -> None:
        body, key = self._body(), self._key()
        if key is None:
            return
        with self.store.lock:
            if "uploadId" in self._query:
                self.store.parts[self._query["uploadId"][0]][int(self._query["partNumber"][0])] = body
            elif self.headers.get("If-None-Match") == "*" and key in self.store.objects:
                self._answer(412, _error("PreconditionFailed"))
                return
            elif source := self.headers.get("x-amz-copy-source"):
                self.store.objects[key] = self.store.objects[unquote(source).lstrip("/").partition("/")[2]]
                self._answer(200, b"<CopyObjectResult><ETag>x</ETag></CopyObjectResult>")
                return
            else:
                self.store.objects[key] = body
        self._answer(200, b"", {"ETag": _etag(body)})

    def do_POST(self) -> None:
        body, key = self._body(), self._key()
        if key is None:
            return
        if "delete" in self._query:
            keys = [unescape(each) for each in re.findall(r"<Key>(.*?)</Key>", body.decode())]
            self._delete(keys)
            deleted = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
            self._answer(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())
        elif "uploads" in self._query:
            with self.store.lock:
                upload = f"upload{len(self.store.parts)}"
                self.store.parts[upload] = {}
            self._answer(200, _xml("InitiateMultipartUploadResult", Key=key, UploadId=upload))
        else:
            with self.store.lock:
                parts = self.store.parts[self._query["uploadId"][0]]
                self.store.objects[key] = b"".join(part for _, part in sorted(parts.items()))
            self._answer(200, _xml("CompleteMultipartUploadResult", Key=key, ETag="x"))

    def do_DELETE(self) -> None:
        if key := self._key():
            self._delete([key])
            self._answer(204, b"")

    def _key(self) -> str | None:
        """The object asked for; None, and answered already, where the credentials are wrong."""
        parts = urlsplit(self.path)
        self._query = parse_qs(parts.query, keep_blank_values=True)
        if f"Credential={ACCESS_KEY}/" not in self.headers.get("Authorization", ""):
            self._answer(403, _error("InvalidAccessKeyId"))
            return None
        return unquote(parts.path).lstrip("/").partition("/")[2]

    def _list(self) -> None:
        prefix, delimiter = (self._query.get(name, [""])[0] for name in ("prefix", "delimiter"))
        after = self._query.get("start-after", self._query.get("continuation-token", [""]))[0]
        with self.store.lock:
            found = {
                key: len(data) for key, data in self.store.objects.items() if key.startswith(prefix) and key > after
            }
        folders = sorted({prefix + key[len(prefix) :].partition(delimiter)[0] + delimiter for key in found
                          if delimiter and delimiter in key[len(prefix) :]})  # fmt: skip
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{size}</Size><LastModified>{now}</LastModified>"
            f'<ETag>"{size}"</ETag></Contents>'
            for key, size in sorted(found.items())
            if not (delimiter and delimiter in key[len(prefix) :])
        )
        common = "".join(f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in folders)
        text = f"<ListBucketResult><IsTruncated>false</IsTruncated>{contents}{common}</ListBucketResult>"
        self._answer(200, text.encode())

    def _send_object(self, key: str, *, body: bool) -> None:
        with self.store.lock:
            data = self.store.objects.get(key)
        if data is None:
            self._answer(404, _error("NoSuchKey") if body else b"")
            return
        headers = {"ETag": _etag(data), "Last-Modified": datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")}
        asked = _RANGE.match(self.headers.get("Range", ""))
        if asked is None:
            self._answer(200, data, headers, body=body)
            return
        first, last = int(asked[1]), min(int(asked[2] or len(data)), len(data) - 1)
        headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        self._answer(206, data[first : last + 1], headers, body=body)

    def _delete(self, keys: Iterable[str]) -> None:
        with self.store.lock:
            for key in keys:
                self.store.objects.pop(key, None)

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", "0")))

    def _answer(self, status: int, data: bytes, headers: dict[str, str] | None = None, *, body: bool = True) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body:
            self.wfile.write(data)


def _etag(data: bytes) -> str:
    return f'"{md5(data, usedforsecurity=False).hexdigest()}"'


def _error(code: str) -> bytes:
    return _xml("Error", Code=code, Message=code)


def _xml(root: str, **members: str) -> bytes:
    return f"<{root}>{''.join(f'<{name}>{quote(text)}</{name}>' for name, text in members.items())}</{root}>".encode()


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), _Handler).serve_forever()
