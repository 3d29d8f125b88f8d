"""Commands on stored states of the single executor's schema v1; no server and no Spark is needed to look and to ask."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from progress.store.store import StateStore
from progress.store.walk_store import SingleStore, store_of
from tests.unit.progress.state.state_examples import beginning, plan_with
from tests.unit.progress.state.test_migration import SAMPLES
from vnode_backfill.commands.cli import execute


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(
        json.dumps(
            {
                "job": "orders",
                "mysql": {"host": "nowhere.invalid", "user": "u", "database": "d", "table": "t"},
                "sink": {"delta": {"path": str(tmp_path / "lake")}},
                "state": {"path": str(tmp_path / "state")},
                "executor": "single",
            }
        )
    )
    return path


def sample(name: str, config: Path) -> None:
    shutil.copytree(SAMPLES / name, config.parent / "state" / "orders")


def command(config: Path, name: str, *flags: str) -> int:
    return execute([name, "--config", str(config), *flags])


def test_status_shows_a_half_done_walk(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample("half_done", config)
    assert command(config, "status", "--json", "--per-vnode") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["ranges_total"], len(shown["vnodes"])) == (1, 1)
    assert 0 < shown["percent"] < 100
    assert command(config, "status") == 0
    assert "orders" in capsys.readouterr().out


def test_unknown_version_is_refused_with_both_versions_named(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample("newer", config)
    for name in ("status", "pause", "drop"):
        assert command(config, name) == 1
        assert "has version 7, this program reads versions 1, 3 and 4" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags", [("rescale", "--workers", "3"), ("resnapshot", "--only", "0"), ("resnapshot", "--all")]
)
def test_request_that_makes_no_sense_is_refused_with_the_reason(
    config: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...]
) -> None:
    sample("half_done", config)
    assert command(config, *flags) == 2
    refusal = capsys.readouterr().err
    assert f"cannot be asked to {flags[0]}: the single executor" in refusal
    assert "Go on with `executor: parallel`" in refusal


def test_files_of_a_walk_are_not_joined_before_it_has_ended(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample("half_done", config)
    for flags in (("compact",), ("upgrade", "--merge", "rewrite")):
        assert command(config, *flags) == 2
        assert "walks its table still" in capsys.readouterr().err


def test_other_requests_are_written_down(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample("half_done", config)
    assert command(config, "pause") == command(config, "throttle", "--rows-per-second", "10") == 0
    assert "request 2: rate-limit" in capsys.readouterr().out.replace("_", "-")


def test_drop_leaves_no_older_state_behind_that_would_count_again(config: Path) -> None:
    sample("half_done", config)
    state = str(config.parent / "state")
    old, new = SingleStore(state, "orders"), StateStore(state, "orders")
    stored = old.stored()
    assert stored is not None
    lease = new.acquire_lease("anna", timedelta(minutes=1))
    plan = plan_with(10, 20, 30)
    record = replace(stored.record, executor="parallel", format_version=2, vnode_count=plan.vnode_count)
    new.create(record, plan, beginning(plan), lease)
    new.release()
    assert isinstance(store_of(state, "orders", single=True), StateStore)
    assert command(config, "drop") == 0
    assert not old.exists()
    assert not new.exists()
