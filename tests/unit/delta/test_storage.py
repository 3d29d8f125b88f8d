"""A folder is reached with the options that `deltalake` takes, and its errors tell kinds apart and no secrets."""

from __future__ import annotations

import pickle
from pathlib import Path

import obstore
import pytest
from obstore.exceptions import GenericError, NotSupportedError, PermissionDeniedError, UnauthenticatedError

from vnode_backfill.delta.object_store import open_remote, split_options
from vnode_backfill.delta.storage import Storage, storage_errors
from vnode_backfill.words.errors import SinkError, SinkUnavailableError


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    (tmp_path / "folder").mkdir()
    return Storage.of(str(tmp_path / "folder"))


def test_a_file_is_written_over_or_only_if_it_is_new(storage: Storage) -> None:
    storage.write_whole("a/b", b"1")
    storage.write_whole("a/b", b"2")
    assert storage.read_whole("a/b") == b"2"
    tag = storage.put_new("a/c", b"3")
    with pytest.raises(FileExistsError):
        storage.put_new("a/c", b"4")
    held = storage.read_tagged("a/c")
    assert held is not None
    assert (held.data, held.tag, storage.tag_of("a/c")) == (b"3", tag, tag)
    assert tag is not None
    assert tag != storage.tag_of("a/b")


@pytest.mark.parametrize("name", ["a/plain_name-1.json", "a/größe 50%.json"])
def test_a_file_is_found_by_the_name_it_was_written_with(storage: Storage, name: str) -> None:
    tag = storage.put_new(name, b"123")
    held = storage.read_tagged(name)
    assert held is not None
    assert (held.data, held.tag, storage.tag_of(name), storage.size_of(name)) == (b"123", tag, tag, 3)
    assert storage.modified(name) is not None
    storage.write_whole(name, b"456")
    assert storage.tag_of(name) != tag


def test_what_is_not_there_is_nothing(storage: Storage, tmp_path: Path) -> None:
    for each in (storage, Storage.of(str(tmp_path / "nothing"))):
        assert each.read_whole("x") is None
        assert each.tag_of("x") is None
        assert each.modified("x") is None
        assert each.list_names("x") == []
        assert each.list_files("x") == []
        each.remove_file("x")
    assert not (tmp_path / "nothing").exists()


def test_names_are_listed_behind_one(storage: Storage) -> None:
    for name in ("c", "a", "b"):
        storage.write_whole(f"log/{name}", b"")
    assert storage.list_names("log") == ["a", "b", "c"]
    assert storage.list_names("log", after="a") == ["b", "c"]
    storage.write_whole("x", b"")
    storage.write_whole("sub/y", b"")
    assert sorted(file.path for file in storage.list_files(without="log")) == ["sub/y", "x"]


def test_a_storage_goes_to_tasks(storage: Storage) -> None:
    storage.write_whole("x", b"1")
    assert pickle.loads(pickle.dumps(storage)).read_whole("x") == b"1"


def test_a_commit_does_not_make_a_folder_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Storage.of(str(tmp_path / "gone")).put_new("_delta_log/x", b"")


def test_a_file_in_the_way_is_not_retried(storage: Storage, tmp_path: Path) -> None:
    storage.write_whole("file", b"")
    with pytest.raises(SinkError) as raised, storage_errors("cannot"):
        storage.put_new("file/x", b"")
    assert not raised.value.retryable
    with pytest.raises(NotADirectoryError):
        Storage.of(str(tmp_path / "folder" / "file")).make_folder()


@pytest.mark.parametrize(
    ("said", "retryable"),
    [
        (PermissionDeniedError("403"), False),
        (UnauthenticatedError("401"), False),
        (NotSupportedError("conditional put"), False),
        (GenericError("Unable to open file: Permission denied (os error 13)"), False),
        (GenericError("Unable to write: No space left on device (os error 28)"), True),
        (GenericError("timed out"), True),
    ],
)
def test_the_kind_of_an_error_decides_whether_it_is_tried_again(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, said: Exception, retryable: bool
) -> None:
    def fail(*given: object, **options: object) -> None:
        raise said

    monkeypatch.setattr(obstore, "put", fail)
    with pytest.raises(SinkError) as raised, storage_errors("cannot be written"):
        storage.put_new("x", b"")
    assert isinstance(raised.value, SinkUnavailableError) is raised.value.retryable is retryable


def test_an_error_names_no_value_of_an_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage.of(str(tmp_path), {"AWS_SECRET_ACCESS_KEY": "very-secret"})

    def fail(*given: object, **options: object) -> None:
        raise GenericError("no: very-secret\n\nDebug source:\nvery-secret")

    monkeypatch.setattr(obstore, "put", fail)
    with pytest.raises(SinkUnavailableError) as raised, storage_errors("cannot be written"):
        storage.put_new("x", b"")
    assert "no: …" in raised.value.detail
    assert "very-secret" not in f"{raised.value}{raised.value.__cause__!r}{storage!r}"


def test_options_of_the_client_are_told_from_those_of_the_store() -> None:
    given = {"AWS_ALLOW_HTTP": "true", "timeout": "5s", "google_proxy_url": "http://p", "AWS_REGION": "x", "other": "y"}
    client, others = split_options(given)
    assert client == {"allow_http": "true", "timeout": "5s", "proxy_url": "http://p"}
    assert others == {"AWS_REGION": "x", "other": "y"}


@pytest.mark.parametrize("names", [str.upper, str.lower])
def test_options_open_a_store_as_deltalake_takes_them(names: object) -> None:
    assert callable(names)
    given = {
        "aws_region": "eu", "aws_access_key_id": "k", "aws_secret_access_key": "s", "aws_allow_http": "true",
        "aws_endpoint_url": "http://127.0.0.1:1", "timeout": "5s", "aws_s3_allow_unsafe_rename": "true", "unknown": "1",
        "aws_s3_locking_provider": "none",
    }  # fmt: skip
    options = tuple((names(name), value) for name, value in given.items())
    store = open_remote("s3://bucket/lake", options)
    assert store is open_remote("s3://bucket/lake", options)
    assert "bucket" in repr(store)


@pytest.mark.parametrize("options", [{"AWS_ALLOW_HTTP": "perhaps"}, {"timeout": "never"}])
def test_an_option_that_cannot_be_read_is_an_error_and_not_the_end(options: dict[str, str]) -> None:
    with pytest.raises(SinkError), storage_errors("cannot be opened"):
        Storage.of("s3://bucket/lake", {"AWS_REGION": "eu", **options}).read_whole("x")


@pytest.mark.parametrize("place", ["options", "environment"])
def test_a_lock_that_commits_would_go_past_is_refused(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "AWS_S3_LOCKING_PROVIDER"
    if place == "environment":
        monkeypatch.setenv(name, "dynamodb")
    options = {"AWS_REGION": place, **({name.lower(): "dynamodb"} if place == "options" else {})}
    with pytest.raises(SinkError, match=name):
        Storage.of("s3://bucket/locked", options).read_whole("x")
