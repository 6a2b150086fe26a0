"""`hangcheck run` hands everything behind the dashes on, untouched."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

SHOW_ARGUMENTS = "import sys; print(sys.argv[1:]); sys.exit(3)"


@pytest.mark.parametrize(
    ("words", "arrived"),
    [
        (["--", "--run-dir", "x"], "['--', '--run-dir', 'x']"),
        (["--help"], "['--help']"),
        (["a", "--on-hang=abort"], "['a', '--on-hang=abort']"),
    ],
)
def test_the_commands_own_words_are_not_ours(
    words: list[str], arrived: str, tmp_path: Path
) -> None:
    """Its exit code is ours; options that look like ours belong to it."""
    hangcheck = [
        sys.executable,
        "-m",
        "lightning_hangcheck",
        "run",
        "--run-dir",
        str(tmp_path / "r"),
    ]
    command = [sys.executable, "-c", SHOW_ARGUMENTS, *words]
    ran = subprocess.run(
        [*hangcheck, "--", *command],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        check=False,
    )
    assert ran.stdout == f"{arrived}\n"
    assert ran.returncode == 3


def test_a_used_run_folder_is_refused_in_one_line(tmp_path: Path) -> None:
    """Two runs in one folder would make both unreadable, so the second never starts."""
    (tmp_path / "run.json").write_text("{}")
    arguments = ["run", "--run-dir", str(tmp_path), "--", "touch", str(tmp_path / "started")]
    ran = subprocess.run(
        [sys.executable, "-m", "lightning_hangcheck", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 2
    assert ran.stderr.startswith("hangcheck: run folder")
    assert ran.stderr.count("\n") == 1
    assert not (tmp_path / "started").exists()
