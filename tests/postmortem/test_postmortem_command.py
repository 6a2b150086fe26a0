"""`hangcheck postmortem` on the command line."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cases import IN_ALL_REDUCE, IN_LOAD, job, rank
from jsonschema import validate
from log_lines import raised
from postmortem.dumps import did, dump, write
from processes import run_python

from lightning_hangcheck.cli.main import invoke
from lightning_hangcheck.judge import judge
from lightning_hangcheck.observe.run_record import save_run
from lightning_hangcheck.rundir import RunFolder

SCHEMA = Path(__file__).parents[2] / "docs" / "verdict.schema.json"
LINE = ("step", "/home/ada/demo/train.py", 88)
RANKS = 64
FULL_RING = 2_000


@pytest.fixture
def left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder tree with the dumps of a job of four ranks, of which rank 2 did not come."""
    monkeypatch.chdir(tmp_path)
    world = {"0": [0, 1, 2, 3]}
    came = [did(6, ended=True, frames=[LINE]), did(7, frames=[LINE])]
    for number in range(4):
        entries = came[: 1 if number == 2 else 2]
        name = f"rank_{number}"
        write(
            tmp_path / "logs" / f"node{number // 2}", {name: dump(number, *entries, groups=world)}
        )
    return tmp_path


def test_json_is_the_verdict_alone(left: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["postmortem", "logs", "--json", "--run-dir", "kept"]) == 3
    printed = capsys.readouterr().out
    verdict = json.loads(printed)
    validate(verdict, json.loads(SCHEMA.read_text()))
    assert (verdict["seen_in"], verdict["certainty"], verdict["culprits"]) == (
        "files",
        "proven",
        [2],
    )
    assert verdict == json.loads((left / "kept" / "verdict.json").read_text())
    again = invoke(["report", "kept", "--json"])
    assert again in (0, 3)


def test_exit_code_is_0_where_nothing_is_wrong_and_2_where_nothing_is_readable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dumps = {f"rank_{one}": dump(one, did(3, ended=True), groups={"0": [0, 1]}) for one in (0, 1)}
    folder = write(tmp_path / "calm", dumps)
    assert invoke(["postmortem", str(folder), "--run-dir", str(tmp_path / "a")]) == 0
    assert "nothing wrong is seen" in capsys.readouterr().out
    (tmp_path / "other").mkdir()
    assert invoke(["postmortem", str(tmp_path / "other"), "--run-dir", str(tmp_path / "b")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "name flight-record dumps" in error


def test_run_folders_of_nodes_are_joined_as_merge_joins_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = {"node0": rank(0, IN_ALL_REDUCE), "node1": rank(1, IN_LOAD)}
    for name, view in nodes.items():
        case = job(view, world_size=2)
        save_run(case, judge(case), (), RunFolder(tmp_path / "runs" / name))
    assert invoke(
        ["postmortem", str(tmp_path / "runs"), "--json", "--run-dir", str(tmp_path / "a")]
    )
    told = json.loads(capsys.readouterr().out)
    assert (told["culprits"], told["seen_in"]) == ([1], "files")
    named = [str(tmp_path / "runs" / name) for name in nodes]
    assert invoke(["merge", *named, "--run-dir", str(tmp_path / "b")])
    merged = json.loads((tmp_path / "b" / "verdict.json").read_text())
    assert told | {"run_id": "", "detected_at": ""} == merged | {"run_id": "", "detected_at": ""}


def keep(folder: Path, waiting: int, absent: int, taken_at: str, **fields: Any) -> None:
    """Keep a run of two ranks, of which one waits and the other is elsewhere."""
    views = [rank(waiting, IN_ALL_REDUCE), rank(absent, IN_LOAD)]
    case = job(*views, started_at=taken_at, taken_at=taken_at, **fields)
    save_run(case, judge(case), (), RunFolder(folder))


def test_of_several_runs_in_a_tree_the_newest_that_ended_badly_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(tmp_path / "runs" / "first", 0, 1, "2026-11-20T10:00:00Z")
    keep(tmp_path / "runs" / "second", 1, 0, "2026-11-20T12:00:00Z")
    calm = job(
        rank(0, IN_LOAD, silent=0.0),
        rank(1, IN_LOAD, silent=0.0),
        started_at="2026-11-20T14:00:00Z",
        taken_at="2026-11-20T14:00:00Z",
    )
    save_run(calm, judge(calm), (), RunFolder(tmp_path / "runs" / "third"))
    out = str(tmp_path / "runs" / "out")
    assert invoke(["postmortem", str(tmp_path / "runs"), "--run-dir", out]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["who", "rank", "0"]
    told = " ".join(" ".join(lines).split())
    assert f"{tmp_path}/runs/first: another run, HANG" in told
    assert f"{tmp_path}/runs/third: a run that shows nothing wrong (HEALTHY)" in told
    assert invoke(["postmortem", str(tmp_path / "runs"), "--run-dir", f"{out}2"]) == 3
    again = capsys.readouterr().out
    assert again.splitlines()[0] == lines[0]
    assert "it was made from other evidence" in " ".join(again.split())


def test_what_files_beside_a_run_folder_say_is_told_with_its_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(tmp_path / "left" / "run", 0, 1, "2026-11-20T10:00:00Z")
    text = raised(0, "ValueError: bad sample")
    (tmp_path / "left" / "job.log").write_text(f"{text}\n")
    out = str(tmp_path / "out")
    assert invoke(["postmortem", str(tmp_path / "left"), "--json", "--run-dir", out]) == 3
    verdict = json.loads(capsys.readouterr().out)
    assert verdict["culprits"] == [1]
    also = [one["text"] for one in verdict["evidence"] if one["kind"] == "also"]
    assert len(also) == 1
    assert "ValueError: bad sample" in also[0]


def test_what_it_made_of_files_is_judged_again_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its run folder lies below the working folder, and the same command finds it there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.log").write_text(f"{raised(0, 'ValueError: bad sample')}\n")
    assert invoke(["postmortem", "."]) == 3
    (made,) = (tmp_path / "hangcheck_runs").glob("2*")
    for again in (["postmortem", "."], ["postmortem", str(made)], ["merge", str(made)]):
        assert invoke(again) == 3, again
    assert capsys.readouterr().out.count("CRASHED  Rank 0 failed: ValueError: bad sample") == 4
    assert invoke(["postmortem", str(made), "job.log"]) == 3
    assert invoke(["watch", str(made)]) == 0, "it is over, and shown once"


def test_it_imports_no_torch(left: Path) -> None:
    program = (
        "import sys; from lightning_hangcheck.cli.main import invoke; "
        "code = invoke(['postmortem', 'logs', '--json']); "
        "print(code, {'torch', 'lightning'} & set(sys.modules), file=sys.stderr)"
    )
    assert run_python("-c", program, folder=left).stderr == "3 set()\n"


def test_full_records_of_64_ranks_take_seconds_at_most(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second on an idle machine; ten here, where tests share their processors."""
    world = {"0": list(range(RANKS))}
    entries = [did(number, ended=number < FULL_RING) for number in range(1, FULL_RING + 1)]
    for number in range(RANKS):
        kept = entries[: -1 if number == 40 else None]
        write(tmp_path / "dumps", {f"rank_{number}": dump(number, *kept, groups=world)})
    began = time.process_time()
    assert invoke(
        ["postmortem", str(tmp_path / "dumps"), "--json", "--run-dir", str(tmp_path / "a")]
    )
    took_s = time.process_time() - began
    assert msgspec.json.decode(capsys.readouterr().out)["culprits"] == [40]
    assert took_s < 10
