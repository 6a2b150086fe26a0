"""`hangcheck run --live`: the view below the job's own output, on a real screen."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil
import pytest
from launch.terminals.screen import PROMPT, Screen
from launch.terminals.terminal import CTRL_Z, Terminal
from processes import is_alive, until
from watch.launched import python, run, run_words, verdict_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.real
needs_tmux = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")

JOB = """
import os, sys, time
from pathlib import Path
import lightning_hangcheck as hc

print("on a terminal:", all(map(os.isatty, (0, 1, 2))), flush=True)
hc.checkpoint("Model created", number=5)
for number in range(1_000_000):
    hc.beat()
    print("line", number, flush=True)
    time.sleep(0.1)
    if Path("end").exists():
        sys.exit(7)
"""
TITLES = "RANK  STATE"
RUN = "hangcheck run --live --run-dir run -- python job.py"


@pytest.fixture
def screen(tmp_path: Path) -> Iterator[Screen]:
    (tmp_path / "job.py").write_text(JOB)
    shown = Screen(tmp_path)
    try:
        yield shown
    finally:
        shown.end()


def _has_region(lines: list[str]) -> bool:
    """Below the job's lines: the status, the verdict, the titles, the rank; up to the last line."""
    used = [line for line in lines if line]
    at = next((n for n, line in enumerate(used) if line.startswith(TITLES)), 0)
    return at > 2 and used[at - 2].startswith("-- ") and used[at + 1].startswith("0 ")


def _has_none(lines: list[str]) -> bool:
    return not any(line.startswith(TITLES) for line in lines)


@needs_tmux
def test_the_region_leaves_the_terminal_as_it_was(screen: Screen, tmp_path: Path) -> None:
    """Ctrl-Z and fg, a tiny terminal, a large one, the job's end with its own exit code."""
    screen.type(RUN)
    lines = screen.until(_has_region, "the region")
    assert any(line.startswith("line ") for line in lines[:12])
    assert not any(line.startswith("line ") for line in lines[-6:])

    screen.press("C-z")
    screen.until(lambda now: _has_none(now) and any("Stopped" in one for one in now), "the stop")
    screen.type("clear; seq 30; tput lines")
    screen.until(lambda now: now[22] == "24" and now[23].startswith(PROMPT), "the whole screen")
    screen.type("fg")
    screen.until(_has_region, "the region after fg")

    screen.resize(40, 5)
    screen.until(lambda now: _has_none(now) and now[3].startswith("line "), "the job alone")
    screen.resize(100, 30)
    screen.until(lambda now: _has_region(now) and now[29] != "", "the region in a larger terminal")

    (tmp_path / "end").touch()
    screen.until(lambda now: [one for one in now if one][-1].startswith(PROMPT), "the end")
    screen.type("code=$?; clear; seq 60")
    screen.until(lambda now: _has_none(now) and now[28] == "60", "the whole screen again")
    screen.type("clear; echo code=$code")
    screen.until(lambda now: "code=7" in now, "the job's own exit code")


@needs_tmux
def test_without_it_too_a_run_that_was_stopped_goes_on_to_its_own_end(
    screen: Screen, tmp_path: Path
) -> None:
    screen.type(RUN.replace("--live ", ""))
    screen.until(lambda now: any(line.startswith("line ") for line in now), "the job")
    screen.press("C-z")
    screen.until(lambda now: any("Stopped" in line for line in now), "the stop")
    screen.type("clear; sleep 1; fg")  # longer than one wait of the launcher's
    screen.until(lambda now: any(line.startswith("line ") for line in now), "the job again")
    (tmp_path / "end").touch()
    screen.type("code=$?; clear; echo code=$code")
    screen.until(lambda now: "code=7" in now, "the job's own exit code")
    assert len(list((tmp_path / "run" / "verdicts").iterdir())) == 1


@needs_tmux
@pytest.mark.parametrize("victim", ["launcher", "view"])
def test_whoever_is_killed_leaves_the_terminal_in_order(
    victim: str, screen: Screen, tmp_path: Path
) -> None:
    screen.type(RUN)
    screen.until(_has_region, "the region")
    view = _found(screen, "lightning_hangcheck.live_view.in_run")
    job = _found(screen, "job.py")
    assert view is not None
    assert job is not None
    launcher = view.parent()
    assert launcher is not None
    os.kill((launcher if victim == "launcher" else view).pid, signal.SIGKILL)
    try:
        screen.until(lambda now: _has_none(now) and now[22].startswith("line "), "the whole screen")
        assert is_alive(job), "the job goes on"
    finally:
        (tmp_path / "end").touch()
    until(lambda: not is_alive(job) and not is_alive(view), "their end")


def test_without_a_shell_ctrl_z_stops_nothing_and_the_terminal_may_be_closed(
    tmp_path: Path,
) -> None:
    """Nobody could continue whoever stops there, so the kernel leaves them alone; so do we."""
    (tmp_path / "job.py").write_text(JOB)
    terminal = Terminal(tmp_path, run_words([sys.executable, "job.py"], "--live"), TERM="xterm")
    try:
        terminal.resize(80, 24)
        terminal.until_shown("RANK  STATE")
        terminal.type(CTRL_Z)
        terminal.until_shown("^Z")
        terminal.shown = ""
        terminal.until_shown("RANK  STATE")
        below = terminal.below()
        terminal.close()
        until(lambda: not any(map(is_alive, below)), "everybody to end")
        assert terminal.until_ended() == 128 + signal.SIGHUP
    finally:
        terminal.end()
    assert "SIGHUP (its terminal was closed)" in verdict_of(tmp_path / "run").summary


def test_without_a_terminal_one_line_and_the_plain_output(tmp_path: Path) -> None:
    done = run(tmp_path, python("print('own output')"), "--live")
    assert done.returncode == 0
    assert done.stdout == "own output\n"
    (told,) = [line for line in done.stderr.splitlines() if "--live" in line]
    assert "standard error is no terminal" in told
    assert "hangcheck watch " in told
    assert "\x1b" not in done.stderr


def _found(screen: Screen, word: str) -> psutil.Process | None:
    """The process below the shell that has a word in its command, and is not its launcher."""
    for process in screen.below():
        with suppress(psutil.Error):
            if word in process.cmdline() and "--live" not in process.cmdline():
                return process
    return None
