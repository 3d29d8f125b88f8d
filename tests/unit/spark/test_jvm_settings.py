"""Settings on their way to a JVM: whole, and on no command line."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.unit.config.test_job import MINIMAL, load
from vnode_backfill.spark.jvm_settings import SENSITIVE, given_to_spark_submit, keep_to_this_machine
from vnode_backfill.spark.session import _configured, _reason

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


def test_page_of_spark_is_off_and_its_ports_are_on_the_loopback_unless_the_file_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SPARK_LOCAL_IP", "PYTHONSAFEPATH", "PYSPARK_PYTHON"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    local = dict(_configured(load(tmp_path, MINIMAL), None).getAll())
    assert (local["spark.ui.enabled"], local["spark.driver.bindAddress"]) == ("false", "127.0.0.1")
    assert local["spark.redaction.regex"] == SENSITIVE
    asked = dict(_configured(load(tmp_path, MINIMAL + "spark: {spark.ui.enabled: true}"), None).getAll())
    assert asked["spark.ui.enabled"] == "true"
    cluster = dict(_configured(load(tmp_path, MINIMAL), "yarn").getAll())
    assert "spark.driver.bindAddress" not in cluster
    assert cluster["spark.redaction.regex"] == SENSITIVE


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("Unrecognized VM option 'X'\nError: Could not create the Java Virtual Machine.\n", "Unrecognized VM option 'X' Error"),
        ("WARN x\nException in thread \"main\" a.b.SparkException: no such master\n\tat a.b.c\n", "a.b.SparkException: no such"),
    ],
)  # fmt: skip
def test_reason_of_a_jvm_that_does_not_start_names_the_cause(said: str, told: str) -> None:
    assert _reason(said).startswith(told)
