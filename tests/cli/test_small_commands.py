"""`hangcheck demo`, `explain`, `plan` and `doctor`, as commands."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import msgspec
import psutil
import pytest
from planning.planned import LLAMA_8B, PUBLISHED_PARAMETERS
from processes import PATIENCE_S, until

from lightning_hangcheck.cli.main import invoke
from lightning_hangcheck.judge.knowledge import causes_file
from lightning_hangcheck.model.run import RunRecord
from lightning_hangcheck.model.verdict import Verdict
from lightning_hangcheck.text.moments import read_utc

if TYPE_CHECKING:
    from pathlib import Path

HANGCHECK = [sys.executable, "-m", "lightning_hangcheck"]

PROMISED_S = 10.0

LOADED = 8

"""A machine on which our shortest command takes a second may take eight more for the demo."""


def shortest_command_s() -> float:
    """How long a command takes here now, which tells what a second is worth."""
    before = time.monotonic()
    command = [*HANGCHECK, "--version"]
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_S)
    return time.monotonic() - before


@pytest.mark.real
def test_a_verdict_of_two_processes_within_ten_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the user has set, no process is left behind, and nothing in the working folder."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("HANGCHECK_PATIENCE", "100")
    usual_s = shortest_command_s()
    done = subprocess.run(
        [*HANGCHECK, "demo"], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
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
