"""Commands about a job of many tables: about all of them, or those that --table means."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable

from progress.state.backfill_state import Request, RequestKind
from progress.state.cut import Cut, Target
from progress.state.report import Observed
from progress.store.observed import ObservedFile
from progress.store.store import StateStore
from progress.store.tables_store import TablesStore
from tests.unit.commands.loaded_modules import heavy_of, loaded_by
from tests.unit.progress.state.state_examples import DEFINITION, at, beginning
from tests.unit.progress.state.test_migration import sample
from tests.unit.progress.store.state_folder import create
from tests.unit.progress.store.tables_folder import MINUTE, PLAN, stored
from vnode_backfill.commands.cli import execute
from vnode_backfill.commands.tables.asked import asked_names, part_of
from vnode_backfill.commands.tables.choose import is_of_file
from vnode_backfill.commands.tables.requests import ask_tables
from vnode_backfill.commands.tables.verify import compare_tables
from vnode_backfill.config.job import MergeMode, load_config
from vnode_backfill.job.sink.description import Verdict
from vnode_backfill.sinks.delta.sink import DeltaSink
from vnode_backfill.verify.tasks_here import TasksHere
from vnode_backfill.words.errors import ConfigError, PlanRefusedError
from vnode_backfill.words.table_name import TableName

NAMES = ("shop.Items", "shop.orders", "shop.order_lines")


class Asked:
    """Commands on a stored job of three tables and one that is set aside, with nobody driving it."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys, self._folder = capsys, folder
        store = stored(folder / "state", *(name.split(".")[1] for name in NAMES))
        store.note_aside({"shop.audit": PlanRefusedError("checks refuse it", detail="refused  table.key  has no key")})
        store.release()
        values = {
            "job": "shop", "mysql": {"host": "nowhere.invalid", "user": "u", "tables": ["shop.*"]},
            "sink": {"delta": {"path": f"{folder}/lake/{{table}}"}}, "state": {"path": f"{folder}/state"}, "vnodes": 4,
        }  # fmt: skip
        self.file = folder / "job.yaml"
        self.file.write_text(json.dumps(values))

    def __call__(self, name: str, *flags: str, code: int = 0) -> str:
        found = execute([name, "--config", str(self.file), *flags])
        printed = self._capsys.readouterr()
        assert found == code, printed
        return printed.out + printed.err

    def of_every(self) -> list[tuple[str, int | None, int]]:
        """What is kept for tables that join the job: kind, rate limit, workers."""
        asked = [each.request for each in TablesStore(str(self._folder / "state"), "shop").asked_of_every()]
        return [(str(each.kind), each.rows_per_second, each.workers or len(each.assignment)) for each in asked]

    def waiting(self, *more: str) -> dict[str, list[str]]:
        """Per table what was asked of it and nobody has done yet."""
        store = TablesStore(str(self._folder / "state"), "shop")
        store.acquire_lease("anna", MINUTE)
        names = (*NAMES, *more)
        for name in names:
            store.table(name).acquire_lease("anna", MINUTE)
        found = store.unacknowledged(dict.fromkeys(names, beginning(PLAN, workers=2)))
        store.release()
        return {name: [str(each.kind) for each in asked] for name, asked in found.items()}


@pytest.fixture
def asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Asked:
    return Asked(tmp_path, capsys)


def test_names_are_compared_as_written_and_then_without_regard_to_case() -> None:
    assert asked_names(NAMES, ()) == tuple(sorted(NAMES))
    assert asked_names(NAMES, ["shop.order*"]) == ("shop.order_lines", "shop.orders")
    assert asked_names(NAMES, ["SHOP.items", "shop.orders"]) == ("shop.Items", "shop.orders")
    assert asked_names(("shop.a", "shop.A"), ["shop.a"]) == ("shop.a",)
    with pytest.raises(ConfigError, match=r"--table shop\.x: the job has no such table"):
        asked_names(NAMES, ["shop.orders", "shop.x"])
    with pytest.raises(ConfigError, match="--table orders: must be"):
        asked_names(NAMES, ["orders"])


def test_status_shows_all_tables_some_or_one(asked: Asked) -> None:
    whole = json.loads(asked("status", "--json"))
    assert [table["name"] for table in whole["tables"]] == [*sorted(NAMES), "shop.audit"]
    assert (whole["tables"][3]["phase"], whole["tables"][3]["error"]) == ("set aside", "has no key")
    assert whole["ranges_total"] == 9
    some = json.loads(asked("status", "--json", "--table", "shop.order*"))
    assert [table["name"] for table in some["tables"]] == ["shop.order_lines", "shop.orders"]
    one = json.loads(asked("status", "--json", "--per-vnode", "--table", "shop.orders"))
    assert (one["job"], one["ranges_total"], len(one["vnodes"]), "tables" in one) == ("shop.orders", 3, 4, False)
    assert one["sink"].endswith("/lake/orders")
    assert "set aside: checks refuse it" in asked("status", "--table", "shop.audit")


def test_status_ends_without_a_traceback_when_its_reader_has_seen_enough(asked: Asked) -> None:
    """As with `vnode-backfill status | head -3`."""
    command = [sys.executable, "-m", "vnode_backfill", "status", "--config", str(asked.file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert process.returncode == 141


@pytest.mark.parametrize("name", ["status", "pause", "tables"])
def test_command_about_many_tables_loads_nothing_that_delays_its_answer(asked: Asked, name: str) -> None:
    assert heavy_of(loaded_by(name, "--config", str(asked.file))) == []


def test_cut_says_of_each_version_whether_and_until_when_it_can_be_read(asked: Asked, tmp_path: Path) -> None:
    now, lake = datetime.now(UTC), tmp_path / "lake"
    target = DeltaSink(str(lake / "orders"), DEFINITION, "job", creates=MergeMode.VECTORS)
    target.prepare()
    there, gone = Target(f"delta:{lake}/orders", 0), Target(f"delta:{lake}/gone", 3)
    store = TablesStore(str(tmp_path / "state"), "shop")
    store.acquire_lease("anna", MINUTE)
    own = store.table("shop.orders")
    own.acquire_lease("anna", MINUTE)
    cut = Cut(at(100), now, {"shop.orders": there, "shop.gone": gone, "shop.points": Target("iotdb", None)}, {})
    held = own.load()
    assert held is not None
    state = replace(held.state, revision=held.state.revision + 1)
    assert store.commit_together([(own, state)], cut=cut.to_json()) == {}
    store.release()
    gone_line, orders, points = (line.split() for line in asked("cut").splitlines()[1:])
    until = (now + timedelta(days=1)).isoformat(timespec="seconds")
    assert gone_line[4:] == ["can", "no", "longer", "be", "read"]
    assert orders[1:] == ["0", "shop.orders", there.sink, "until", until]
    assert points == ["version", "-", "shop.points", "iotdb"]
    found = json.loads(asked("cut", "--json"))["tables"]
    assert [(each["readable"], each["readable_until"] is None) for each in found] == [
        (False, True),
        (True, False),
        (None, True),
    ]


def test_request_goes_to_all_tables_or_to_those_that_are_meant(asked: Asked) -> None:
    assert "request to all 3 tables: pause" in asked("pause")
    assert "request to shop.order_lines, shop.orders: rate_limit (700 rows/s), when the job is run again" in asked(
        "throttle", "--rows-per-second", "700", "--table", "shop.order*"
    )
    asked("rescale", "--workers", "3", "--table", "shop.Items")
    asked("resnapshot", "--all")
    both = ["pause", "rate_limit", "resnapshot"]
    assert asked.waiting() == {
        "shop.Items": ["pause", "rescale", "resnapshot"], "shop.orders": both, "shop.order_lines": both,
    }  # fmt: skip
    shown = json.loads(asked("status", "--json"))["requests"]
    assert [each["kind"] for each in shown] == ["pause", "rate_limit", "rescale", "resnapshot"]


def test_the_limit_of_some_tables_counts_within_that_of_the_job(asked: Asked) -> None:
    orders = ("--table", "shop.orders")
    assert "(900 rows/s)" in asked("throttle", "--rows-per-second", "900", *orders), "the job has no limit"
    assert "(no limit)" in asked("throttle", "--off", *orders)
    asked("throttle", "--rows-per-second", "500")
    assert "(60 rows/s)" in asked("throttle", "--rows-per-second", "60", *orders)
    assert "(500 rows/s, which is the limit of the job)" in asked("throttle", "--rows-per-second", "501", *orders)
    assert "(500 rows/s, which is the limit of the job)" in asked("throttle", "--off", "--table", "shop.order*")
    every = ("--table", "shop.order*", "--table", "shop.Items")
    assert "(500 rows/s, which is the limit of the job)" in asked("throttle", "--rows-per-second", "501", *every)
    assert "(no limit)" in asked("throttle", "--off")
    assert "(900 rows/s)" in asked("throttle", "--rows-per-second", "900", *orders)
    assert asked.waiting()["shop.orders"] == ["rate_limit"] * 9


def test_a_new_table_that_is_not_copied_is_named_by_status_and_listed(asked: Asked, tmp_path: Path) -> None:
    store = TablesStore(str(tmp_path / "state"), "shop")
    lease = store.acquire_lease("anna", MINUTE)
    file = ObservedFile(store.folder, {}, lease.generation)
    file.write(Observed(reported=("shop.later",)))
    assert json.loads(asked("status", "--json"))["reported"] == ["shop.later"]
    assert json.loads(asked("status", "--json", "--table", "shop.order*"))["reported"] == []
    lines = [" ".join(line.split()) for line in asked("tables").splitlines()]
    assert "shop.later new not copied, because mysql.new_tables is report" in lines
    listed = json.loads(asked("tables", "--json"))["tables"]
    assert [each["phase"] for each in listed if each["name"] == "shop.later"] == ["new"]
    store.release()
    assert json.loads(asked("status", "--json"))["reported"] == [], "nobody looks for tables now"


def test_an_entry_in_other_letters_says_by_itself_that_a_table_is_copied_where_letters_are_the_same(
    asked: Asked, tmp_path: Path
) -> None:
    values = json.loads(asked.file.read_text())
    values["mysql"] |= {"tables": ["shop.o*", "Shop.Later"], "new_tables": "report"}
    asked.file.write_text(json.dumps(values))
    config, store = load_config(asked.file), TablesStore(str(tmp_path / "state"), "shop")
    later, other = TableName("shop", "later"), TableName("shop", "other")
    assert is_of_file(config, store, later, folded=True)
    assert not is_of_file(config, store, later, folded=False)
    assert not is_of_file(config, store, other, folded=True), "a pattern alone does not"
    assert is_of_file(config, store, TableName("shop", "orders"), folded=False), "the job has it"


def test_what_all_tables_are_asked_holds_for_later_ones_until_it_is_asked_otherwise(asked: Asked) -> None:
    asked("pause")
    asked("throttle", "--rows-per-second", "700")
    asked("rescale", "--workers", "3")
    asked("rescale", "--workers", "1", "--table", "shop.orders")
    asked("throttle", "--off", "--table", "shop.o*")
    asked("resnapshot", "--all")
    asked("resume", "--accept", "binlog.000001:4")
    assert asked.of_every() == [("pause", None, 0), ("rate_limit", 700, 0), ("rescale", None, 3)]
    asked("rescale", "--bitmap", "0=0-2", "--bitmap", "1=3")
    asked("resume")
    asked("throttle", "--off")
    assert asked.of_every() == [("rescale", None, 2), ("resume", None, 0), ("rate_limit", None, 0)]


def while_a_table_joins(folder: Path, request: Request) -> Callable[[int], Request]:
    """Makes the request for each table. Before it is written, when the command knows its tables, one more joins."""
    calls: list[int] = []

    def made(count: int) -> Request:
        calls.append(count)
        if len(calls) == 2:
            stored(folder / "state", "late").release()
        return request

    return made


def test_a_table_that_joins_while_all_are_asked_is_asked_too(asked: Asked, tmp_path: Path) -> None:
    made = while_a_table_joins(tmp_path, Request(0, RequestKind.PAUSE))
    assert ask_tables(load_config(asked.file), (), made, "paused") == 0
    assert asked.waiting("shop.late") == {name: ["pause"] for name in (*NAMES, "shop.late")}
    assert asked.of_every() == [("pause", None, 0)]


def test_a_stop_of_all_asks_tables_that_join_meanwhile(asked: Asked, tmp_path: Path) -> None:
    """Otherwise the job would go on with such a table alone."""
    made = while_a_table_joins(tmp_path, Request(0, RequestKind.STOP))
    assert ask_tables(load_config(asked.file), (), made, "stopped") == 0
    assert asked.waiting("shop.late") == {name: ["stop"] for name in (*NAMES, "shop.late")}
    assert asked.of_every() == [], "a table that joins later is not stopped"


def test_a_removed_table_is_asked_what_holds_and_nothing_that_is_done_once(asked: Asked) -> None:
    asked("tables", "remove", "shop.Items")
    asked("throttle", "--rows-per-second", "700")
    asked("rescale", "--bitmap", "0=0-3")
    asked("resnapshot", "--all")
    assert asked.waiting()["shop.Items"] == ["rate_limit", "rescale"]
    assert asked.waiting()["shop.orders"] == ["rate_limit", "rescale", "resnapshot"]


def test_another_number_of_vnodes_is_refused_before_anything_is_written(asked: Asked, tmp_path: Path) -> None:
    def commits() -> int:
        return DeltaTable(tmp_path / "state" / "shop" / "checkpoints").version()

    before = commits()
    refused = asked("run", "--vnodes", "8", code=2)
    assert "job shop has 4 vnodes; --vnodes 8 cannot change that" in refused
    assert "Leave --vnodes out" in refused
    assert commits() == before


def test_vnodes_and_keys_of_one_table_can_be_read_again_those_of_several_cannot(asked: Asked) -> None:
    assert "request 1: resnapshot (vnodes 3" in asked("resnapshot", "--only", "3", "--table", "shop.orders")
    asked("resnapshot", "--where-key", "1..2", "--table", "shop.orders")
    assert "--only needs one table" in asked("resnapshot", "--only", "3", code=2)
    assert "--where-key needs one table" in asked("resnapshot", "--where-key", "1..2", "--table", "shop.o*", code=2)
    assert asked.waiting() == {"shop.orders": ["resnapshot", "resnapshot"]}


def test_what_makes_no_sense_is_refused_and_nothing_is_asked(asked: Asked) -> None:
    assert "nothing to stop" in asked("stop", code=1)
    assert "has no state yet: has no key" in asked("resume", "--table", "shop.audit", code=1)
    assert "no such table" in asked("pause", "--table", "shop.nothing", code=2)
    assert "it has no handoff" in asked("handoff", code=2)
    assert "Take the table out of mysql.tables" in asked("drop", "--table", "shop.orders", code=2)
    asked("rescale", "--workers", "5", code=2)
    asked("rescale", "--bitmap", "0=0-2", code=2)
    assert "not live yet" in asked("wait", "--timeout", "100ms", code=1)
    assert asked.waiting() == {}


def test_driver_that_runs_keeps_the_job_from_being_dropped(asked: Asked, tmp_path: Path) -> None:
    store = TablesStore(str(tmp_path / "state"), "shop")
    store.acquire_lease("anna", MINUTE)
    assert "is driven by anna" in asked("drop", code=1)
    assert "is driven by anna" in asked("upgrade", "--merge", "vectors", code=1)
    assert "request to all 3 tables: stop (everything captured is applied first), at the next barrier" in asked("stop")
    store.release()
    dropped = asked("drop")
    assert "shop.orders: the target delta:/lake/orders stays as it is" in dropped
    assert "there is no job shop" in asked("status", code=1)


def test_table_that_the_file_no_longer_names_is_shown_and_has_no_configuration(asked: Asked) -> None:
    values = json.loads(asked.file.read_text())
    values["mysql"]["tables"] = ["shop.orders"]
    asked.file.write_text(json.dumps(values))
    assert len(json.loads(asked("status", "--json"))["tables"]) == 4
    with pytest.raises(ConfigError, match=r"no entry matches shop\.order_lines"):
        part_of(load_config(asked.file), "shop.order_lines")


def test_job_of_one_table_takes_the_name_of_that_table_only(asked: Asked) -> None:
    values = json.loads(asked.file.read_text())
    values["mysql"] = {"host": "nowhere.invalid", "user": "u", "database": "shop", "table": "orders"}
    values["job"], values["sink"]["delta"]["path"] = "other", "/nowhere/lake"
    asked.file.write_text(json.dumps(values))
    assert "the job has one table, shop.orders" in asked("status", "--table", "shop.items", code=2)
    assert "there is no job other" in asked("status", "--table", "shop.orders", code=1)


def test_a_removed_table_is_listed_as_such_and_asked_nothing(asked: Asked) -> None:
    assert "shop.Items is removed: it counts when the job is run again" in asked("tables", "remove", "shop.items")
    listed = json.loads(asked("tables", "--json"))["tables"]
    assert [(each["name"], each["phase"], each["changed"]) for each in listed] == [
        ("shop.Items", "removed", "removed"), ("shop.audit", "set aside", None),
        ("shop.order_lines", "snapshot", None), ("shop.orders", "snapshot", None),
    ]  # fmt: skip
    assert "removed by" in asked("tables").splitlines()[0]
    status = json.loads(asked("status", "--json"))
    assert (status["source"], status["tables"][-1]["name"]) == ("3 tables", "shop.Items")
    assert "1 removed" in asked("status")
    assert "request to all 2 tables: pause" in asked("pause")
    assert "no such table" in asked("verify", "--table", "shop.Items", code=2)
    asked("drop")


def test_rows_of_all_tables_are_counted_also_where_the_target_holds_points(asked: Asked) -> None:
    points = Verdict(True, "verified", json.dumps({"equal": True, "rows_source": 9, "rows_target": 9, "missing": 0}))
    rows = Verdict(True, "verified", json.dumps({"equal": True, "rows_source": 9, "rows_compared": 7}))

    def total(verdict: Verdict) -> str:
        config = load_config(asked.file)
        found = compare_tables(
            config, ["shop.o*"], tasks=lambda: nullcontext(TasksHere()),
            compare=lambda _config, _tasks: verdict,
        )  # fmt: skip
        return found.text.splitlines()[-1]

    assert total(points) == "verified: 18 rows in 2 tables, 0 differences"
    assert total(rows) == "verified: 14 rows in 2 tables, 0 differences"


def test_tables_that_cannot_be_removed_are_named_with_the_reason(asked: Asked) -> None:
    assert "tables remove shop.nothing: the job has no such table" in asked("tables", "remove", "shop.nothing", code=2)
    asked("tables", "remove", "shop.orders", "shop.audit")
    assert "shop.orders was removed from job shop already" in asked("tables", "remove", "shop.orders", code=2)
    assert "is the last table of job shop" in asked("tables", "remove", "shop.*", code=2)
    assert "a pattern cannot be added" in asked("tables", "add", "shop.*", code=2)
    assert "--priority -1: must be between 0 and 1,000,000" in asked(
        "tables", "add", "shop.orders", "--priority", "-1", code=2
    )
    assert [each["changed"] for each in json.loads(asked("tables", "--json"))["tables"]].count("removed") == 2


def test_a_job_of_one_table_has_no_tables_to_add_or_remove(asked: Asked) -> None:
    values = json.loads(asked.file.read_text())
    values["mysql"] = {"host": "nowhere.invalid", "user": "u", "database": "shop", "table": "orders"}
    values["sink"]["delta"]["path"] = "/nowhere/lake"
    asked.file.write_text(json.dumps(values))
    for words in ((), ("add", "shop.items"), ("remove", "shop.orders")):
        assert "tables is for a job of many tables" in asked("tables", *words, code=2)


@pytest.mark.parametrize("kind", ["walk", "parallel"])
def test_the_name_of_a_job_of_one_table_is_refused_for_many_and_nothing_is_written(
    tmp_path: Path, asked: Asked, kind: str
) -> None:
    values = json.loads(asked.file.read_text())
    asked.file.write_text(json.dumps({**values, "job": "orders"}))
    if kind == "walk":
        sample("half_done", tmp_path / "state")
    else:
        create(StateStore(str(tmp_path / "state"), "orders"))
    folder = tmp_path / "state" / "orders"
    before = sorted(folder.rglob("*"))
    for words in (("run",), ("status",), ("tables",), ("pause",)):
        assert "job 'orders' is a job of one table" in asked(*words, code=2)
    assert "give the job of many tables another name" in asked("run", "--until", "live", code=2)
    assert sorted(folder.rglob("*")) == before
