"""Following a run: from its folder, from what it records, and until when."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace
from processes import until
from recorded_run import AT, note_as_its_sidecar, note_of, recorded_run, told

from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.live_view.run_follower import QUIET_FOLDER_S, RunFollower
from lightning_hangcheck.machine import which_machine
from lightning_hangcheck.model.codec import encode
from lightning_hangcheck.model.run import RankRecord, RunRecord
from lightning_hangcheck.model.verdict import RankState, Verdict
from lightning_hangcheck.rundir import RunFolder, prepare_run_folder

if TYPE_CHECKING:
    from pathlib import Path

    from processes import StartProgram

RECORD = RunRecord(run_id="r", command="python train.py", started_at=AT, world_size=2)
HANG = Verdict(
    verdict="hang",
    run_id="r",
    command="python train.py",
    started_at=AT,
    detected_at=AT,
    world_size=2,
    culprits=(1,),
    summary="rank 1 is stuck in feed (train.py:88)",
    ranks=(RankState(rank=0, state="waiting"), RankState(rank=1, state="stalled")),
)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = prepare_run_folder(RunFolder(tmp_path / "run"))
    made.run_file.write_bytes(encode(RECORD))
    return made


@pytest.fixture
def follower(folder: RunFolder) -> RunFollower:
    return RunFollower(folder, "run")


def test_a_run_that_was_ended_is_over_at_once(folder: RunFolder, follower: RunFollower) -> None:
    ended = replace(RECORD, ended_at="2026-11-20T10:25:16.000Z", exit_code=75)
    folder.run_file.write_bytes(encode(ended))
    folder.verdict_file.write_bytes(encode(HANG))
    now = follower.read()
    assert now.over == "the run has ended after 1 min 00 s, exit code 75"
    assert now.verdict == HANG
    assert [(one.rank, one.standing) for one in now.ranks] == [(1, "stuck"), (0, "waits")]


def test_a_run_that_we_ended_was_not_ended_by_what_else_kills(
    folder: RunFolder, follower: RunFollower
) -> None:
    by = "hangcheck run (--on-hang abort)"
    ended = replace(RECORD, ended_at="2026-11-20T10:25:16.000Z", exit_code=-9, ended_by=by)
    folder.run_file.write_bytes(encode(ended))
    assert follower.read().over == f"the run has ended after 1 min 00 s, exit code 75, by {by}"


def test_a_new_verdict_in_the_folder_is_seen(folder: RunFolder, follower: RunFollower) -> None:
    now = follower.read()
    assert (now.verdict, now.over) == (None, "")
    assert "no process of it is on this machine" in now.status
    folder.verdict_file.write_bytes(encode(HANG))
    # the folder is not read more often than its reading costs
    assert until(lambda: follower.read().verdict, "the verdict to be read") == HANG


def test_what_is_recorded_here_is_followed_until_nobody_does(
    program: StartProgram, folder: RunFolder, follower: RunFollower
) -> None:
    folder.run_file.write_bytes(encode(replace(RECORD, ranks=(RankRecord(rank=1, pid=1),))))
    with recorded_run(folder.path) as session:
        rank = program("recording_alone.py", **told(session, 0, 2))
        note_as_its_sidecar(session, note_of(0, rank.pid), newest=HANG)
        now = follower.read()
        assert now.over == ""
        assert now.status == "1 of 2 ranks runs here"
        assert now.verdict == HANG
        assert [(one.rank, one.standing) for one in now.ranks] == [(1, "stuck"), (0, "waits")]
        session.sidecar_file.unlink()
        assert "its watcher is gone" in follower.read().status
        rank.process.kill()
        rank.process.wait()
        assert follower.read().over == ""  # its end may be about to be written down
        gone = until(lambda: follower.read().over, "the end to be believed")
        assert gone.startswith("nobody records it on this machine any more")


def test_a_host_of_the_same_name_is_another_machine(
    folder: RunFolder, follower: RunFollower
) -> None:
    """As two containers that share a folder, each called localhost."""
    here = replace(RECORD, nodes=(socket.gethostname(),), machine=which_machine())
    folder.run_file.write_bytes(encode(replace(here, machine="00000000-1")))
    assert follower.read().over == ""
    folder.run_file.write_bytes(encode(here))
    assert RunFollower(folder, "run").read().over.startswith("nobody records it on this machine")


def test_a_run_of_another_machine_is_followed_as_long_as_its_folder_changes(
    folder: RunFolder, follower: RunFollower
) -> None:
    folder.run_file.write_bytes(encode(replace(RECORD, nodes=("another",))))
    assert follower.read().over == ""
    long_ago = folder.run_file.stat().st_mtime - QUIET_FOLDER_S - 1
    os.utime(folder.run_file, (long_ago, long_ago))
    fresh = RunFollower(folder, "run")
    assert fresh.read().over.startswith("nothing new in its folder for 10 min ")


def test_a_folder_without_a_run_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(UnreadableRun, match="holds no run; name the folder"):
        RunFollower(RunFolder(tmp_path), "x").read()


def test_a_folder_that_is_still_made_is_no_fault_while_its_run_is_here(
    program: StartProgram, tmp_path: Path
) -> None:
    with recorded_run(tmp_path / "run") as session:
        program("recording_alone.py", **told(session, 0, 1))
        now = RunFollower(RunFolder(tmp_path / "run"), "run").read()
    assert [(one.rank, one.kept) for one in now.ranks] == [(0, "5: Model created")]
    assert now.over == ""


def test_a_verdict_that_is_torn_leaves_what_else_is_known(
    folder: RunFolder, follower: RunFollower
) -> None:
    folder.verdict_file.write_bytes(encode(HANG)[:90])
    folder.journal(0, 1).write_text('{"kind": "start"}\n')
    now = follower.read()
    assert now.verdict is None
    assert any("verdict.json" in gap for gap in now.gaps)
    assert sorted(one.rank for one in now.ranks) == [0, 1]
