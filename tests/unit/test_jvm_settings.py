"""Settings on their way to a JVM: whole, and on no command line."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from vnode_backfill.jvm_settings import SENSITIVE, given_to_spark_submit, keep_to_this_machine

ARGUMENTS = "PYSPARK_SUBMIT_ARGS"


def test_settings_are_in_a_file_that_only_its_descriptor_leads_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ARGUMENTS, "--jars a.jar pyspark-shell")
    with given_to_spark_submit({"spark.a": "geheim", "spark.b c": "=#\\\n é😀"}) as descriptor:
        about = os.fstat(descriptor)
        assert (about.st_mode & 0o077, about.st_nlink) == (0, 0)
        words = os.environ[ARGUMENTS].split()
        assert words[:2] == ["--properties-file", f"/dev/fd/{descriptor}"]
        assert words[-3:] == ["--jars", "a.jar", "pyspark-shell"]
        assert Path(words[1]).read_text().splitlines() == [
            "spark.a=geheim",
            r"spark.b\u0020c=\u003d\u0023\u005c\u000a\u0020\u00e9\ud83d\ude00",
        ]
    assert os.environ[ARGUMENTS] == "--jars a.jar pyspark-shell"


@pytest.mark.parametrize(
    "name",
    [
        "fs.azure.account.key.shop.dfs.core.windows.net", "fs.azure.sas.fixed.token.shop", "fs.s3a.access.key",
        "fs.s3a.secret.key", "fs.s3a.session.token", "fs.s3a.encryption.key", "spark.ssl.keyPassword",
        "fs.azure.account.oauth2.client.secret", "google.cloud.auth.service.account.private.key",
    ],
)  # fmt: skip
def test_keys_of_stores_are_hidden(name: str) -> None:
    assert re.search(SENSITIVE, name)


def test_size_of_memory_is_not_hidden() -> None:
    assert not re.search(SENSITIVE, "spark.executor.memory")


def test_current_folder_is_searched_only_if_the_packages_come_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPARK_LOCAL_IP", "10.0.0.7")
    monkeypatch.setenv("PYTHONSAFEPATH", "")
    monkeypatch.delenv("PYTHONSAFEPATH")
    keep_to_this_machine(tmp_path)
    assert "PYTHONSAFEPATH" not in os.environ
    keep_to_this_machine(tmp_path / "elsewhere")
    assert (os.environ["PYTHONSAFEPATH"], os.environ["SPARK_LOCAL_IP"]) == ("1", "10.0.0.7")
