"""Where a job begins, and which beginnings are refused."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from consume_upstream.log.offset import CdcOffset
from consume_upstream.log.source_log import LogFile, SourceLog
from vnode_backfill.config.job import CdcConfig, SpecificConfig, StartupMode
from vnode_backfill.decide.start_point import (
    At,
    AtGtids,
    AtTime,
    Earliest,
    Handoff,
    Latest,
    Saved,
    SavedProgress,
    StartPlan,
    plan_start,
    why_not_held,
)
from vnode_backfill.words.errors import BinlogPurgedError, ConfigError, PlanRefusedError, SourceError

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
STRANGER = "00000000-0000-0000-0000-000000000001"
FILES = (LogFile("bin.000008", 1000), LogFile("bin.000009", 2000), LogFile("bin.000010", 500))
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
MARIADB = SourceLog(
    server="1",
    files=FILES,
    newest=CdcOffset.at("1", "bin.000010", 600, gtids="0-1-90"),
    now=NOON,
    purged_gtids="0-1-40",
    oldest_at=NOON.replace(hour=8),
    last_gtids=("0-1-90",),
)
MYSQL = replace(
    MARIADB,
    newest=CdcOffset.at("1", "bin.000010", 600, gtids=f"{UUID}:1-90"),
    purged_gtids=f"{UUID}:1-40",
)
PLAIN = replace(MARIADB, newest=CdcOffset.at("1", "bin.000010", 600), purged_gtids="")


def mode(name: StartupMode) -> CdcConfig:
    return CdcConfig(startup_mode=name)


def specific(**point: object) -> CdcConfig:
    return CdcConfig(startup_mode=StartupMode.SPECIFIC, specific=SpecificConfig.model_validate(point))


def offset(file: str, pos: int, *, server: str = "1", gtids: str = "") -> CdcOffset:
    return CdcOffset.at(server, file, pos, gtids=gtids)


def test_initial_copies_and_follows() -> None:
    assert plan_start(mode(StartupMode.INITIAL), PLAIN) == StartPlan(snapshot=True, from_=Latest())


def test_snapshot_copies_and_ends() -> None:
    assert plan_start(mode(StartupMode.SNAPSHOT), PLAIN) == StartPlan(snapshot=True, from_=Latest(), bounded=True)


def test_latest_follows_without_copying() -> None:
    assert plan_start(mode(StartupMode.LATEST), PLAIN) == StartPlan(snapshot=False, from_=Latest())


def test_earliest_begins_at_the_oldest_file_and_warns_that_older_rows_are_not_copied() -> None:
    plan = plan_start(mode(StartupMode.EARLIEST), PLAIN)
    assert (plan.snapshot, plan.from_) == (False, Earliest(offset("bin.000008", 4)))
    assert plan.warnings == ("the log begins at bin.000008:4; rows last written before that are not copied",)


def test_a_server_without_a_log_is_refused() -> None:
    with pytest.raises(PlanRefusedError, match="keeps no binary log"):
        plan_start(mode(StartupMode.INITIAL), replace(PLAIN, files=()))


@pytest.mark.parametrize(("file", "pos"), [("bin.000008", 4), ("bin.000009", 2000), ("bin.000010", 600)])
def test_a_position_the_log_holds_is_taken(file: str, pos: int) -> None:
    assert plan_start(specific(file=file, pos=pos), PLAIN).from_ == At(offset(file, pos))


@pytest.mark.parametrize(
    ("file", "pos", "message", "detail"),
    [
        ("bin.000007", 4, "it is no longer held by the server", "bin.000008:4 to bin.000010:600"),
        ("bin.000010", 601, "it is after the end of the log", "bin.000008:4 to bin.000010:600"),
        ("bin.000011", 4, "it is after the end of the log", "bin.000008:4 to bin.000010:600"),
        ("bin.000009", 2001, "it is after the end of its file", "bin.000009 ends at 2000"),
        ("mysql-bin.000009", 4, "it is not of this server's log", "bin.000008:4 to bin.000010:600"),
    ],
)
def test_a_position_the_log_does_not_hold_is_refused_with_what_it_holds(
    file: str, pos: int, message: str, detail: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_start(specific(file=file, pos=pos), PLAIN)
    assert caught.value.message == f"mysql.cdc.specific is {file}:{pos}; {message}"
    assert detail in caught.value.detail


def test_files_are_ordered_by_number_and_not_by_name() -> None:
    log = replace(
        PLAIN, files=(LogFile("bin.999999", 90), LogFile("bin.1000000", 90)), newest=offset("bin.1000000", 90)
    )
    assert plan_start(specific(file="bin.999999", pos=4), log).from_ == At(offset("bin.999999", 4))


@pytest.mark.parametrize(("log", "gtid"), [(MARIADB, "0-1-40"), (MYSQL, f"{UUID}:1-90"), (MYSQL, f"{UUID}:1-40")])
def test_gtids_the_server_has_and_the_log_continues_are_taken(log: SourceLog, gtid: str) -> None:
    assert plan_start(specific(gtid=gtid), log).from_ == AtGtids(gtid)


@pytest.mark.parametrize(
    ("log", "gtid", "message"),
    [
        (MARIADB, "0-1-39", "it is followed by transactions no longer in the log"),
        (MARIADB, "0-1-91", "it holds transactions that the server does not have"),
        (MARIADB, "0-1-50,7-1-1", "it holds transactions that the server does not have"),
        (MYSQL, f"{UUID}:1-39", "it is followed by transactions no longer in the log"),
        (MYSQL, f"{UUID}:1-91", "it holds transactions that the server does not have"),
        (MYSQL, f"{STRANGER}:1", "it holds transactions that the server does not have"),
        (MYSQL, "0-1-50", "it is not of this kind of server"),
        (PLAIN, "0-1-50", "it cannot be found"),
    ],
)
def test_gtids_that_cannot_be_continued_are_refused(log: SourceLog, gtid: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_start(specific(gtid=gtid), log)
    assert caught.value.message == f"mysql.cdc.specific.gtid is {gtid}; {message}"


def test_a_moment_the_log_holds_is_taken() -> None:
    moment = NOON.replace(hour=9)
    cdc = CdcConfig(startup_mode=StartupMode.TIMESTAMP, timestamp=moment)
    assert plan_start(cdc, PLAIN).from_ == AtTime(moment)


@pytest.mark.parametrize(("hour", "message"), [(13, "must not be in the future"), (7, "no longer holds that moment")])
def test_a_moment_outside_the_log_is_refused(hour: int, message: str) -> None:
    cdc = CdcConfig(startup_mode=StartupMode.TIMESTAMP, timestamp=NOON.replace(hour=hour))
    with pytest.raises(ConfigError, match=rf"^mysql\.cdc\.timestamp is 2026-05-01T.*{message}"):
        plan_start(cdc, PLAIN)


def test_a_handoff_is_taken_up_where_the_copy_ended() -> None:
    handoff = Handoff("copy", offset("bin.000009", 700))
    assert plan_start(specific(from_job="copy"), PLAIN, handoff=handoff).from_ == At(handoff.offset)


def test_a_handoff_is_taken_up_by_gtid_on_another_server() -> None:
    handoff = Handoff("copy", offset("old.000031", 700, server="2", gtids="0-1-55"))
    assert plan_start(specific(from_job="copy"), MARIADB, handoff=handoff).from_ == AtGtids("0-1-55")


@pytest.mark.parametrize(
    ("handoff", "message"),
    [
        (None, "copy; that job has stored no handoff"),
        (Handoff("other", offset("bin.000009", 4)), "copy; that job has stored no handoff"),
        (
            Handoff("copy", offset("bin.000007", 4)),
            "copy, whose handoff is bin.000007:4; it is no longer held by the server",
        ),
        (
            Handoff("copy", offset("bin.000009", 4, server="2")),
            "copy, whose handoff is bin.000009:4; it is of another server",
        ),
    ],
)
def test_a_handoff_that_cannot_be_continued_is_refused(handoff: Handoff | None, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_start(specific(from_job="copy"), PLAIN, handoff=handoff)
    assert caught.value.message == f"mysql.cdc.specific.from_job is {message}"


@pytest.mark.parametrize(
    ("end", "size"),
    [
        (offset("bin.000010", 100), "500 bytes of log"),
        (offset("bin.000008", 400), "3200 bytes of log"),
        (offset("bin.000007", 400), "an unknown amount of log"),
    ],
)
def test_latest_after_a_backfill_warns_about_the_gap_with_its_size(end: CdcOffset, size: str) -> None:
    plan = plan_start(mode(StartupMode.LATEST), PLAIN, handoff=Handoff("copy", end))
    (warning,) = plan.warnings
    assert f"after the handoff of copy at {end} are left out: {size}" in warning


def test_latest_right_at_the_handoff_leaves_no_gap() -> None:
    assert plan_start(mode(StartupMode.LATEST), PLAIN, handoff=Handoff("copy", PLAIN.newest)).warnings == ()


@pytest.mark.parametrize("configured", [StartupMode.LATEST, StartupMode.EARLIEST, StartupMode.SNAPSHOT])
def test_saved_progress_wins_over_any_other_mode_and_says_so(configured: StartupMode) -> None:
    saved = SavedProgress(offset("bin.000009", 700), StartupMode.INITIAL)
    plan = plan_start(mode(configured), PLAIN, saved=saved)
    assert (plan.snapshot, plan.from_, plan.bounded) == (True, Saved(saved.offset), False)
    (warning,) = plan.warnings
    assert f"startup_mode {configured} is not used, the job was created with initial" in warning


def test_a_restart_in_the_same_mode_notes_where_it_goes_on() -> None:
    saved = SavedProgress(offset("bin.000009", 700), StartupMode.SNAPSHOT)
    plan = plan_start(mode(StartupMode.SNAPSHOT), PLAIN, saved=saved)
    assert (plan.bounded, plan.warnings) == (True, ())
    assert plan.notes == ("the job continues from its saved progress at bin.000009:700",)


def test_saved_progress_wins_even_if_the_configured_position_is_purged() -> None:
    saved = SavedProgress(offset("bin.000009", 700), StartupMode.SPECIFIC)
    assert plan_start(specific(file="bin.000001", pos=4), PLAIN, saved=saved).from_ == Saved(saved.offset)


def test_a_saved_position_that_was_purged_stops_with_the_way_on() -> None:
    saved = SavedProgress(offset("bin.000007", 4), StartupMode.INITIAL)
    with pytest.raises(BinlogPurgedError, match=r"bin\.000007:4 is no longer held") as caught:
        plan_start(mode(StartupMode.INITIAL), PLAIN, saved=saved)
    assert "resnapshot --all" in caught.value.hint
    assert "bin.000008:4" in caught.value.detail


def test_a_log_that_was_reset_is_noticed_by_position() -> None:
    saved = SavedProgress(offset("bin.000012", 4), StartupMode.INITIAL)
    with pytest.raises(SourceError, match="is after the end of the log") as caught:
        plan_start(mode(StartupMode.INITIAL), PLAIN, saved=saved)
    assert "The log was reset" in caught.value.detail


def test_a_log_that_was_reset_and_grew_again_is_noticed_by_gtid() -> None:
    saved = SavedProgress(offset("bin.000009", 700, gtids=f"{UUID}:1-95"), StartupMode.INITIAL)
    with pytest.raises(SourceError, match="holds transactions that the server does not have"):
        plan_start(mode(StartupMode.INITIAL), MYSQL, saved=saved)


@pytest.mark.parametrize(("log", "gtids"), [(MYSQL, f"{UUID}:1-70"), (MARIADB, "0-1-70")])
def test_after_a_failover_the_job_goes_on_by_gtid(log: SourceLog, gtids: str) -> None:
    saved = SavedProgress(offset("old.000031", 700, server="2", gtids=gtids), StartupMode.INITIAL)
    plan = plan_start(mode(StartupMode.INITIAL), log, saved=saved)
    assert plan.from_ == Saved(saved.offset, by_gtids=True)
    assert plan.warnings == (f"the server is another one than before; the log is taken up by GTID after {gtids}",)


def test_after_a_failover_a_file_name_means_nothing() -> None:
    saved = SavedProgress(offset("bin.000009", 700, server="2"), StartupMode.INITIAL)
    with pytest.raises(SourceError, match="is of another server") as caught:
        plan_start(mode(StartupMode.INITIAL), PLAIN, saved=saved)
    assert not caught.value.retryable


def test_a_replica_without_the_last_transactions_is_refused() -> None:
    saved = SavedProgress(
        offset("bin.000009", 700, server="2", gtids=f"{UUID}:1-80"), StartupMode.INITIAL, (f"{UUID}:91",)
    )
    with pytest.raises(SourceError, match="holds transactions that the server does not have") as caught:
        plan_start(mode(StartupMode.INITIAL), MYSQL, saved=saved)
    assert "resnapshot --all" in caught.value.hint


def test_a_mariadb_that_only_counts_as_far_is_no_replica() -> None:
    saved = SavedProgress(offset("bin.000009", 700, server="2", gtids="0-2-80"), StartupMode.INITIAL)
    with pytest.raises(SourceError, match="holds transactions that the server does not have"):
        plan_start(mode(StartupMode.INITIAL), MARIADB, saved=saved)


def test_a_job_in_a_later_era_goes_on_by_position_on_its_server() -> None:
    saved = SavedProgress(offset("bin.000009", 700, gtids="0-1-80").in_era(2), StartupMode.INITIAL)
    assert plan_start(mode(StartupMode.INITIAL), MARIADB, saved=saved).from_ == Saved(saved.offset)


LOG, OTHER_LOG = "1794886447-28130-16-0f3a2b1c", "1794886599-28130-16-5c11a0de"
CDC = mode(StartupMode.INITIAL)
SAME_GTIDS = pytest.mark.parametrize(
    ("log", "gtids"), [(MYSQL, f"{UUID}:1-60"), (MARIADB, "0-1-60"), (PLAIN, "")], ids=["mysql", "mariadb", "plain"]
)


@SAME_GTIDS
def test_a_log_that_was_reset_and_has_grown_past_everything_stored_is_refused_by_its_identity(
    log: SourceLog, gtids: str
) -> None:
    saved = replace(offset("bin.000009", 100, gtids=gtids), log=LOG)
    with pytest.raises(SourceError, match=r"bin\.000009:100 is of another log than the server has now") as refused:
        plan_start(CDC, replace(log, file_now=OTHER_LOG), saved=SavedProgress(saved, StartupMode.INITIAL))
    assert "2026-11-17 03:36:39 UTC" in refused.value.detail
    assert "The log was reset" in refused.value.detail
    assert "resnapshot --all" in refused.value.hint


@SAME_GTIDS
def test_a_log_of_the_stored_identity_goes_on_and_so_does_a_job_that_stored_none(log: SourceLog, gtids: str) -> None:
    for stored, now in ((LOG, LOG), ("", OTHER_LOG), (LOG, "")):
        saved = replace(offset("bin.000009", 100, gtids=gtids), log=stored)
        plan = plan_start(CDC, replace(log, file_now=now), saved=SavedProgress(saved, StartupMode.INITIAL))
        assert plan.from_ == Saved(saved)


def test_another_server_is_followed_by_gtid_whatever_the_identity_of_the_old_log_was() -> None:
    saved = replace(offset("bin.000009", 100, server=STRANGER, gtids=f"{UUID}:1-60"), log=LOG)
    plan = plan_start(CDC, MYSQL, saved=SavedProgress(saved, StartupMode.INITIAL))
    assert plan.from_ == Saved(saved, by_gtids=True)


def test_a_handoff_of_a_log_that_was_reset_is_refused() -> None:
    handoff = Handoff("copy", replace(offset("bin.000009", 100, gtids=f"{UUID}:1-60"), log=LOG))
    with pytest.raises(ConfigError, match="is of another log than the server has now"):
        plan_start(specific(from_job="copy"), replace(MYSQL, file_now=OTHER_LOG), handoff=handoff)


@pytest.mark.parametrize("log", [MARIADB, MYSQL, PLAIN], ids=["mariadb", "mysql", "plain"])
def test_the_log_can_be_read_from_an_offset_that_it_holds(log: SourceLog) -> None:
    assert why_not_held(offset("bin.000008", 4, gtids=log.purged_gtids), log) == ""
    assert why_not_held(log.newest, log) == ""


@pytest.mark.parametrize(
    ("stored", "reason"),
    [
        (offset("bin.000007", 400), "is no longer held by the server"),
        (offset("bin.000010", 601), "is after the end of the log"),
        (offset("bin.000009", 2001), "is after the end of its file"),
        (offset("other.000009", 100), "is not of this server's log"),
        (offset("bin.000009", 100, server="2", gtids="0-1-50"), "is of 2, this is 1"),
        (offset("bin.000009", 100, gtids="0-1-91"), "holds transactions that the server does not have"),
    ],
)
def test_the_log_cannot_be_read_from_an_offset_that_it_does_not_hold(stored: CdcOffset, reason: str) -> None:
    assert reason in why_not_held(stored, MARIADB)
