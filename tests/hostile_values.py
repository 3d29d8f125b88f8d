"""Values and whole files that nobody should write, put at every key of the models and run through the command line.

`cases` walks the models, so a new key is covered by itself. A case is a YAML text; `judge` runs `plan` on it in this process and
returns what is wrong with how it ended: a traceback, a secret, a file that was written, a message without the key, or none at all.
The source is a port that refuses connections, so a value that is accepted ends with that error and exit code 1.
"""

from __future__ import annotations

import contextlib
import io
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from vnode_backfill.commands.cli import execute
from vnode_backfill.config.job import Config
from vnode_backfill.config.yaml_file import section_of

SECRET = "hunter2-planted"
KeyPath = tuple[str, ...]

NUMBERS = (
    "0", "-1", "1", "3.5", "1e308", "1e999", ".nan", ".inf", "99999999999999999999", "9" * 400, "65536", "70000", "true", "017",
    "0o17", "0x1F", "1_000", "1:30", "'7'", "٣", "2020-01-01", "2026-05-01T12:00:00Z", "'9999-12-31T23:59:59-14:00'",
    "'0001-01-01T00:00:00+14:00'",
)  # fmt: skip
UNITS = (
    "0s", "1us", "-5s", "5", "5 parsecs", "24d", "25d", "400d", "3650d", "900000000d", "999999999999999999d", "1s1s1s", "'٣s'", "1e9s",
    "0B", "1B", "1TB", "2000TiB", "999999999999999999TiB", "64mb",
)  # fmt: skip
TEXTS = (
    "''", "' '", '"\\n"', '"\\0"', '"a\\0b"', '"\\ud800"', '"\\U0010ffff"', '"\\e[31m"', '"\\u202e"', "x" * 300, "x" * 5_000, "ü" * 63,
    "db..example.com", ".example.com", "127.0.0.1:3306", "'::1'", "'[::1]'", "nowhere.invalid.", "'a b'", "../../etc", "/dev/zero",
    "/dev/null/x", "/proc/x", "/", ".", "~/x", "'~'", "foo://x", "'s3://'", "file:///", "file:/x", "memory://x", "'`x`.`y`'", "a.b.c",
    "root.a.{b", "root.a.b", "'%s'", "binlog.000001", "0-1-7", "9-3", "1-4294967295", "5400-5499", f"'s3://me:{SECRET}@bucket/x'",
    f"'me:{SECRET}@db'",
)  # fmt: skip
SHAPES = (
    "", "null", "[]", "{}", "[[]]", "[1, [2, {a: b}]]", "{a: b}", "{'': ''}", "{a: {b: c}}", "['', null]", "[a, a]", "{a: a, a: b}",
    "!!python/object:os.system x", "!!binary aGk=", "!!null x", "&a [*a]", "*nowhere", "<<", "{<<: {a: b}}", "{? [a] : b}", "- a", "|", "@x",
    "${NOWHERE_AT_ALL}", "${", "'${A:-}'", "'${PATH'", "'$${'", "[" * 40, f"!{SECRET}", f"*{SECRET}", f"[{SECRET}", f"'{SECRET}", f"{SECRET}: x",
    f'"{SECRET}\\q"', f"%{SECRET}", f"${{{SECRET}",
)  # fmt: skip
VALUES = (*NUMBERS, *UNITS, *TEXTS, *SHAPES)
FILES = (
    "", "\n", "#", "---", "...", "a", "[]", "{}", "- a", "\0", "\ufeff", "job: a\n---\njob: b", "%YAML 9.9\n---\na: b", "a: &a [*a]",
    "a: *nowhere", "\t", "{" * 3_000, "[" * 3_000, "- " * 3_000, "? " * 3_000, "a:\n" * 3_000, "!" * 3_000, "&a " * 3_000,
    "a: [" + "x, " * 30_000 + "]", "x" * 300_000, "a: '" + "x\n" * 3_000, "\n".join(f"{' ' * n}a:" for n in range(600)),
    "a0: &a0 [x]\n" + "\n".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 40)),
    f"password: {SECRET}: x", f"a: b\n  {SECRET}", f"{SECRET}\n: [", f"a: !{SECRET} b", f"a: *{SECRET}",
)  # fmt: skip

_BASE = {
    "job": "orders",
    "mysql.host": "127.0.0.1",
    "mysql.port": "{port}",
    "mysql.user": "{user}",
    "mysql.password_file": "{folder}/secret",
    "mysql.database": "{database}",
    "mysql.table": "orders",
    "sink.delta.path": "{folder}/lake",
    "state.path": "{folder}/state",
    "storage.options.AWS_SECRET_ACCESS_KEY": SECRET,
    "spark": f"{{{{spark.hadoop.fs.s3a.secret.key: {SECRET}}}}}",
    "ui.port": "0",
}
_BESIDE: dict[str, dict[str, str | None]] = {
    "sink.iotdb": {"sink.delta.path": None, "sink.iotdb.host": "127.0.0.1", "sink.iotdb.device": "root.a.b", "sink.iotdb.time.column": "t"},
    "sink.iotdb.tags": {"sink.iotdb.model": "table", "sink.iotdb.device": None, "sink.iotdb.database": "d"},
    "sink.iotdb.database": {"sink.iotdb.model": "table", "sink.iotdb.device": None, "sink.iotdb.tags": "[a]"},
    "sink.iotdb.table": {
        "sink.iotdb.model": "table", "sink.iotdb.device": None, "sink.iotdb.tags": "[a]", "sink.iotdb.database": "d",
    },
    "mysql.tables": {
        "mysql.database": None, "mysql.table": None, "mysql.tables.table": "'shop.*'", "sink.delta.path": "{folder}/lake/{{table}}",
    },
    "mysql.tables.iotdb": {
        "sink.delta.path": None, "sink.iotdb.host": "127.0.0.1", "sink.iotdb.device": "root.a.{{table}}", "sink.iotdb.time.column": "t",
        "mysql.tables.iotdb.decimal": "text",
    },
    "mysql.tables.iotdb.time": {"mysql.tables.iotdb.time.column": "t"},
    "mysql.tables.iotdb.tags": {"sink.iotdb.model": "table", "sink.iotdb.device": None, "sink.iotdb.database": "d", "sink.iotdb.tags": "[a]"},
    "mysql.tables.iotdb.database": {"sink.iotdb.model": "table", "sink.iotdb.device": None, "sink.iotdb.database": "d", "sink.iotdb.tags": "[a]"},
    "mysql.tables.iotdb.table": {"sink.iotdb.model": "table", "sink.iotdb.device": None, "sink.iotdb.database": "d", "sink.iotdb.tags": "[a]"},
    "mysql.exclude": {
        "mysql.database": None, "mysql.table": None, "mysql.tables": "['shop.*']", "sink.delta.path": "{folder}/lake/{{table}}",
    },
    "mysql.new_tables": {
        "mysql.database": None, "mysql.table": None, "mysql.tables": "['shop.*']", "sink.delta.path": "{folder}/lake/{{table}}",
    },
    "mysql.password_env": {"mysql.password_file": None},
    "mysql.tls": {"mysql.tls.enabled": "true"},
    "sink.iotdb.tls": {"sink.iotdb.tls.enabled": "true"},
    "mysql.cdc.specific": {"mysql.cdc.startup_mode": "specific"},
    "mysql.cdc.specific.file": {"mysql.cdc.specific.pos": "4"},
    "mysql.cdc.specific.pos": {"mysql.cdc.specific.file": "binlog.000001"},
    "mysql.cdc.timestamp": {"mysql.cdc.startup_mode": "timestamp"},
    "limits.throttle.queries.name": {"limits.throttle.queries.sql": "SELECT 1", "limits.throttle.queries.max": "1"},
    "limits.throttle.queries.sql": {"limits.throttle.queries.name": "n", "limits.throttle.queries.max": "1"},
    "limits.throttle.queries.max": {"limits.throttle.queries.name": "n", "limits.throttle.queries.sql": "SELECT 1"},
    "limits.throttle.replicas.port": {"limits.throttle.replicas.host": "h"},
    "limits.throttle.replicas.max_lag": {"limits.throttle.replicas.host": "h"},
    "ui.host": {"ui.port": "18321"},
}  # fmt: skip
_LISTS = frozenset({"limits.throttle.queries", "limits.throttle.replicas", "mysql.tables"})


def keys(model: type[BaseModel] = Config, at: KeyPath = ()) -> Iterator[KeyPath]:
    """Every key of the models, sections too."""
    for name, info in model.model_fields.items():
        yield (*at, name)
        section = section_of(info.annotation)
        if section is not None:
            yield from keys(section, (*at, name))


@dataclass(frozen=True, slots=True)
class Case:
    """A file, and the keys in it that hold a hostile value."""

    text: str
    at: tuple[KeyPath, ...] = ()


def case(*hostile: tuple[KeyPath, str]) -> Case:
    """A good file with these values at these keys, and beside them what they need; what is in braces is filled in later."""
    lines: dict[str, str | None] = dict(_BASE)
    for key, _ in hostile:
        for end in range(1, len(key) + 1):
            lines |= _BESIDE.get(".".join(key[:end]), {})
    for key, value in hostile:
        name = ".".join(key)
        lines = {other: kept for other, kept in lines.items() if not other.startswith(f"{name}.")}
        lines[name] = value.replace("{", "{{").replace("}", "}}")
    if any(name.startswith("sink.iotdb") for name in lines) and not any(
        key[:2] == ("sink", "delta") for key, _ in hostile
    ):
        lines = {name: kept for name, kept in lines.items() if not name.startswith("sink.delta")}
    tree: dict[str, object] = {}
    for name, kept in lines.items():
        if kept is not None:
            _place(tree, name.split("."), kept)
    return Case("\n".join(_lines(tree)) + "\n", tuple(key for key, _ in hostile))


def _place(tree: dict[str, object], parts: Sequence[str], value: str) -> None:
    name, *rest = parts
    if not rest:
        tree[name] = value
        return
    inner = tree.setdefault(name, {})
    if isinstance(inner, dict):
        _place(inner, rest, value)


def _lines(tree: dict[str, object], at: KeyPath = ()) -> Iterator[str]:
    for name, value in tree.items():
        path = (*at, name)
        indent = "  " * len(at)
        if not isinstance(value, dict):
            yield f"{indent}{name}: {value}"
            continue
        yield f"{indent}{name}:"
        inner = list(_lines(value, path))
        if ".".join(path) in _LISTS:
            own = len(indent) + 2
            inner = [f"{indent}  {'  ' if n else '- '}{line[own:]}" for n, line in enumerate(inner)]
        yield from inner


class Bench:
    """A folder with a password in it and a port that refuses connections; judges cases one after the other.

    With the `port` of a real server a plan, a refusal and any error in words are fine.
    """

    def __init__(self, folder: Path, port: int | None = None, *, user: str = "u", database: str = "shop") -> None:
        self.folder, self._answers = folder, port is not None
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self._filled = {
            "folder": folder, "port": port or self._socket.getsockname()[1], "user": user, "database": database,
        }  # fmt: skip
        (folder / "secret").write_text(SECRET)

    def close(self) -> None:
        self._socket.close()

    def judge(self, case: Case) -> str:
        """What is wrong with how `plan` ended; empty if nothing is."""
        before = _tree(self.folder)
        code, told = self.plan(case)
        if (after := _tree(self.folder) | {"job.yaml"}) != before | {"job.yaml"}:
            return f"wrote {after ^ before}"
        return _harm(code, told) or ("" if self._answers else _fault(case, code, told))

    def plan(self, case: Case) -> tuple[int | None, str]:
        """The exit code and what was printed; None and the exception where there was no exit code."""
        path = self.folder / "job.yaml"
        text = case.text.format(**self._filled) if case.at else case.text
        path.write_text(text)
        out, err = io.StringIO(), io.StringIO()
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                return execute(["plan", "--config", str(path)]), out.getvalue() + err.getvalue()
        except Exception as error:  # noqa: BLE001 - that nothing gets here is what is tested
            return None, f"{type(error).__name__}: {error}"


def _harm(code: int | None, told: str) -> str:
    if code is None:
        return f"traceback {told[:300]}"
    if SECRET in told:
        return f"shows the secret: {told[:300]}"
    if len(told) > 10_000 or "\x1b" in told:
        return f"is too long or coloured: {len(told)} letters"
    return "" if code in (0, 1, 2) and told.strip() else f"code {code}: {told[:300]}"


def _fault(case: Case, code: int | None, told: str) -> str:
    if code == 1 and "while connecting to" in told:
        return ""
    if code != 2 or not told.startswith("vnode-backfill: "):
        return f"code {code}: {told[:300]}"
    named = [".".join(key[:end]) for key in case.at for end in (len(key), len(key) - 1)]
    if (
        case.at
        and "job.yaml is" not in told
        and not any(name and name in told for name in (*named, *(k[0] for k in case.at)))
    ):
        return f"does not name the key: {told[:300]}"
    return ""


def _tree(folder: Path) -> frozenset[str]:
    return frozenset(str(path.relative_to(folder)) for path in folder.rglob("*"))
