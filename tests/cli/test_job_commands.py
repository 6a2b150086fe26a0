"""`hangcheck run`, `watch`, `rehearse` and `smoke`, as commands."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from processes import PROGRAMS
from watch.launched import LONGEST_RUN_S

if TYPE_CHECKING:
    from pathlib import Path


AT = "2026-11-20T10:24:16.000Z"
SHOW_ARGUMENTS = "import sys; print(sys.argv[1:]); sys.exit(3)"
SMOKING = [sys.executable, str(PROGRAMS / "smoking.py")]


def hangcheck(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lightning_hangcheck", *words],
        cwd=folder,
        env={**os.environ, "HANGCHECK_PERSON_AFTER": "4", "HANGCHECK_ABORT_GRACE": "1"},
        capture_output=True,
        text=True,
        timeout=LONGEST_RUN_S,
        check=False,
    )


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
    command = [sys.executable, "-c", SHOW_ARGUMENTS, *words]
    ran = hangcheck(tmp_path, "run", "--run-dir", "r", "--", *command)
    assert (ran.returncode, ran.stdout) == (3, f"{arrived}\n")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--run-dir /proc/smoke -- true", "cannot be made"),
        # before its verdict is taken for this one
        ("--run-dir smoke -- true {devices} {workers}", "already holds a run; name another folder"),
        ("-- ./no-interpreter", "'./no-interpreter' cannot be started (the reason is in "),
    ],
)
def test_a_smoke_run_that_cannot_start_is_said_in_one_line(
    words: str, says: str, tmp_path: Path
) -> None:
    (tmp_path / "smoke-2-ranks-0-workers").mkdir()
    (tmp_path / "smoke-2-ranks-0-workers" / "run.json").touch()
    (tmp_path / "no-interpreter").write_text("#!/nosuch/interpreter\n")
    (tmp_path / "no-interpreter").chmod(0o700)
    ran = hangcheck(tmp_path, "smoke", *words.split())
    assert (ran.returncode, ran.stdout) == (2, "")
    assert says in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.real
@pytest.mark.parametrize(
    ("when", "results", "first", "means"),
    [("ranks", ["HANG", "HANG", "passed"], "2 ranks, 0 workers: hangs", "only with 2 ranks")],
)
def test_the_first_that_hangs_is_named(
    when: str, results: list[str], first: str, means: str, tmp_path: Path
) -> None:
    ran = hangcheck(tmp_path, "smoke", "--", *SMOKING, "{devices}", "{workers}", when, "stop")
    assert ran.returncode == 3, ran.stdout + ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[0].startswith(f"SMOKE  {first}")
    assert [
        next(word for word in ("HANG", "passed") if word in line) for line in lines[2:5]
    ] == results
    assert "process_stopped" in ran.stdout
    assert "      where    rank 1 " in ran.stdout
    assert f"      means    {means}" in ran.stdout
