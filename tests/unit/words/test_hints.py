"""A hint of a table of many names the table, and what the running driver does; a job of one table reads it as it was."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest

from vnode_backfill.job.open import begin
from vnode_backfill.words import hints
from vnode_backfill.words.hints import (
    CHANGE_OPTIONS,
    NEW_COPY,
    NEW_COPY_IN_PLACE,
    READ_AGAIN,
    RUN_AGAIN,
    TAKES_UP,
    accept,
    for_new_table,
    for_table,
)

REPOSITORY = Path(__file__).parents[3]
TABLE = "shop.orders"
EVERY = [getattr(hints, name) for name in hints.__all__ if name.isupper()] + [accept("binlog.000042:1234")]


@pytest.mark.parametrize("hint", EVERY)
def test_hint_of_a_job_of_one_table_stays_as_it_is(hint: str) -> None:
    assert for_table(hint, "") == hint


@pytest.mark.parametrize("hint", EVERY)
def test_every_command_of_a_table_of_many_names_it_and_nothing_asks_for_a_second_driver_alone(hint: str) -> None:
    told = for_table(hint, TABLE)
    commands = re.findall(r"`((?:vnode-backfill )?(?:resnapshot|resume|drop|run|stop)\b[^`]*)`", told)
    about_tables = [each for each in commands if each != "vnode-backfill stop"]
    assert all(each.startswith("vnode-backfill ") and each.endswith(" --table shop.orders") for each in about_tables)
    assert "`vnode-backfill drop" not in told
    assert "executor" not in told
    assert "driver" in told or "takes the table up again" in told
    assert for_table(told, TABLE) == told


def test_a_new_copy_is_asked_for_one_table_and_the_driver_takes_it_up() -> None:
    assert for_table(f"Some words. {NEW_COPY}", TABLE) == (
        "Some words. Ask for a new copy with `vnode-backfill resnapshot --all --table shop.orders`. "
        "A running driver takes it up within seconds; if none runs, run the job."
    )


def test_a_statement_is_accepted_for_one_table() -> None:
    assert for_table(accept("binlog.000042:1234"), TABLE) == (
        "Accept it with `vnode-backfill resume --config … --accept binlog.000042:1234 --table shop.orders`. "
        "A running driver takes it up within seconds; if none runs, run the job."
    )


def test_a_place_in_the_log_that_is_gone_does_not_drop_the_job() -> None:
    assert for_table(f"{READ_AGAIN} Keep binlog files longer.", TABLE) == (
        "Ask for `vnode-backfill resnapshot --all --table shop.orders`: it reads the table again and follows the log "
        "from then on. A running driver takes it up within seconds; if none runs, run the job. "
        "Keep binlog files longer."
    )


def test_options_of_the_file_count_for_the_next_driver() -> None:
    told = for_table(f"`exclude` the column{CHANGE_OPTIONS} {NEW_COPY_IN_PLACE}", TABLE)
    restart = "then end the driver with `vnode-backfill stop`, if one runs, and run the job."
    assert told == (
        f"`exclude` the column in sink.iotdb, {restart} For a new copy set `sink.iotdb.replace: true`, "
        f"ask for it with `vnode-backfill resnapshot --all --table shop.orders`, {restart}"
    )


def test_a_stuck_order_names_the_whole_command() -> None:
    told = "`vnode-backfill resume --table shop.orders` takes the table up again"
    assert for_table(f"Look. {TAKES_UP}, once it has ended.", TABLE) == f"Look. {told}, once it has ended."


def test_a_name_that_a_shell_would_read_is_quoted() -> None:
    told = for_table(NEW_COPY, "`my.shop`.a b")
    (command,) = re.findall(r"(vnode-backfill resnapshot .*)`\. ", told)
    assert shlex.split(command)[-2:] == ["--table", "`my.shop`.a b"]


def test_hints_that_name_what_to_run_are_worded_in_one_place() -> None:
    """Whoever words one elsewhere would not be understood by `for_table`. Commands know which job they are about."""
    words = re.compile(r"vnode-backfill (resnapshot|resume|drop)|[Rr]un the job again|[Rr]un it again\b(?!: a job)")
    named = {
        f"{path.relative_to(REPOSITORY)}: {node.value}"
        for package in ("vnode_backfill", "consume_upstream", "progress")
        for path in (REPOSITORY / package).rglob("*.py")
        if path.name != "hints.py" and "commands" not in path.parts
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and words.search(node.value)
    }
    assert {line.partition(":")[0] for line in named} == {
        "progress/store/planning_notes.py",  # a job that does not exist yet
        "progress/store/store.py",  # a job that exists already
        "vnode_backfill/job/open/begin.py",  # RUN_AGAIN
        "vnode_backfill/job/open/notices.py",  # a job of one table
        "vnode_backfill/job/tables/reopening.py",  # a job of many tables
    }, named
    assert Path(begin.__file__).read_text().count(f'"{RUN_AGAIN}"') == 2


def test_a_table_without_a_state_is_tried_again_by_the_next_run_which_a_running_driver_would_refuse() -> None:
    assert for_new_table(RUN_AGAIN) == "End the driver with `vnode-backfill stop`, if one runs, and run the job."
    assert for_new_table("Apply each fix.") == "Apply each fix."
