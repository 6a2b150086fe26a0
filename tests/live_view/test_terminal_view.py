"""The live view: what it follows of a run, and what it draws."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace
from processes import PATIENCE_S, end, ending, until
from recorded_run import AT, note_as_its_sidecar, note_of, recorded_run, told
from report.constructed import verdict

from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.live_view.run_follower import (
    QUIET_FOLDER_S,
    RankNow,
    RankUse,
    RowState,
    RunFollower,
    RunNow,
    ranks_now,
)
from lightning_hangcheck.live_view.view_text import fitted, rows, view_lines
from lightning_hangcheck.model.beat import Beat
from lightning_hangcheck.model.codec import encode
from lightning_hangcheck.model.run import RankRecord, RunRecord
from lightning_hangcheck.model.verdict import Edge, RankState, StackGroup, Verdict
from lightning_hangcheck.report.saved_run import RunningRank
from lightning_hangcheck.rundir import RunFolder, prepare_run_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from processes import StartProgram

    from lightning_hangcheck.model.slugs import VerdictKind
    from lightning_hangcheck.session.session import Session

RECORD = RunRecord(run_id="r", command="python train.py", started_at=AT, world_size=2)
HANG = verdict(
    "hang",
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


# The view in a terminal: its text and how it is drawn.

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
OTHER_SCREEN, OWN_SCREEN = "\x1b[?1049h", "\x1b[?1049l"
HOSTILE = "[red]\x1b[2J\u202efeed"
HOSTILE_HANG = verdict(
    "hang",
    culprits=(1,),
    summary=f"rank 1 is stuck in {HOSTILE} (train.py:88)",
    ranks=(RankState(rank=0, state="waiting"), RankState(rank=1, state="stalled")),
    wait_for=(Edge("rank:0", "rank:1", f"in {HOSTILE}"),),
)


class Watching:
    """`hangcheck watch` on a pseudo-terminal of 80 columns and 24 lines."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self._master, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        plain = {name: value for name, value in os.environ.items() if name not in SIZES}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lightning_hangcheck", "watch", str(folder)],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env={**plain, "TERM": "xterm-256color", **environment},
        )
        os.close(terminal)
        self.seen = ""

    def until(self, *words: str) -> None:
        """Read what it draws until all of these were drawn since the last screen's start."""
        deadline = time.monotonic() + PATIENCE_S
        while not all(word in self.seen for word in words):
            assert time.monotonic() < deadline, f"not drawn: {words}, but {self.seen!r}"
            self._read()

    def ended(self) -> int:
        """Read to the end, and return the exit code."""
        while self._read():
            pass
        return self.process.wait(PATIENCE_S)

    def screens(self) -> list[list[str]]:
        """Each screen as lines of plain text."""
        drawn = self.seen.partition(OTHER_SCREEN)[2].partition(OWN_SCREEN)[0]
        screens = [ESCAPE.sub("", screen).replace("\r", "") for screen in drawn.split("\x1b[H")[1:]]
        return [screen.split("\n") for screen in screens if screen.strip()]

    def close(self) -> None:
        end(self.process)
        os.close(self._master)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._master], [], [], PATIENCE_S)
        assert ready, "nothing was drawn"
        try:
            data = os.read(self._master, 65_536)
        except OSError:  # the terminal's other end is closed
            return False
        self.seen += data.decode()
        return bool(data)


SIZES = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")


@pytest.fixture
def session(program: StartProgram, tmp_path: Path) -> Iterator[Session]:
    """A run of two ranks, one of which runs here; a hang was told."""
    with recorded_run(tmp_path / "run") as opened:
        record = RunRecord(
            run_id="r",
            command="python train.py",
            started_at=AT,
            world_size=2,
            ranks=(RankRecord(rank=1, pid=1),),
        )
        (tmp_path / "run" / "run.json").write_bytes(encode(record))
        rank = program("recording_alone.py", **told(opened, 0, 2))
        note_as_its_sidecar(opened, note_of(0, rank.pid, silent_for_s=31.0), newest=HOSTILE_HANG)
        yield opened


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_80x24_shows_all_and_is_left_as_it_was(
    session: Session, tmp_path: Path, number: signal.Signals
) -> None:
    watching = Watching(tmp_path / "run")
    try:
        watching.until("stuck", "Ctrl-C ends this view")
        watching.process.send_signal(number)
        assert watching.ended() == 0
        screen = watching.screens()[0]
    finally:
        watching.close()
    assert len(screen) <= 24
    assert max(map(len, screen)) <= 80
    text = "\n".join(line.rstrip() for line in screen)
    assert r"HANG  rank 1 is stuck in [red]\x1b[2J\u202efeed (train.py:88)" in text
    assert text.index("\n1     stuck") < text.index("\n0     waits")
    assert "rank 1 in [r" in text
    assert "\u202e" not in watching.seen
    assert "31m" in watching.seen
    assert watching.seen.count(OTHER_SCREEN) == watching.seen.count(OWN_SCREEN) == 1
    assert watching.seen.rindex("\x1b[?25h") > watching.seen.rindex("\x1b[?25l")
    assert "Traceback" not in watching.seen


def test_it_ends_with_the_run_and_leaves_its_last_state(session: Session, tmp_path: Path) -> None:
    watching = Watching(tmp_path / "run")
    try:
        watching.until("stuck")
        record = RunRecord(
            run_id="r", command="c", started_at=AT, world_size=2, ended_at=AT, exit_code=75
        )
        (tmp_path / "run" / "run.json").write_bytes(encode(record))
        assert watching.ended() == 0
    finally:
        watching.close()
    left = ESCAPE.sub("", watching.seen.partition(OWN_SCREEN)[2])
    assert "the run has ended after <1 ms, exit code 75" in left
    assert "stuck" in left
    assert "Ctrl-C" not in left


def test_without_a_terminal_a_block_is_printed_for_each_change(
    session: Session, tmp_path: Path
) -> None:
    watch = subprocess.Popen(
        [sys.executable, "-m", "lightning_hangcheck", "watch", str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with ending(watch):
        first = watch.stdout.readline()
        watch.send_signal(signal.SIGINT)
        rest = watch.stdout.read()
        assert watch.wait(PATIENCE_S) == 0
    assert first.startswith("HANG  rank 1 is stuck in [red]")
    assert rest.count("HANG") == 0
    assert rest.count("RANK  STATE") == 1
    assert "\x1b" not in first + rest


NOW = datetime(2026, 11, 20, 10, 30, tzinfo=timezone.utc)
BEGAN = "2026-11-20T10:20:00.000Z"


def one(rank: int, state: RowState = "runs", **facts: Any) -> RankNow:
    return RankNow(rank=rank, state=state, **facts)


def full(rank: int, **facts: Any) -> RankNow:
    """A rank of which everything is known."""
    known: dict[str, Any] = {
        "silent_s": 0.2,
        "phase": "optimizer_step",
        "waits_for": "rank 1 in all_reduce [4096] BFloat16 of the default group",
        "step": 123_456,
        "step_s": 0.41,
        "kept": "saved at step 123000",
        "kept_at": BEGAN,
        "memory_bytes": 41_200_000_000,
        "use": RankUse(cpu_percent=101.0, step_now_s=0.9, gpu_percent=98, gpu_bytes=79_000_000_000),
        **facts,
    }
    return one(rank, **known)


def run(*ranks: RankNow, **facts: Any) -> RunNow:
    return RunNow(
        shown_folder="runs/a", at=NOW, status="2 ranks run here", command="c", ranks=ranks, **facts
    )


def hanging(summary: str) -> Verdict:
    return verdict("hang", culprits=(1,), stalled_for_s=31.0, summary=summary)


def text(now: RunNow, width: int = 120, height: int | None = None) -> list[str]:
    return [line.text for line in view_lines(now, width, height)]


def table(*ranks: RankNow, width: int = 200) -> list[str]:
    return fitted(rows(ranks, NOW), width)


@pytest.mark.parametrize(("width", "ranks"), [(20, 4), (80, 0), (80, 32), (80, 4096)])
def test_it_fits_the_terminal_at_any_width_and_world_size(width: int, ranks: int) -> None:
    many = (full(rank, culprit=rank == 1, waits_for=f"rank {rank + 1}") for rank in range(ranks))
    gaps = ("a very long sentence " * 20, "b", "c", "d")
    lines = text(run(*many, verdict=hanging("rank 1 is at " + "x" * 300), gaps=gaps), width, 24)
    assert max(map(len, lines)) < max(width, 21)
    assert len(lines) < 24


def test_above_32_equals_share_a_row_that_spans_their_figures() -> None:
    def like_others(rank: int) -> RankNow:
        use = RankUse(cpu_percent=90.0 + rank % 5, step_now_s=0.4 if rank else 1.2)
        phase = "backward" if rank % 2 else "optimizer_step"
        return one(rank, phase=phase, step=100 + rank % 3, step_s=0.4, use=use)

    stuck = one(5, "stuck", culprit=True, silent_s=40.0)
    culprit, others = table(stuck, *(like_others(rank) for rank in range(64) if rank != 5))[1:]
    assert culprit.split() == ["5", "stuck", "40s"]
    assert others.startswith("0-4,6-63")
    for spanned in ("100-102", "x3.0", "90-94%", "optimizer_step, backward"):
        assert spanned in others


@pytest.mark.parametrize(
    "name", ["\x1b[2J\x1b]0;title\x07", "a\nb\rc", "\u202eabc\u200b", "[red]bold[/red]"]
)
def test_hostile_names_are_plain_text_in_one_line(name: str) -> None:
    now = run(one(0), verdict=hanging(name), gaps=(name,), over=name)
    shown = RunNow(shown_folder=name, at=NOW, status="", command=name, ranks=now.ranks)
    for line in (*text(now), *text(shown)):
        assert line.isprintable()
    assert "[red]bold[/red]" not in name or "[red]bold[/red]" in "".join(text(now))
