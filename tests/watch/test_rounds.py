"""torchrun starts the ranks again: one run, a chapter for each round, no failure forgotten."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from cases import IN_ALL_REDUCE, IN_LOAD, SECOND, gone, job, rank
from long_tests import real_when_asked_for
from msgspec.structs import replace
from processes import PROGRAMS
from watch.launched import record_of, run, verdict_of

from lightning_hangcheck.judge import judge
from lightning_hangcheck.machine import ticks_since_boot
from lightning_hangcheck.model.beat import Beat
from lightning_hangcheck.model.case import Case
from lightning_hangcheck.model.run import RoundStart
from lightning_hangcheck.model.verdict import Verdict
from lightning_hangcheck.observe.discovery import FoundRank
from lightning_hangcheck.observe.watched_rank import WatchedRound
from lightning_hangcheck.report.journals import read_journal
from lightning_hangcheck.watch.roster import end_round

if TYPE_CHECKING:
    from pathlib import Path

QUICKLY = ("--on-hang", "abort", "--set", "idle_after=5", "--set", "proven_after=5")


def torchrun(*words: str) -> list[str]:
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node=2", "--max-restarts=1", str(PROGRAMS / "rounds.py"), *words),
    ]


def verdicts(folder: Path) -> list[Verdict]:
    paths = sorted((folder / "verdicts").iterdir(), key=lambda path: int(path.stem))
    return [msgspec.json.decode(path.read_bytes(), type=Verdict) for path in paths]


@pytest.mark.real
def test_a_failure_that_a_restart_mended_is_told_when_it_happens_and_at_the_end(
    tmp_path: Path,
) -> None:
    ended = run(tmp_path, torchrun("raise", "train"))
    assert ended.returncode == 0
    first, last = verdicts(tmp_path / "run")
    assert (first.verdict, first.culprits, first.victims) == ("crashed", (1,), (0,))
    assert first.summary.startswith("round 0 ended: rank 1 failed first: it")
    assert first.summary.endswith("; torchrun restarts (1 of 1)")
    assert ended.stderr.count("CRASHED  round 0 ended") == 1
    assert (last.verdict, last.culprits, last.world_size) == ("finished", (), 2)
    assert "exited cleanly in round 1; round 0 had ended: rank 1 failed first" in last.summary
    assert "it exited with code 1: ValueError: bad sample" in last.summary
    assert [item.kind for item in last.evidence] == ["round"]

    rounds = record_of(tmp_path / "run").rounds
    assert [(one.number, one.verdict, one.culprits) for one in rounds] == [
        (0, "crashed", (1,)),
        (1, "finished", ()),
    ]
    entries, _ = read_journal(tmp_path / "run" / "ranks" / "rank-1.jsonl")
    assert [entry["round"] for entry in entries if entry["kind"] == "start"] == [0, 1]
    for number, verdict in ((1, first), (2, last)):
        case = (tmp_path / "run" / "evidence" / str(number) / "case.json").read_bytes()
        assert judge(msgspec.json.decode(case, type=Case)) == verdict


@real_when_asked_for
def test_the_next_command_of_a_shell_script_is_no_round_of_the_one_before(tmp_path: Path) -> None:
    wait = (
        "import os, pathlib, sys, time\n"
        "while f'\"pid\": {os.getpid()},' not in pathlib.Path('run/run.json').read_text():\n"
        "    time.sleep(0.05)\n"
    )
    (tmp_path / "check.py").write_text(f"{wait}sys.exit(1)\n")
    (tmp_path / "train.py").write_text(wait)
    script = f"'{sys.executable}' check.py; '{sys.executable}' train.py"
    ended = run(tmp_path, ["/bin/sh", "-c", script])
    assert ended.returncode == 0
    assert "CRASHED" not in ended.stderr
    assert [one.verdict for one in record_of(tmp_path / "run").rounds] == ["finished"]


MEETS = """
import os, sys, time
source = "def barrier():\\n    while not os.path.exists('there'): time.sleep(0.1)\\n"
exec(compile(source, "/venv/site-packages/torch/distributed/distributed_c10d.py", "exec"))
if os.environ["RANK"] == "0":
    open("there", "w").close()
barrier()
"""


@real_when_asked_for
def test_what_a_wrapper_runs_before_it_trains_is_no_rank_that_has_left(tmp_path: Path) -> None:
    """A download in Python, then an archive is unpacked; the other rank waits meanwhile."""
    (tmp_path / "train.py").write_text(MEETS)
    python = f"'{sys.executable}'"
    wrapper = f"{python} -c 'import time; time.sleep(2)'; sleep 9; {python} train.py"
    (tmp_path / "wrapper.sh").write_text(wrapper)
    script = f"RANK=1 {python} train.py & RANK=0 sh wrapper.sh; wait"
    early = "--set", "suspect_absent_after=3"
    ended = run(tmp_path, ["/bin/sh", "-c", script], *early, WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
    assert ended.returncode == 0
    assert "DEAD" not in ended.stderr
    assert "SUSPECT  rank 0 never came" in ended.stderr


@real_when_asked_for
def test_on_hang_restart_has_torchrun_start_the_ranks_again_while_it_does(tmp_path: Path) -> None:
    """The second hang finds no restart left, and ends the job."""
    words = (torchrun("hang", "hang"), "--on-hang", "restart", *QUICKLY[2:])
    ended = run(tmp_path, *words, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
    assert ended.returncode == 75
    assert ended.stderr.count("torchrun starts them again (restarts left before this one: 1)") == 1
    assert "not started again: torchrun has no restart left" in ended.stderr
    last = verdict_of(tmp_path / "run")
    assert (last.verdict, last.culprits, last.victims) == ("hang", (1,), (0,))
    assert "the job was ended by hangcheck run (--on-hang restart)" in last.summary
    rounds = record_of(tmp_path / "run").rounds
    assert [(one.verdict, one.culprits) for one in rounds] == [("hang", (1,))] * 2
    told = [one.verdict for one in verdicts(tmp_path / "run")]
    assert "recovered" not in told
    assert "dead" not in told


ALWAYS_LATER = 2**60  # clock ticks since boot
TORCHRUN = RoundStart(launcher="torchrun", number=1, most=3)


def found(number: int, pid: int, count: int | None = None, **fields: Any) -> FoundRank:
    start = RoundStart(launcher="torchrun", number=count, most=1)
    return FoundRank(**{"rank": number, "pid": pid, "started_ticks": 1, "start": start, **fields})


def watched(*ranks: FoundRank, left: int | None = None) -> WatchedRound:
    """A round of these ranks that have all gone, with this exit code, unless it is None."""
    made = WatchedRound(0)
    for one in ranks:
        made.take_in(one, 0)
    made.seen_alive_ticks = ticks_since_boot()
    for one in ranks:
        if left is not None:
            made.note_exit(one.pid, left)
    return made


def test_a_rank_that_another_process_claims_while_the_rest_live_is_only_replaced() -> None:
    """A launcher may start one rank again; the others go on."""
    made = watched(found(0, 10), found(1, 11))
    made.note_exit(11, 1)
    assert not made.is_left_by(found(1, 21, started_ticks=ALWAYS_LATER))
    made.take_in(found(1, 21), 0)
    assert [one.found.pid for one in made.alive] == [10, 21]


TWO, COUNTED = (found(0, 10), found(1, 11)), (found(0, 10, 0), found(1, 11, 0))
ROUNDS: dict[str, tuple[tuple[FoundRank, ...], int | None, FoundRank, bool]] = {
    "the first rank of all": ((), None, found(0, 10, 1), False),
    "all others are gone": (TWO, 1, found(1, 21, started_ticks=ALWAYS_LATER), True),
    "it is the same process": (TWO, 1, found(1, 11), False),
    # it inherited the rank's number, and was there while the rank still lived
    "a worker that outlives its rank": (TWO, -15, found(1, 21, started_ticks=1), False),
    "the launcher's count, whoever is left": (COUNTED, None, found(0, 20, 1), True),
    "the same count": (COUNTED, None, found(2, 20, 0), False),
    "of the round before": ((found(0, 20, 1),), None, found(1, 11, 0), False),
    "one that was late": (COUNTED[:1], 1, found(1, 11, 0, started_ticks=1), False),
    # a node that comes changes the numbers, and torchrun does not count it as a restart
    "all numbered anew": (
        (found(2, 10, 0), found(3, 11, 0)), -15, found(0, 20, 0, started_ticks=ALWAYS_LATER), True),
}  # fmt: skip


@pytest.mark.parametrize("case", ROUNDS)
def test_which_process_begins_a_round(case: str) -> None:
    ranks, left, later, begins = ROUNDS[case]
    made = watched(*ranks, left=left)
    assert made.is_left_by(later) == begins
    assert made.is_after(later) == (case == "of the round before")


@pytest.mark.parametrize(
    ("count", "code", "expected"), [(0, 1, True), (0, -15, True), (0, 0, False), (1, 1, False)]
)
def test_torchrun_starts_the_ranks_again_until_its_restarts_are_used_up(
    count: int, code: int, expected: bool
) -> None:
    assert watched(found(0, 10, count), left=code).may_be_followed is expected


def test_an_exit_code_that_is_learnt_late_is_kept() -> None:
    made = watched(found(0, 10))
    made.note_exit(10, None)
    made.note_exit(10, 3)
    (view,) = made.views(0)
    assert (view.process_exit.order, view.process_exit.exit_code) == (0, 3)


def failed_round(number: int = 0, words: str = "ValueError: bad sample", **run: Any) -> Any:
    return job(
        gone(0, -15, order=1), gone(1, 1, order=0, words=words), ended=True, round=number, **run
    )


def test_the_end_of_a_round_is_told_with_what_follows_it() -> None:
    verdict, ended = end_round(failed_round(next_start=TORCHRUN), "2026-11-20T10:23:01Z", None)
    sentence = (
        "rank 1 failed first: it exited with code 1: ValueError: bad sample; rank 0 ended after it"
    )
    assert verdict.summary == f"round 0 ended: {sentence}; torchrun restarts (1 of 3)"
    assert (ended.number, ended.verdict, ended.culprits) == (0, "crashed", (1,))
    assert ended.summary == sentence


def test_a_round_that_hung_keeps_the_hang_as_its_cause() -> None:
    """torch's timeout then makes the ranks fail that waited: they are not to blame."""
    hang = judge(job(rank(0, IN_ALL_REDUCE), rank(1, IN_LOAD)))
    assert (hang.verdict, hang.culprits) == ("hang", (1,))
    timed_out = job(
        gone(0, 1, words="RuntimeError: Timed out"),
        gone(1, -15, order=1),
        ended=True,
        next_start=TORCHRUN,
    )
    verdict, ended = end_round(timed_out, "", hang)
    assert (verdict.verdict, verdict.culprits, verdict.cause) == ("crashed", (1,), hang.cause)
    assert verdict.summary.startswith("round 0 ended: it hung: rank 1 ")
    assert verdict.stalled_for_s == 0.0
    assert (ended.verdict, ended.culprits) == ("hang", (1,))
    well = job(gone(0, 0), gone(1, 0), ended=True, next_start=RoundStart())
    assert end_round(well, "", hang)[1].verdict == "finished", "however it hung before"


def test_ranks_whose_end_nobody_saw_did_not_end_well_where_others_follow() -> None:
    unseen = job(gone(0, None), gone(1, None), ended=True, next_start=TORCHRUN)
    verdict, ended = end_round(unseen, "", None)
    assert (verdict.verdict, verdict.culprits, ended.verdict) == ("crashed", (), "crashed")
    assert "no rank was seen to fail" in verdict.summary


def said_finished(next_start: RoundStart) -> Any:
    case = job(gone(0, None), gone(1, None), ended=True, next_start=next_start)
    said = [replace(view, beat=Beat(pid=view.rank, ending="finished")) for view in case.ranks]
    return replace(case, ranks=tuple(said))


def test_what_ranks_say_as_python_ends_counts_where_nobody_asks_how_they_ended() -> None:
    """``sys.exit("no data")`` ends alike, and torchrun does not begin anew for exit codes of 0."""
    assert judge(said_finished(RoundStart())).verdict == "finished"
    verdict = judge(said_finished(TORCHRUN))
    assert (verdict.verdict, verdict.culprits) == ("crashed", ())


def test_ranks_that_torchrun_ended_for_a_failed_one_hide_no_failure() -> None:
    """How rank 1 ended was not seen. A change of nodes is not counted, and no failure."""
    ranks = (gone(0, -15, order=1), gone(1, None))
    restarted, _ = end_round(job(*ranks, ended=True, next_start=TORCHRUN), "", None)
    assert restarted.verdict == "crashed"
    nodes_changed = RoundStart(launcher="torchrun", most=3)
    changed, _ = end_round(job(*ranks, ended=True, next_start=nodes_changed), "", None)
    assert changed.verdict == "finished"


def test_torchruns_own_count_tells_how_many_restarts_are_left() -> None:
    left = [
        watched(found(0, 10, count, start=RoundStart(launcher="torchrun", number=count, most=3)))
        for count in (None, 0, 2, 3)
    ]
    assert [one.restarts_left for one in left] == [3, 3, 1, 0]
    plain = watched(found(0, 10, start=RoundStart(launcher="slurm", number=1)))
    assert plain.restarts_left is None
    assert watched().restarts_left is None


@pytest.mark.parametrize(
    ("later_s", "code", "most", "agent", "waits"),
    [
        (9, -9, 1, True, True),
        (5, -9, 1, True, False),
        (9, 0, 1, True, False),
        (9, -9, 1, False, False),
        (9, -9, 0, True, False),
        (9, 1, 0, True, False),
        (9, -15, 0, True, True),
    ],
    ids=[
        "it waits",
        "it may still start them",
        "all ended well",
        "another process",
        "one was killed, and no restart is left",
        "one failed, and no restart is left",
        "it ended them itself: a node came or went, which is no restart",
    ],
)
def test_torchrun_whose_ranks_have_gone_and_that_lives_waits_for_other_nodes(
    later_s: int, code: int, most: int, agent: bool, waits: bool
) -> None:
    """The rank is this very process, so its parent is its launcher."""
    start = RoundStart(launcher="torchrun", number=0, most=most)
    made = watched(found(0, os.getpid(), start=start), left=code)
    launcher = FoundRank(rank=0, pid=os.getppid() if agent else 1, started_ticks=1, guessed=True)
    now_ns = made.ended_ns + later_s * SECOND
    assert made.is_waited_out_by(launcher, now_ns) == waits


@pytest.mark.parametrize(
    ("code", "ending", "waits"),
    [(None, "finished", True), (0, "finished", False), (None, "running", True)],
    ids=["it said goodbye, its code unseen", "it ended well", "it said nothing"],
)
def test_so_does_the_one_whose_ranks_were_gone_before_anybody_saw_them(
    code: int | None, ending: str, waits: bool
) -> None:
    """Their pages tell who started them; ``sys.exit("no data")`` ends as a good program does."""
    gone_already = found(0, 10, count=0, started_ticks=0, start=RoundStart(number=0))
    made = watched(gone_already)
    made.agents.add(700)
    made.ranks[0].read(Beat(pid=10, rank=0, ending=ending), 0)
    made.note_exit(10, code)
    agent = FoundRank(rank=0, pid=700, started_ticks=1, guessed=True)
    assert made.is_waited_out_by(agent, made.ended_ns + 9 * SECOND) == waits


def test_a_process_that_learns_its_number_is_no_longer_rank_0() -> None:
    watched = WatchedRound(0)
    watched.take_in(FoundRank(rank=0, pid=os.getpid(), started_ticks=1, guessed=True), 1)
    watched.take_in(FoundRank(rank=1, pid=os.getpid(), started_ticks=1, world_size=2), 2)
    assert list(watched.ranks) == [1]
