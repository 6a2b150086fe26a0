"""What is followed of a run, rank by rank."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace
from processes import until
from recorded_run import AT, note_as_its_sidecar, note_of, recorded_run, told

from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.live_view.run_follower import (
    QUIET_FOLDER_S,
    RankNow,
    RunFollower,
    ranks_now,
)
from lightning_hangcheck.model.beat import Beat
from lightning_hangcheck.model.codec import encode
from lightning_hangcheck.model.run import RankRecord, RunRecord
from lightning_hangcheck.model.verdict import Edge, RankState, StackGroup, Verdict
from lightning_hangcheck.report.saved_run import RunningRank
from lightning_hangcheck.rundir import RunFolder, prepare_run_folder

if TYPE_CHECKING:
    from pathlib import Path

    from processes import StartProgram

    from lightning_hangcheck.model.slugs import VerdictKind

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


@pytest.mark.parametrize(
    ("code", "by", "told"),
    [
        (75, "", "exit code 75"),
        # a run that we ended was not ended by what else kills
        (-9, "hangcheck run (--on-hang abort)", "exit code 75, by hangcheck run (--on-hang abort)"),
    ],
)
def test_a_run_that_was_ended_is_over_at_once(
    folder: RunFolder, follower: RunFollower, code: int, by: str, told: str
) -> None:
    ended = replace(RECORD, ended_at="2026-11-20T10:25:16.000Z", exit_code=code, ended_by=by)
    folder.run_file.write_bytes(encode(ended))
    folder.verdict_file.write_bytes(encode(HANG))
    now = follower.read()
    assert now.over == f"the run has ended after 1 min 00 s, {told}"
    assert now.verdict == HANG
    assert of(now.ranks) == [(1, "stuck"), (0, "waits")]


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
        assert of(now.ranks) == [(1, "stuck"), (0, "waits")]
        session.sidecar_file.unlink()
        assert "its watcher is gone" in follower.read().status
        rank.process.kill()
        rank.process.wait()
        assert follower.read().over == ""  # its end may be about to be written down
        gone = until(lambda: follower.read().over, "the end to be believed")
        assert gone.startswith("nobody records it on this machine any more")


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


def running(
    rank: int, silent_s: float = 0.2, step_s: float | None = None, **beat: Any
) -> RunningRank:
    return RunningRank(rank=rank, beat=Beat(pid=rank + 1, **beat), silent_s=silent_s, step_s=step_s)


def judged(kind: VerdictKind, *ranks: RankState, **more: Any) -> Verdict:
    facts = {"summary": "", "culprits": (), **more}
    return replace(HANG, verdict=kind, world_size=len(ranks), ranks=ranks, **facts)


def hang() -> Verdict:
    """Rank 1 is stuck in the user's code, rank 0 waits for it."""
    return judged(
        "hang",
        RankState(rank=0, state="waiting", phase="backward", step=7),
        RankState(rank=1, state="stalled", phase="training_step", stack_group=1),
        culprits=(1,),
        wait_for=(Edge("rank:0", "rank:1", "in all_reduce"),),
        stack_groups=(
            StackGroup(id=1, process="rank", ranks="1", count=1, frames=("feed (/w/train.py:88)",)),
        ),
    )


def of(ranks: tuple[RankNow, ...]) -> list[tuple[int, str]]:
    return [(one.rank, one.state) for one in ranks]


def test_a_verdict_in_force_says_how_a_rank_stands_and_its_page_where_it_is() -> None:
    pages = (running(0, phase="optimizer_step", step=9), running(1, silent_s=31.0, step=8))
    first, second = ranks_now(running=pages, verdict=hang())
    assert (first.rank, first.state, first.culprit, first.silent_s) == (1, "stuck", True, 31.0)
    assert first.waits_for == "feed w/train.py:88"
    assert (second.rank, second.state, second.culprit) == (0, "waits", False)
    assert second.waits_for == "rank 1 in all_reduce"
    assert (second.phase, second.step) == ("optimizer_step", 9)
