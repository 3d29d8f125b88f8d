"""A bomb counts the steps of the job's targets, of each table of many, and not those of buffers and copies."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from devkit.crash import Bomb, targets_of
from tests.unit.config.test_job import load
from vnode_backfill.config.job import Config
from vnode_backfill.delta.steps import Step


def config(folder: Path, mysql: dict[str, object], path: str) -> Config:
    source = {"host": "db", "user": "u", **mysql}
    values = {"job": "all", "mysql": source, "sink": {"delta": {"path": path}}, "state": {"path": "/lake/_state"}}
    return load(folder, json.dumps(values))


def deaths(bomb: Bomb, monkeypatch: pytest.MonkeyPatch, *paths: str) -> list[str]:
    """The folders among these in which a step is the bomb's."""
    dead: list[str] = []
    for path in paths:
        monkeypatch.setattr(os, "kill", lambda *_, path=path: dead.append(path))
        bomb.count = 1
        bomb.at_step("before", Step.COMMIT_MERGE, path)
    return dead


def test_steps_of_every_table_of_a_job_of_many_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"table": "shop.items", "delta": {"path": "/items.d/{table}/"}}
    many = config(tmp_path, {"tables": ["shop.*", own]}, "/lake/{database}/{table}")
    bomb = Bomb("before", "CommitMerge", 1, target=targets_of(many))
    targets = ("/lake/shop/orders", "/lake/shop/order~20items", "/items.d/items")
    others = ("/lake/shop/orders/_copies/4f1c", "/lake/_state/buffers/shop/orders", "/lake/shop", "/itemsXd/items")
    assert deaths(bomb, monkeypatch, *targets, *others) == list(targets)


def test_steps_of_the_only_table_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = config(tmp_path, {"database": "shop", "table": "orders"}, "/lake/orders/")
    bomb = Bomb("before", "CommitMerge", 1, target=targets_of(one))
    assert deaths(bomb, monkeypatch, "/lake/orders", "/lake/orders/_copies/1", "/state/buffer") == ["/lake/orders"]


def test_without_a_delta_table_no_step_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert deaths(Bomb("before", "CommitMerge", 1), monkeypatch, "/lake/orders", "") == []
