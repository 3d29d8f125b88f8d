"""A file that is deep, endless, repeated or broken is refused with a clear message, which holds no secret."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from tests.unit.config.test_job import MINIMAL, load, with_mysql
from vnode_backfill.config.job import load_config
from vnode_backfill.config.small_files import read_small_text
from vnode_backfill.words.errors import ConfigError

SECRET = "hunter2"


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(folder, text)
    assert SECRET not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("job: orders", "job: '!'"), ("path: /lake/state", "path: 7"), ("delta", "delt"), ("user: u", "use: u")],
)
def test_a_default_that_depends_on_a_mistake_is_not_a_second_mistake(tmp_path: Path, right: str, wrong: str) -> None:
    told = refusal(tmp_path, MINIMAL.replace(right, wrong))
    assert "workers" not in told
    assert "Pydantic" not in told
    assert "default factory" not in told


@pytest.mark.parametrize(
    "host",
    [
        "db..example.com", ".example.com", "a" * 300, "db.example.com:3306", "mysql://db", "[::1]", "db example",
        "-" * 64,
        "x." * 200 + "y", "ü" * 63, "db\n", "root:hunter2@db", "mysql://u:a/hunter2@db", "mysql://u:a hunter2@db",
        "jdbc:mysql://db/shop?user=u&password=hunter2",
    ],
)  # fmt: skip
def test_a_host_that_no_resolver_can_look_up_is_refused(tmp_path: Path, host: str) -> None:
    told = refusal(tmp_path, MINIMAL.replace("host: db", f"host: {host!r}".replace("\\n", "\n\n")))
    assert told.startswith("mysql.host is ")
    assert "must be the name of a host or its address, without a port" in told


@pytest.mark.parametrize(
    "host", ["db", "db.example.com.", "10.0.0.1", "::1", "fe80::1%eth0", "my_db-1", "bücher.example"]
)
def test_a_name_or_address_is_a_host(tmp_path: Path, host: str) -> None:
    assert load(tmp_path, MINIMAL.replace("host: db", f"host: '{host}'")).mysql.host == host


@pytest.mark.parametrize("key", ["connect_timeout", "read_timeout", "visibility_timeout"])
def test_a_timeout_that_no_socket_can_wait_is_refused(tmp_path: Path, key: str) -> None:
    assert "must not be longer than 24d" in refusal(tmp_path, with_mysql(f"{key}: 25d"))
    assert "must not be longer than 3650d" in refusal(tmp_path, with_mysql(f"{key}: 400000d"))
    load(tmp_path, with_mysql(f"{key}: 24d"))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("~/state", "~ means a home only to a shell"),
        ("s3://me:hunter2@bucket/x", "must not hold a password"),
        ("s3://me:a/b+hunter2@bucket/x", "must not hold a password"),
        ("abfss://c@account.dfs.core.windows.net/x?sv=2024&sig=hunter2", "must not hold a password"),
        ("https://account.blob.core.windows.net/c?sig=hunter2", "must not hold a password"),
    ],
)
def test_a_path_is_written_out_and_holds_no_password(tmp_path: Path, path: str, message: str) -> None:
    assert message in refusal(tmp_path, MINIMAL.replace("/lake/state", f"'{path}'"))


@pytest.mark.parametrize(
    "path",
    [
        "/data/my lake/a:b@c?d=e", "./~", "abfss://c@account.dfs.core.windows.net/a@b", "hdfs://node:8020/user/a@b/x",
        "s3://bucket/my lake/x@y", "file:///data/x", "gs://bucket/a=b/c",
    ],
)  # fmt: skip
def test_a_path_with_unusual_letters_is_taken(tmp_path: Path, path: str) -> None:
    assert load(tmp_path, MINIMAL.replace("/lake/state", f"'{path}'")).state.path == path


@pytest.mark.parametrize("escape", ["\\0", "\\ud800"])
@pytest.mark.parametrize(
    "place", ["user: u", "database: shop", "table: orders", "path: /lake/orders", "path: /lake/state"]
)
def test_text_that_cannot_be_sent_or_stored_is_refused(tmp_path: Path, place: str, escape: str) -> None:
    key = place.partition(":")[0]
    assert "must not hold NUL" in refusal(tmp_path, MINIMAL.replace(place, f'{key}: "a{escape}b"'))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: " + "[" * 3000, "is nested more than 32 levels deep in line 1"),
        ("\n".join(f"{' ' * n}a:" for n in range(60)), "is nested more than 32 levels deep in line 3"),
        ("a: " + "{a: " * 3000, "is nested more than 32 levels deep"),
        ("[" + "x," * 30_000 + "]", "holds more than 20,000 values"),
        ("x" * 300_000, "cannot be read"),
    ],
)
def test_a_file_without_end_or_bottom_is_refused(tmp_path: Path, text: str, message: str) -> None:
    assert message in refusal(tmp_path, text)


@pytest.mark.parametrize("levels", [5, 11], ids=["a million values", "more than fit in memory"])
def test_aliases_are_followed_only_so_far(tmp_path: Path, levels: int) -> None:
    bomb = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    bomb += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, levels + 1)]
    assert "repeats too much by aliases" in refusal(tmp_path, "\n".join(bomb))
    chain = ["a0: &a0 [x]", *(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 3000))]
    assert "repeats too much by aliases" in refusal(tmp_path, "\n".join(chain))


def test_an_alias_that_repeats_little_is_fine(tmp_path: Path) -> None:
    config = load(tmp_path, MINIMAL + "epoch: {live: &t 2s}\nbuffer: {retention: *t}")
    assert config.buffer.retention == config.epoch.live


@pytest.mark.parametrize(
    ("line", "at"),
    [
        ("  password: 'hunter2", "line "),
        ("  password: hunter2: x", "line 8, column 20"),
        ("  password: [hunter2", "line "),
        ("  password: *hunter2", "line 8, column 13"),
        ("  password: %hunter2", "line 8, column 13"),
        ("  password: \"hunter2\\q\"", "line 8, column "),
        ("  password: !hunter2!x y", "line 8, column 13"),
        ("  hunter2", "line "),
        ("  password: \"\a hunter2\"", "position "),
    ],
)  # fmt: skip
def test_a_syntax_error_names_its_place_and_not_the_line(tmp_path: Path, line: str, at: str) -> None:
    told = refusal(tmp_path, MINIMAL.replace("table: orders", f"table: orders\n{line}"))
    assert "is not valid YAML" in told
    assert at in told


def test_a_syntax_error_says_which_sign_is_missing(tmp_path: Path) -> None:
    told = refusal(tmp_path, MINIMAL + "epoch: {live: 1s, backfill: 10s\nworkers: 'hunter2'")
    assert "expected ',' or '}'" in told


@pytest.mark.parametrize(
    "lines",
    [
        "password_env: !hunter2",
        "password_env: 'hunter2!'",
        "password_file: {hunter2: hunter2}",
        "password_env: ${hunter2",
    ],
)
def test_a_password_in_the_wrong_place_is_not_shown(tmp_path: Path, lines: str) -> None:
    assert refusal(tmp_path, with_mysql(lines)).startswith(f"mysql.{lines.partition(':')[0]} ")


@pytest.mark.parametrize("key", ["password_env", "password_file"])
def test_a_password_taken_for_the_name_of_its_place_is_not_shown(tmp_path: Path, key: str) -> None:
    config = load(tmp_path, with_mysql(f"{key}: {SECRET}"))
    with pytest.raises(ConfigError, match=rf"^mysql\.{key}: ") as caught:
        config.mysql.resolve_password({})
    assert SECRET not in str(caught.value)


def test_a_password_that_is_not_text_is_refused_without_showing_it(tmp_path: Path) -> None:
    config = load(tmp_path, with_mysql("password_env: DB_PASSWORD"))
    with pytest.raises(ConfigError, match=r"^mysql\.password_env: the password must not hold NUL") as caught:
        config.mysql.resolve_password({"DB_PASSWORD": os.fsdecode(b"hunter2\xe9")})
    assert SECRET not in str(caught.value)
    (tmp_path / "secret").write_bytes(b"hunter2\xe9")
    by_file = load(tmp_path, with_mysql(f"password_file: {tmp_path}/secret"))
    with pytest.raises(ConfigError, match=r"^mysql\.password_file: .* is not UTF-8 text"):
        by_file.mysql.resolve_password({})


def test_only_the_first_of_very_many_mistakes_are_listed(tmp_path: Path) -> None:
    told = refusal(tmp_path, MINIMAL + "\n".join(f"k{n}: 1" for n in range(1000)))
    assert "1,000 mistakes in " in told
    assert told.count("\n") < 30
    assert "and 980 more" in told


def test_a_key_or_a_value_of_any_length_makes_a_short_message(tmp_path: Path) -> None:
    assert len(refusal(tmp_path, MINIMAL + f"{'k' * 900}: 1")) < 600
    assert len(refusal(tmp_path, MINIMAL + f"executor: {'k' * 90_000}")) < 600
    assert "\x1b" not in refusal(tmp_path, MINIMAL + '"\\e[31m": 1\nexecutor: "\\e[31m"')


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path, tmp_path / "fifo", Path("/dev/zero"), Path("/dev/null")):
        with pytest.raises(ConfigError, match=r"cannot be read|is empty"):
            load_config(path)
    with pytest.raises(OSError, match="longer than"):
        read_small_text(Path("/dev/zero"))


def test_a_pipe_with_a_writer_is_read_to_its_end(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    reader, writer = os.pipe()

    def write() -> None:
        for line in MINIMAL.splitlines(keepends=True):
            os.write(writer, line.encode())
        os.close(writer)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        assert load_config(Path(f"/dev/fd/{reader}"), env={}).job == "orders"
    finally:
        thread.join()
        os.close(reader)


@pytest.mark.parametrize("form", ["\ufeff{}", "{}\r\n", "# note\r\n{}"])
def test_a_byte_order_mark_and_line_ends_of_any_system_change_nothing(tmp_path: Path, form: str) -> None:
    text = form.format(MINIMAL.replace("\n", "\r\n") if "\r" in form else MINIMAL)
    path = tmp_path / "job.yaml"
    path.write_bytes(text.encode())
    assert load_config(path, env={}) == load(tmp_path, MINIMAL)


@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "1969-12-31T23:59:59Z"])
def test_a_moment_that_no_log_can_hold_is_refused(tmp_path: Path, moment: str) -> None:
    told = refusal(tmp_path, with_mysql(f"cdc: {{startup_mode: timestamp, timestamp: '{moment}'}}"))
    assert "must be after 1970 and before 2106" in told


@pytest.mark.parametrize(
    "value", ["2020-01-01", "0o17", "1:30", "0x1F", "1_000", ".nan", ".inf", "1e999", "true", "'4'", "+٣"]
)
def test_a_count_is_a_plain_decimal_number(tmp_path: Path, value: str) -> None:
    assert refusal(tmp_path, MINIMAL + f"vnodes: {value}").startswith("vnodes is ")
    assert load(tmp_path, MINIMAL + "vnodes: 017").vnodes == 17


@pytest.mark.parametrize(
    "lines",
    [
        "tls: {enabled: true, ca: 'me:hunter2@db'}",
        "cdc: {startup_mode: specific, specific: {gtid: 'me:hunter2@db'}}",
        "watermark_table: 'me:hunter2@db'",
    ],
)
def test_an_address_with_a_password_is_refused_at_any_key(tmp_path: Path, lines: str) -> None:
    assert refusal(tmp_path, with_mysql(lines)).startswith(f"mysql.{lines.partition(':')[0]}")
    for user in ("me:hunter2@db", "me:a/hunter2@db", "me:a hunter2@db"):
        assert refusal(tmp_path, MINIMAL.replace("user: u", f"user: '{user}'")).startswith("mysql.user is (hidden)")
