"""Smaller commands: demo, explain, plan, doctor, run, rehearse and smoke."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING

import msgspec
import psutil
import pytest
from planning.planned import LLAMA_8B, PUBLISHED_PARAMETERS
from processes import PATIENCE_S, PROGRAMS, run_python, until
from watch.launched import LONGEST_RUN_S

from lightning_hangcheck.cli.main import invoke
from lightning_hangcheck.judge.knowledge import causes_file
from lightning_hangcheck.model.run import RunRecord
from lightning_hangcheck.model.verdict import Verdict
from lightning_hangcheck.text.moments import read_utc

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from lightning_hangcheck.doctor.examination import Answer

HANGCHECK = ("-m", "lightning_hangcheck")
PROMISED_S = 10.0
LOADED = 8
"""A machine on which our shortest command takes a second may take eight more for the demo."""


def shortest_command_s() -> float:
    """How long a command takes here now, which tells what a second is worth."""
    before = time.monotonic()
    assert run_python(*HANGCHECK, "--version").returncode == 0
    return time.monotonic() - before


@pytest.mark.real
def test_a_verdict_of_two_processes_within_ten_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the user has set, no process is left behind, and nothing in the working folder."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("HANGCHECK_PATIENCE", "100")
    usual_s = shortest_command_s()
    done = run_python(*HANGCHECK, "demo", limit_s=PATIENCE_S)
    usual_s = max(usual_s, shortest_command_s())
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.glob("hangcheck-demo-*")
    first = folder / "run" / "verdicts"
    verdicts = [
        msgspec.json.decode(first.joinpath(f"{number}.json").read_bytes(), type=Verdict)
        for number in range(1, len(list(first.iterdir())) + 1)
    ]
    hang = next(one for one in verdicts if one.verdict == "hang")
    assert hang.culprits == (0, 1)
    assert hang.cause == "file_lock"
    assert "rank 0" in hang.summary
    assert "rank 1" in hang.summary
    assert hang.summary in " ".join(done.stderr.split())
    took_s = (read_utc(hang.detected_at) - read_utc(hang.started_at)).total_seconds()
    assert took_s < PROMISED_S + LOADED * usual_s
    assert f"{folder}/run/report.html" in done.stdout
    page = folder / "run" / "report.html"
    until(
        lambda: page.is_file() and "data-goes-on" not in page.read_text(),
        "the last page, which is made at low priority and reloads itself no more",
    )
    record = msgspec.json.decode((folder / "run" / "run.json").read_bytes(), type=RunRecord)
    assert len(record.ranks) == 2
    assert not [rank.pid for rank in record.ranks if psutil.pid_exists(rank.pid)]
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize("cause", causes_file().cause)
def test_every_cause_has_a_page(cause: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Title, meaning, how it is recognised, and each remedy with where to read on."""
    known = causes_file().cause[cause]
    assert invoke(["explain", cause]) == 0
    page = " ".join(capsys.readouterr().out.split())
    assert page.startswith(f"{cause}: {known.title} what {known.explanation} seen by ")
    assert known.recognised
    assert all(remedy.see in page for remedy in known.remedies)
    assert "{" not in page


def test_without_a_cause_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """Of one, a dash and capitals are understood."""
    assert invoke(["explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(causes_file().cause)
    assert invoke(["explain", "Rank-Stalled"]) == 0
    assert capsys.readouterr().out.startswith("rank_stalled: ")


@pytest.mark.parametrize(
    ("option", "said"), [("--extra=x", "--extra x is neither"), ("--phase=x", "--phase x is not")]
)
def test_what_a_plan_is_given_is_read_before_the_machine_is_looked_at(
    option: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["plan", "nowhere", option]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore")
def test_a_plan_is_text_that_begins_with_the_class_or_json_that_holds_everything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("accelerate")
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA_8B, "dtype": "bfloat16"}))
    machine = ("--gpus", "1", "--gpu-memory", "80", "--cpu-memory", "64")
    assert invoke(["plan", str(tmp_path), *machine, "--extra", "operators=6", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["parameters"], plan["speed"]) == (PUBLISHED_PARAMETERS, "fast")
    assert plan["extras"] == {"operators": 6_000_000_000}
    assert plan["max_memory"] == {"0": "72GB", "cpu": "64GB"}
    assert invoke(["plan", f"{tmp_path}/config.json", *machine, "--dtype", "int8"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("FAST  ")
    assert said.err == ""


# `hangcheck run`, `watch`, `rehearse` and `smoke`, as commands.

AT = "2026-11-20T10:24:16.000Z"
SHOW_ARGUMENTS = "import sys; print(sys.argv[1:]); sys.exit(3)"
SMOKING = [sys.executable, str(PROGRAMS / "smoking.py")]


def hangcheck(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    ours = {**os.environ, "HANGCHECK_PERSON_AFTER": "4", "HANGCHECK_ABORT_GRACE": "1"}
    return run_python(*HANGCHECK, *words, folder=folder, environment=ours, limit_s=LONGEST_RUN_S)


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


# `hangcheck doctor` as it is typed.


@pytest.fixture
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder and an environment in which nothing is wrong."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    for name in ("RANK", "WORLD_SIZE", "TOKENIZERS_PARALLELISM"):
        monkeypatch.delenv(name, raising=False)


def _answers(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[Answer]]:
    code = invoke(["doctor", "--json", *words])
    return code, json.loads(capsys.readouterr().out)["answers"]


@pytest.mark.usefixtures("at_home")
def test_only_the_named_groups_are_asked(capsys: pytest.CaptureFixture[str]) -> None:
    _, answers = _answers(capsys, "--only", "environment", "--only", "launch")
    assert {answer["group"] for answer in answers} == {"environment", "launch"}  # type: ignore[index]


@pytest.mark.usefixtures("at_home")
def test_a_failed_check_gives_two(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "2")
    code, answers = _answers(capsys, "--only", "launch", "--", "python", "train.py")
    assert code == 2
    assert any("RANK=3" in answer["found"] for answer in answers)  # type: ignore[index]


@pytest.mark.usefixtures("at_home")
def test_where_nothing_was_checked_nothing_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["doctor", "--only", "data"]) == 1
    assert capsys.readouterr().out.startswith("nothing was checked: ")
