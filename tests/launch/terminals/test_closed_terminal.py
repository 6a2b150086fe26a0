"""Closing the terminal ends the job, also where `hangcheck run` leads the terminal's session."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest
from launch.terminals.terminal import Terminal
from long_tests import WHEN_ASKED_FOR
from processes import end_by_pid, is_alive, runs, until
from watch.launched import run_words, verdict_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.real
SLEEPS = "import os, sys, time; print('ready', os.getpid(), flush=True); time.sleep(1000)"
IN_A_GROUP_OF_ITS_OWN = "import os; os.setpgid(0, 0); " + SLEEPS
STOPPED = "import os, signal; print('ready', os.getpid(), flush=True); os.kill(os.getpid(), 19)"


@pytest.mark.parametrize(
    "program", [IN_A_GROUP_OF_ITS_OWN, pytest.param(STOPPED, marks=WHEN_ASKED_FOR)]
)
def test_closing_the_terminal_of_the_session_that_we_lead(program: str, tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, run_words([sys.executable, "-c", program]))
    try:
        terminal.until_shown("ready ")
        until(lambda: (tmp_path / "run" / "run.json").exists(), "the run folder")
        below = terminal.below()
        (command,) = [one for one in below if runs(one, program)]
        if program == STOPPED:
            until(lambda: command.status() == psutil.STATUS_STOPPED, "it to stop")
        terminal.close()
        until(lambda: not is_alive(command), "the command to end")
        assert terminal.until_ended() == 128 + 1
    finally:
        terminal.end()
    assert "SIGHUP (its terminal was closed)" in verdict_of(tmp_path / "run").summary


@WHEN_ASKED_FOR
def test_below_a_shell_the_terminals_own_word_is_enough(tmp_path: Path) -> None:
    """The shell leads: the kernel tells it, and it passes the signal on as it always does."""
    words = shlex.join(run_words([sys.executable, "-c", SLEEPS]))
    terminal = Terminal(tmp_path, ["bash", "-c", f"{words}; true"])
    try:
        terminal.until_shown("ready ")
        below = terminal.below()
        terminal.close()
        until(lambda: not any(map(is_alive, below)), "everybody to end")
    finally:
        terminal.end()


@WHEN_ASKED_FOR
@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_tmux_kill_session(tmp_path: Path) -> None:
    socket = str(tmp_path / "tmux")
    words = run_words([sys.executable, "-c", SLEEPS])
    tmux = ["tmux", "-S", socket, "-f", os.devnull]
    start = [*tmux, "new-session", "-d", "-s", "job", "-c", str(tmp_path), shlex.join(words)]
    subprocess.run(start, check=True, timeout=120)
    try:
        pane = subprocess.run(
            [*tmux, "list-panes", "-t", "job", "-F", "#{pane_pid}"],
            check=True,
            timeout=120,
            capture_output=True,
            text=True,
        )
        run = psutil.Process(int(pane.stdout))
        below = until(
            lambda: [one for one in run.children(recursive=True) if runs(one, SLEEPS)],
            "the command to start",
        )
        try:
            subprocess.run([*tmux, "kill-session", "-t", "job"], check=True, timeout=120)
            until(lambda: not any(map(is_alive, below)), "the command to end")
        finally:
            end_by_pid([one for one in [run, *below] if is_alive(one)])
    finally:
        subprocess.run([*tmux, "kill-server"], check=False, timeout=120, capture_output=True)
