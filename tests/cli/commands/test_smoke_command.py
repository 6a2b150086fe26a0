"""`hangcheck smoke` on real programs that hang, or do not, by ranks and workers."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from long_tests import WHEN_ASKED_FOR
from processes import PROGRAMS
from watch.launched import LONGEST_RUN_S

if TYPE_CHECKING:
    from pathlib import Path

QUICK = {"HANGCHECK_PERSON_AFTER": "4", "HANGCHECK_ABORT_GRACE": "1"}


def _smoke(
    folder: Path, when: str, what: str = "stop", *options: str
) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, str(PROGRAMS / "smoking.py"), "{devices}", "{workers}", when, what]
    return _hangcheck(folder, *options, "--", *program)


def _hangcheck(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lightning_hangcheck", "smoke", *words],
        cwd=folder,
        env={**os.environ, **QUICK},
        capture_output=True,
        text=True,
        timeout=LONGEST_RUN_S,
        check=False,
    )


def test_a_folder_that_holds_a_run_is_refused_before_its_verdict_is_taken_for_this_one(
    tmp_path: Path,
) -> None:
    (tmp_path / "smoke-2-ranks-0-workers").mkdir()
    (tmp_path / "smoke-2-ranks-0-workers" / "run.json").touch()
    ran = _smoke(tmp_path, "never", "stop", "--run-dir", "smoke")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "smoke-2-ranks-0-workers already holds a run; name another folder" in ran.stderr


@pytest.mark.real
@pytest.mark.parametrize(
    ("when", "results", "first", "means"),
    [
        pytest.param(
            "workers",
            ["passed", "HANG", "passed"],
            "2 ranks, 1 worker: hangs",
            "only with workers",
            marks=WHEN_ASKED_FOR,
        ),
        ("ranks", ["HANG", "HANG", "passed"], "2 ranks, 0 workers: hangs", "only with 2 ranks"),
    ],
)
def test_the_first_that_hangs_is_named(
    when: str, results: list[str], first: str, means: str, tmp_path: Path
) -> None:
    ran = _smoke(tmp_path, when)
    assert ran.returncode == 3, ran.stdout + ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[0].startswith(f"SMOKE  {first}")
    assert [
        next(word for word in ("HANG", "passed") if word in line) for line in lines[2:5]
    ] == results
    assert "process_stopped" in ran.stdout
    assert "      where    rank 1 " in ran.stdout
    assert f"      means    {means}" in ran.stdout


@WHEN_ASKED_FOR
@pytest.mark.real
def test_a_run_that_does_not_end_is_ended_at_the_limit(tmp_path: Path) -> None:
    program = [sys.executable, str(PROGRAMS / "smoking.py"), "1", "0", "always", "wait"]
    ran = _hangcheck(tmp_path, "--limit", "6", "--", *program)
    assert ran.returncode == 3, ran.stdout + ran.stderr
    assert ran.stdout.startswith("SMOKE  as given: still ran at its limit; 0 of 1 run passed")
    assert "still ran after 6 s" in ran.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--limit", "soon"], "'soon' is not a number above 0"),
        (["--run-dir", "/proc/smoke", "--", "true"], "cannot be made"),
        (["--", "nosuchcommand"], "'nosuchcommand' cannot be started (no such program"),
        (["--", "./no-interpreter"], "'./no-interpreter' cannot be started (the reason is in "),
    ],
)
def test_bad_usage_is_one_line(words: list[str], says: str, tmp_path: Path) -> None:
    (tmp_path / "no-interpreter").write_text("#!/nosuch/interpreter\n")
    (tmp_path / "no-interpreter").chmod(0o700)
    ran = _hangcheck(tmp_path, *words)
    assert ran.returncode == 2
    assert says in ran.stderr
    assert "Traceback" not in ran.stderr
