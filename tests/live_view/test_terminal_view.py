"""The view in a terminal: its text and how it is drawn."""

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
from processes import PATIENCE_S, end
from recorded_run import AT, note_as_its_sidecar, note_of, recorded_run, told

from lightning_hangcheck.live_view.run_follower import RankNow, RankUse, RowState, RunNow
from lightning_hangcheck.live_view.view_text import fitted, rows, view_lines
from lightning_hangcheck.model.codec import encode
from lightning_hangcheck.model.run import RankRecord, RunRecord
from lightning_hangcheck.model.verdict import Edge, RankState, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from processes import StartProgram

    from lightning_hangcheck.session.session import Session

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

OTHER_SCREEN, OWN_SCREEN = "\x1b[?1049h", "\x1b[?1049l"

HOSTILE = "[red]\x1b[2J\u202efeed"

HANG = Verdict(
    verdict="hang",
    run_id="r",
    command="c",
    started_at=AT,
    detected_at=AT,
    world_size=2,
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
        note_as_its_sidecar(opened, note_of(0, rank.pid, silent_for_s=31.0), newest=HANG)
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
    try:
        first = watch.stdout.readline()
        watch.send_signal(signal.SIGINT)
        rest = watch.stdout.read()
        assert watch.wait(PATIENCE_S) == 0
    finally:
        end(watch)
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


def verdict(summary: str) -> Verdict:
    return Verdict(
        verdict="hang",
        run_id="r",
        command="c",
        started_at=BEGAN,
        detected_at=BEGAN,
        world_size=2,
        culprits=(1,),
        stalled_for_s=31.0,
        summary=summary,
    )


def text(now: RunNow, width: int = 120, height: int | None = None) -> list[str]:
    return [line.text for line in view_lines(now, width, height)]


def table(*ranks: RankNow, width: int = 200) -> list[str]:
    return fitted(rows(ranks, NOW), width)


@pytest.mark.parametrize(("width", "ranks"), [(20, 4), (80, 0), (80, 32), (80, 4096)])
def test_it_fits_the_terminal_at_any_width_and_world_size(width: int, ranks: int) -> None:
    many = (full(rank, culprit=rank == 1, waits_for=f"rank {rank + 1}") for rank in range(ranks))
    gaps = ("a very long sentence " * 20, "b", "c", "d")
    lines = text(run(*many, verdict=verdict("rank 1 is at " + "x" * 300), gaps=gaps), width, 24)
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
    now = run(one(0), verdict=verdict(name), gaps=(name,), over=name)
    shown = RunNow(shown_folder=name, at=NOW, status="", command=name, ranks=now.ranks)
    for line in (*text(now), *text(shown)):
        assert line.isprintable()
    assert "[red]bold[/red]" not in name or "[red]bold[/red]" in "".join(text(now))
