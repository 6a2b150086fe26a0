"""`hangcheck run`, `watch`, `rehearse` and `smoke`, as commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from long_tests import WHEN_ASKED_FOR
from processes import PROGRAMS
from watch.launched import LONGEST_RUN_S

from lightning_hangcheck.cli.main import invoke
from lightning_hangcheck.model.codec import encode
from lightning_hangcheck.model.run import RunRecord
from lightning_hangcheck.rundir import RunFolder, prepare_run_folder

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


AT = "2026-11-20T10:24:16.000Z"


def ended_run(path: Path, world_size: int) -> RunFolder:
    folder = prepare_run_folder(RunFolder(path))
    record = RunRecord(
        run_id="r",
        command="python train.py",
        started_at=AT,
        world_size=world_size,
        ended_at=AT,
        exit_code=0,
    )
    folder.run_file.write_bytes(encode(record))
    return folder


def shown(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert invoke(["watch", str(folder.path)]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    return output.out.splitlines()


def test_a_run_without_a_verdict_is_shown_by_its_journals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ended_run(tmp_path / "run", 1)
    entry = {"kind": "checkpoint", "number": 12, "name": "Training finished", "at": AT}
    folder.journal(0, 1).write_text(json.dumps(entry) + "\n")
    lines = shown(folder, capsys)
    assert lines[0] == "no verdict yet"
    assert lines[1].endswith("the run has ended after <1 ms, exit code 0")
    assert lines[5].startswith("0     ended  12: Training finished")


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
        (["--run-dir", "/proc/smoke", "--", "true"], "cannot be made"),
        (["--", "./no-interpreter"], "'./no-interpreter' cannot be started (the reason is in "),
    ],
)
def test_a_job_that_cannot_be_started_is_said_in_one_line(
    words: list[str], says: str, tmp_path: Path
) -> None:
    (tmp_path / "no-interpreter").write_text("#!/nosuch/interpreter\n")
    (tmp_path / "no-interpreter").chmod(0o700)
    ran = _hangcheck(tmp_path, *words)
    assert ran.returncode == 2
    assert says in ran.stderr
    assert "Traceback" not in ran.stderr
