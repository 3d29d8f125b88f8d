"""Requests are checked before they are written, name what is wrong, and need neither a driver nor a JVM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from threading import Timer

import pytest
from deltalake import DeltaTable

from devkit.spark import REPOSITORY
from devkit.waiting import wait_for
from progress.state.backfill_state import BackfillState, Phase, RequestKind
from progress.state.report import InHand, Observed, Retry
from progress.state.target_health import TargetHealth, VectorHealth
from progress.store.observed import ObservedFile, ObservedReporter
from progress.store.store import StateStore
from tests.unit.commands.loaded_modules import heavy_of, loaded_by
from tests.unit.progress.state.state_examples import beginning
from tests.unit.progress.store.state_folder import PLAN, record
from vnode_backfill.commands import requests
from vnode_backfill.commands.cli import execute
from vnode_backfill.commands.resnapshot import resnapshot
from vnode_backfill.commands.run import awaited_session
from vnode_backfill.commands.status import read_report
from vnode_backfill.commands.stored_job import with_room_for_workers
from vnode_backfill.config.job import Config, load_config
from vnode_backfill.job.open.locations import buffer_path, state_store
from vnode_backfill.spark.early_daemon import DaemonAhead
from vnode_backfill.spark.session import Started, StartingSession
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.errors import ConfigError, LawBrokenError, StateError

COMMANDS = [
    ("status", "--json"),
    ("rescale", "--workers", "3"),
    ("throttle", "--rows-per-second", "100"),
    ("pause",),
    ("resume",),
    ("resume", "--accept", "binlog.000042:1234"),
    ("stop",),
    ("resnapshot", "--only", "1-2"),
    ("resnapshot", "--where-key", "3..12"),
    ("status", "--per-vnode"),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The configuration of a job with 4 vnodes, keys 0 to 30 in three ranges, that two workers share."""
    settings = {
        "job": "orders",
        "mysql": {"host": "nowhere.invalid", "user": "root", "database": "shop", "table": "orders"},
        "sink": {"delta": {"path": str(tmp_path / "lake")}},
        "state": {"path": str(tmp_path / "state")},
        "vnodes": 4,
        "workers": 2,
    }
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps(settings))
    return file


@pytest.fixture
def config(path: Path) -> Config:
    return load_config(path, {})


@pytest.fixture
def driver(config: Config) -> StateStore:
    """The store of the driver that has created the job and drives it."""
    store = state_store(config)
    lease = store.acquire_lease("anna", timedelta(hours=1))
    store.create(record("orders"), PLAN, beginning(PLAN, workers=2), lease)
    return store


def run(path: Path, *words: str) -> int:
    name, *flags = words
    return execute([name, "--config", str(path), *flags])


def asked(config: Config) -> list[str]:
    snapshot = state_store(config).status_snapshot()
    assert snapshot is not None
    return [str(each.request.kind) for each in snapshot.asked]


def commit(driver: StateStore, phase: Phase, *, stopped: bool) -> BackfillState:
    """Everything is read; the vnodes are in this phase."""
    loaded = driver.load()
    assert loaded is not None
    vnodes = tuple(
        replace(
            vnode, phase=phase, complete=Epoch(1), epoch=Epoch(1),
            reads=tuple((planned.ordinal, Epoch(0)) for planned in PLAN.of_vnode(vnode.vnode)),
        )
        for vnode in loaded.state.vnodes
    )  # fmt: skip
    state = replace(loaded.state, revision=loaded.state.revision + 1, vnodes=vnodes, stopped=stopped)
    driver.commit(state)
    return state


@pytest.mark.parametrize(
    ("bitmaps", "named"),
    [
        (("0=0-2", "1=2-3"), "vnodes 2 are in more than one bitmap"),
        (("0=0", "1=3"), "vnodes 1-2 are in no bitmap"),
        (("0=0-3", "1=4-7"), "vnode 7 in vnodes '4-7' is not between 0 and 3"),
        (("0=0-1", "0=2-3"), "--bitmap 0=2-3: expected WORKER=VNODES, each worker once"),
        (("0=0-1", "2=2-3"), "--bitmap: workers are [0, 2], expected 0 to 1"),
        (("0-3",), "--bitmap 0-3: expected WORKER=VNODES"),
    ],
)
def test_bitmaps_that_do_not_fit_are_refused_by_name(
    path: Path, config: Config, driver: StateStore, capsys: pytest.CaptureFixture[str], bitmaps: tuple[str, ...], named: str
) -> None:  # fmt: skip
    assert run(path, "rescale", *(word for text in bitmaps for word in ("--bitmap", text))) == 2
    assert named in capsys.readouterr().err
    assert asked(config) == []


@pytest.mark.parametrize("workers", ["0", "5"])
def test_workers_that_cannot_share_the_vnodes_are_refused(
    path: Path, config: Config, driver: StateStore, capsys: pytest.CaptureFixture[str], workers: str
) -> None:
    assert run(path, "rescale", "--workers", workers) == 2
    assert f"{workers} workers cannot share 4 vnodes" in capsys.readouterr().err
    assert asked(config) == []


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("throttle", "--rows-per-second", "-1"), "--rows-per-second must be from 0 to 2147483647"),
        (("throttle", "--rows-per-second", "1" + "0" * 24), "--rows-per-second must be from 0 to 2147483647"),
        (("throttle", "--rows-per-second", "9" * 400), "--rows-per-second must be from 0 to 2147483647"),
        (("rescale", "--workers", "100000000"), "100000000 workers cannot share 4 vnodes"),
        (("rescale", "--workers", "-1"), "-1 workers cannot share 4 vnodes"),
        (("rescale", "--bitmap", "9" * 5000 + "=0-3"), "expected WORKER=VNODES, each worker once"),
        (("rescale", "--bitmap", "0=0-" + "9" * 5000), "is neither a vnode nor a range of vnodes"),
        (("rescale", "--bitmap", "0=0-99999999"), "vnode 99999999 in vnodes '0-99999999' is not between 0 and 3"),
        (("resnapshot", "--only", "9" * 5000), "is neither a vnode nor a range of vnodes"),
        (("resnapshot", "--only", ""), "--only names no vnode"),
        (("resnapshot", "--where-key", "0.." + "9" * 30), "is not a value of key column id"),
        (("resnapshot", "--where-key", "0.." + "9" * 5000), "is not a value of id (int)"),
        (("resnapshot", "--where-key", "nan..inf"), "'nan' is not a value of id (int)"),
        (("resnapshot", "--where-key", "1,2..3,4"), "'1,2' is not a value of id (int)"),
        (("resnapshot", "--where-key", ".."), "'' is not a value of id (int)"),
        (("resnapshot", "--only", "9"), "vnode 9 in vnodes '9' is not between 0 and 3"),
        (("resnapshot", "--where-key", "10"), "expected LOW..HIGH"),
        (("resnapshot", "--where-key", "20..10"), "the upper bound lies below the lower one"),
        (("resnapshot", "--where-key", "a..b"), "'a' is not a value of id (int)"),
        (("wait", "--timeout", "soon"), "--timeout soon"),
    ],
)
def test_request_that_means_nothing_is_refused(
    path: Path, config: Config, driver: StateStore, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], reason: str
) -> None:  # fmt: skip
    assert run(path, *flags) == 2
    assert reason in capsys.readouterr().err
    assert asked(config) == []


@pytest.mark.parametrize("number", ["1e24", "0.5", "nan", "inf", "", "9" * 5000, "0x10"])
@pytest.mark.parametrize("flags", [("throttle", "--rows-per-second"), ("rescale", "--workers")])
def test_what_is_no_whole_number_is_refused(
    path: Path, config: Config, driver: StateStore, capsys: pytest.CaptureFixture[str], flags: tuple[str, str], number: str
) -> None:  # fmt: skip
    with pytest.raises(SystemExit) as ended:
        run(path, *flags, number)
    assert ended.value.code == 2
    assert f"argument {flags[1]}: invalid int value" in capsys.readouterr().err
    assert asked(config) == []


def test_verify_that_may_read_nothing_is_refused(
    path: Path, driver: StateStore, capsys: pytest.CaptureFixture[str]
) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), "limits": {"rows_per_second": 0}}))
    assert run(path, "verify") == 2
    assert "limits.rows_per_second is 0: verify may read nothing" in capsys.readouterr().err


@pytest.mark.parametrize("words", COMMANDS)
def test_job_that_does_not_exist_cannot_be_asked(
    path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    assert run(path, *words) == 1
    assert "there is no job orders" in capsys.readouterr().err


def test_answer_says_when_the_request_will_be_acted_on(
    path: Path, driver: StateStore, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(path, "rescale", "--workers", "3") == 0
    assert capsys.readouterr().out == "request 1: rescale (3 workers), at the next barrier\n"
    driver.release()
    assert run(path, "throttle", "--off") == 0
    assert capsys.readouterr().out == "request 2: rate_limit (no limit), when the job is run again\n"


def test_workers_beyond_the_task_slots_are_warned_of_with_numbers(
    path: Path, config: Config, driver: StateStore, capsys: pytest.CaptureFixture[str]
) -> None:
    assert driver.lease is not None
    ObservedFile(driver.folder, {}, driver.lease.generation).write(Observed(task_slots=5))
    assert run(path, "rescale", "--workers", "2") == 0
    assert capsys.readouterr().err == ""
    for asks in (("--workers", "4"), ("--bitmap", "0=0", "--bitmap", "1=1", "--bitmap", "2=2-3")):
        assert run(path, "rescale", *asks) == 0
        warned = capsys.readouterr().err
        assert "task slots at the same time; the running session has 5" in warned
    assert "3 workers, 2 log readers and the merge need 6" in warned
    assert asked(config) == ["rescale"] * 3


def test_resnapshot_of_vnodes_says_that_keys_outside_the_plan_are_left(
    path: Path, driver: StateStore, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(path, "resnapshot", "--only", "0-3") == 0
    printed = capsys.readouterr().out
    assert printed.startswith(
        "planned ranges of these vnodes, read again: 3. Keys that came after planning are in no range"
    )
    assert "`--all`, or `--where-key` beyond the plan, covers them too" in printed
    assert printed.endswith("request 1: resnapshot (vnodes 0-3, ranges read again: 3), at the next barrier\n")


def test_stop_is_refused_where_nobody_would_stop(
    path: Path, config: Config, driver: StateStore, capsys: pytest.CaptureFixture[str]
) -> None:
    driver.release()
    assert run(path, "stop") == 1
    assert "nobody drives job orders now" in capsys.readouterr().err
    assert asked(config) == []


def test_status_shows_who_asked_for_what_and_when(
    path: Path, config: Config, driver: StateStore, capsys: pytest.CaptureFixture[str]
) -> None:
    run(path, "pause")
    capsys.readouterr()
    assert run(path, "status", "--json") == 0
    (request,) = json.loads(capsys.readouterr().out)["requests"]
    assert (request["id"], request["kind"], request["epoch"]) == (1, "pause", None)
    assert all(request[name] for name in ("who", "host", "asked_at"))


def test_status_shows_what_the_running_driver_noted(path: Path, config: Config, driver: StateStore) -> None:
    assert driver.lease is not None
    file = ObservedFile(driver.folder, {}, driver.lease.generation)
    noted = Observed(
        rows_per_second=12.5, lag_bytes=7, throttled_by="too busy", retry=Retry(2, "connection lost"),
        in_hand=InHand(rows=40, ranges=2, captured=9, merged=3), task_slots=6, lake_age_seconds=1.5, lengthened=2,
        lengthened_by="its log", target=TargetHealth(3, 100, 40, 7, 70, 60, 20, VectorHealth(10, 50)),
    )  # fmt: skip
    file.write(noted)
    shown = read_report(config).observed
    assert replace(shown, driver="") == noted
    assert shown.driver.startswith("anna on")
    driver.release()
    assert read_report(config).observed == Observed()


def test_note_that_cannot_be_read_is_as_good_as_none(config: Config, driver: StateStore) -> None:
    assert driver.lease is not None
    (Path(driver.folder) / f"observed-{driver.lease.generation}").write_text("half a no")
    assert read_report(config).observed.throttled_by == ""


def test_driver_notes_changed_reasons_at_once_and_takes_its_note_away(config: Config, driver: StateStore) -> None:
    old, file = (ObservedFile(driver.folder, {}, generation) for generation in (1, 2))
    old.write(Observed(throttled_by="of a driver that was killed"))
    reporter = ObservedReporter(file, every=3600.0)
    report = read_report(config)
    reporter.show(replace(report, observed=Observed(throttled_by="too busy")))
    wait_for(lambda: file.read() == Observed(throttled_by="too busy"), "the reason is noted", state=file.read)
    assert old.read() is None
    reporter.close()
    assert file.read() is None


@pytest.mark.parametrize(
    ("where", "ordinals", "extend"),
    [("3..12", {0, 1}, False), ("25..30", {2}, False), ("25..31", {2}, True), ("-5..-1", set(), True)],
)
def test_stretch_of_keys_becomes_the_ranges_that_hold_it(
    config: Config, driver: StateStore, where: str, ordinals: set[int], extend: bool
) -> None:
    assert resnapshot(config, only=None, where_key=where, everything=False) == 0
    (request,) = driver.unacknowledged(_state(driver))
    assert request.kind is RequestKind.RESNAPSHOT
    assert (request.ordinals, request.extend) == (frozenset(ordinals), extend)


def test_resnapshot_of_everything_reaches_beyond_the_plan(config: Config, driver: StateStore) -> None:
    assert resnapshot(config, only=None, where_key=None, everything=True) == 0
    (request,) = driver.unacknowledged(_state(driver))
    assert request.vnodes == frozenset(range(4))
    assert request.extend


def test_resnapshot_needs_to_know_what(config: Config, driver: StateStore) -> None:
    with pytest.raises(ConfigError, match="exactly one of --only, --where-key, --all"):
        resnapshot(config, only="1", where_key=None, everything=True)


def test_waiting_ends_when_the_job_is_live(config: Config, driver: StateStore) -> None:
    commit(driver, Phase.LIVE, stopped=False)
    assert requests.wait(config, timeout=None) == 0


def test_waiting_ends_when_a_live_job_was_stopped(config: Config, driver: StateStore) -> None:
    commit(driver, Phase.LIVE, stopped=True)
    driver.release()
    assert requests.wait(config, timeout=None) == 0


def test_job_stopped_while_it_is_read_again_is_not_live_although_it_was(config: Config, driver: StateStore) -> None:
    commit(driver, Phase.LIVE, stopped=False)
    loaded = driver.load()
    assert loaded is not None
    back = tuple(replace(v, phase=Phase.SNAPSHOT, complete=None, reads=()) for v in loaded.state.vnodes)
    driver.commit(replace(loaded.state, revision=loaded.state.revision + 1, vnodes=back, stopped=True))
    driver.release()
    with pytest.raises(StateError, match=r"job orders is stopped at 100\.00 %"):
        requests.wait(config, timeout=None)


def test_waiting_gives_up_in_time_and_says_how_far_it_is(config: Config, driver: StateStore) -> None:
    with pytest.raises(StateError, match=r"job orders is not live yet: snapshot, 0\.00 %"):
        requests.wait(config, timeout=timedelta(0))


def test_waiting_with_a_timeout_begins_before_the_job_exists(config: Config) -> None:
    with ThreadPoolExecutor(1) as beside:
        waiting = beside.submit(requests.wait, config, timeout=timedelta(minutes=1), pause_seconds=0.01)
        with pytest.raises(TimeoutError):
            waiting.result(0.1)
        store = state_store(config)
        store.create(
            record("orders"), PLAN, beginning(PLAN, workers=2), store.acquire_lease("anna", timedelta(hours=1))
        )
        commit(store, Phase.LIVE, stopped=False)
        assert waiting.result(60) == 0


@pytest.mark.parametrize("timeout", [None, timedelta(seconds=0.05)])
def test_waiting_for_a_job_that_does_not_come_ends_with_its_name(config: Config, timeout: timedelta | None) -> None:
    with pytest.raises(StateError, match="there is no job orders in") as caught:
        requests.wait(config, timeout=timeout, pause_seconds=0.01)
    assert "vnode-backfill run" in caught.value.hint


def test_drop_names_what_goes_and_leaves_the_target(
    path: Path, config: Config, driver: StateStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    driver.release()
    (tmp_path / "lake").mkdir()
    Path(buffer_path(config)).mkdir(parents=True)
    assert run(path, "drop") == 0
    printed = capsys.readouterr().out
    assert driver.folder in printed
    assert buffer_path(config) in printed
    assert "the target delta:/lake/orders stays as it is" in printed
    assert (tmp_path / "lake").exists()
    assert not Path(buffer_path(config)).exists()
    assert state_store(config).load() is None


def test_job_that_is_driven_is_not_dropped(path: Path, driver: StateStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(path, "drop") == 1
    assert "job 'orders' is driven by anna" in capsys.readouterr().err
    assert driver.load() is not None


def test_no_command_starts_a_jvm_or_asks_the_database(path: Path, driver: StateStore) -> None:
    """The database of this job does not exist; and Spark's Python would be loaded before its Java."""
    lines = [[name, "--config", str(path), *flags] for name, *flags in COMMANDS]
    program = (
        "import os, sys; from vnode_backfill.commands.cli import execute;"
        f"codes = [execute(line) for line in {lines!r}];"
        "print(codes, sorted({'pyspark', 'py4j', 'numba', 'pymysql'} & set(sys.modules)));"
        "sys.stdout.flush(); os._exit(0)"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == [f"{[0] * len(COMMANDS)} []"], done.stdout + done.stderr


OF_OTHERS = (
    "progress.store.tables_store", "progress.store.walk_store", "vnode_backfill.commands.tables.",
    "vnode_backfill.decide", "vnode_backfill.job.sink", "vnode_backfill.job.tables.",
)  # fmt: skip
"""What jobs of many tables, the single executor and a driver need."""


@pytest.mark.parametrize("line", [("status",), ("pause",), ("rescale", "--workers", "1")], ids=lambda line: line[0])
def test_command_that_answers_at_once_loads_only_what_it_needs(
    path: Path, driver: StateStore, line: tuple[str, ...]
) -> None:
    name, *flags = line
    loaded = loaded_by(name, "--config", str(path), *flags)
    assert {"pyarrow", "deltalake"} <= loaded
    assert (heavy_of(loaded), [module for module in loaded if module.startswith(OF_OTHERS)]) == ([], [])


def test_session_has_room_for_the_workers_that_a_rescale_left(config: Config, driver: StateStore) -> None:
    configured = config.model_copy(update={"workers": 1})
    assert len(_state(driver).assignment) == 2
    assert with_room_for_workers(configured).workers == 2
    assert with_room_for_workers(config.model_copy(update={"workers": 5})).workers == 5
    assert with_room_for_workers(configured.model_copy(update={"job": "not-created-yet"})).workers == 1


def test_lease_is_renewed_while_the_session_starts(config: Config, driver: StateStore) -> None:
    short = config.model_copy(update={"state": config.state.model_copy(update={"lease": timedelta(milliseconds=150)})})
    session: Future[Started] = Future()
    began = driver.lease
    Timer(0.4, session.set_exception, [LawBrokenError("no session")]).start()
    with pytest.raises(LawBrokenError, match="no session"):
        awaited_session(StartingSession(lambda: session, DaemonAhead()), short, driver)
    assert began is not None
    assert driver.lease is not None
    assert driver.lease.expires > began.expires


def test_request_is_one_row_of_a_table_that_stays_one_file(config: Config, driver: StateStore) -> None:
    for _ in range(3):
        requests.pause(config)
    table = DeltaTable(f"{driver.folder}/requests")
    assert len(table.file_uris()) == 1
    assert [row["id"] for row in table.to_pyarrow_table().to_pylist()] == [1, 2, 3]


def _state(driver: StateStore) -> BackfillState:
    loaded = driver.load()
    assert loaded is not None
    return loaded.state


@pytest.mark.usefixtures("driver")
def test_acceptance_of_a_statement_names_its_offset(config: Config) -> None:
    assert requests.resume(config, accept="binlog.000042:1234") == 0
    snapshot = state_store(config).status_snapshot()
    assert snapshot is not None
    assert [(each.request.kind, each.request.accept) for each in snapshot.asked] == [
        (RequestKind.RESUME, "binlog.000042:1234")
    ]
    with pytest.raises(ConfigError, match="--accept 1234: expected the offset of a statement, FILE:POS"):
        requests.resume(config, accept="1234")
