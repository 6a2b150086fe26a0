"""Closing the terminal ends the job, also where `hangcheck run` leads the terminal's session."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from launch.terminals.terminal import Terminal
from processes import is_alive, runs, until
from watch.launched import run_words, verdict_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.real
# the file says that its line is written whole: a terminal that closes meanwhile ends it by EIO
IN_A_GROUP_OF_ITS_OWN = (
    "import os, time; os.setpgid(0, 0); print('ready', os.getpid(), flush=True); "
    "open('written', 'x').close(); time.sleep(1000)"
)


def test_closing_the_terminal_of_the_session_that_we_lead(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, run_words([sys.executable, "-c", IN_A_GROUP_OF_ITS_OWN]))
    try:
        terminal.until_shown("ready ")
        until(lambda: (tmp_path / "written").exists(), "its line to be written")
        until(lambda: (tmp_path / "run" / "run.json").exists(), "the run folder")
        below = terminal.below()
        (command,) = [one for one in below if runs(one, IN_A_GROUP_OF_ITS_OWN)]
        terminal.close()
        until(lambda: not is_alive(command), "the command to end")
        assert terminal.until_ended() == 128 + 1
    finally:
        terminal.end()
    assert "SIGHUP (its terminal was closed)" in verdict_of(tmp_path / "run").summary
