"""A shell on a screen that tmux keeps: what stands where, Ctrl-Z and fg, another size."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from processes import until

if TYPE_CHECKING:
    from collections.abc import Callable

PROMPT = "ready>"
SIZE = ("-x", "80", "-y", "24")


class Screen:
    """bash with job control on a terminal of 80x24.

    Args:
        folder: Its working folder, and where tmux keeps its socket.
    """

    def __init__(self, folder: Path) -> None:
        self._socket = str(folder / "tmux")
        python = Path(sys.executable).parent
        shell = ["env", f"PS1={PROMPT} ", f"PATH={python}:{os.environ['PATH']}", "bash", "--norc"]
        start = ["-f", os.devnull, "new-session", "-d", "-s", "job", "-c", str(folder), *SIZE]
        self._tmux(*start, *shell)
        self.until(lambda lines: PROMPT in lines[0], "the prompt")

    def lines(self) -> list[str]:
        """What stands on it now, from the top."""
        return self._tmux("capture-pane", "-p", "-t", "job").split("\n")

    def type(self, text: str) -> None:
        """Type a line."""
        self._tmux("send-keys", "-t", "job", "-l", text)
        self.press("Enter")

    def press(self, key: str) -> None:
        """Press a key, as tmux names it."""
        self._tmux("send-keys", "-t", "job", key)

    def resize(self, columns: int, lines: int) -> None:
        """Give it another size."""
        self._tmux("resize-window", "-t", "job", "-x", str(columns), "-y", str(lines))

    def until(self, holds: Callable[[list[str]], bool], what: str) -> list[str]:
        """Wait until something stands there."""

        def seen() -> list[str] | None:
            lines = self.lines()
            return lines if holds(lines) else None

        try:
            return until(seen, what)
        except AssertionError as error:
            raise AssertionError("\n".join([f"{what}:", *self.lines()])) from error

    def below(self) -> list[psutil.Process]:
        """Return the processes below the shell."""
        shell = self._tmux("list-panes", "-t", "job", "-F", "#{pane_pid}")
        return psutil.Process(int(shell)).children(recursive=True)

    def end(self) -> None:
        """End it with its shell."""
        self._tmux("kill-server")

    def _tmux(self, *words: str) -> str:
        done = subprocess.run(
            ["tmux", "-S", self._socket, *words],
            check=True,
            timeout=120,
            capture_output=True,
            text=True,
        )
        return done.stdout
