"""`hangcheck ledger`: its totals in each form, and whether a phase must run."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path

import pytest
from ledger.lines import begun, discarded, ended, run
from msgspec.structs import replace

from lightning_hangcheck.cli.main import invoke
from lightning_hangcheck.ledger import ledger_file
from lightning_hangcheck.ledger.ledger_file import fingerprint
from lightning_hangcheck.ledger.spending import Stall

STALL = Stall(
    verdict="hang", cause="file_lock", phase="model_load", seconds=1800, rank_hours=1.0,
    explained=True, summary="rank 0 waits for a lock",
)  # fmt: skip


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").write_text("1")
    (tmp_path / "last.ckpt").write_text("weights")
    path = tmp_path / "hangcheck_runs" / "ledger.jsonl"
    data, made = fingerprint("data"), fingerprint("last.ckpt")
    for line in (
        begun("a", "train", data), ended("a", made, val_acc=0.6), discarded("a", "poor"),
        begun("b", "train", data), ended("b", made, val_acc=0.91),
        run("7b", loading_s=7200.0), replace(run("70b", STALL), offloaded=("parts on cpu",)),
    ):  # fmt: skip
        ledger_file.append(path, line)
    return path


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert invoke(["ledger", *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.usefixtures("ledger")
def test_the_table_shows_phases_runs_and_stalls_with_their_cost(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = printed(capsys, "--price", "A100=1.5/h")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "phases, 6.00 in all" in lines
    assert (
        "2026-11-20 10:00:00 train discarded 1 h 00 min 2 50% 3.00 val_acc 0.6 c0ffee poor" in lines
    )
    assert "2026-11-20 10:00:00 70b finished 2 h 00 min 2 50% 6.00 torchrun train.py" in lines
    stall = "70b hang file_lock 30 min 00 s 1 h 00 min 1.50 rank 0 waits for a lock"
    assert stall in lines
    assert "7b 2 h 00 min loader-bound: 50% of the time in dataloading" in lines
    assert (
        "70b 2 h 00 min waiting: 30 min 00 s stalled (file_lock); offloaded: parts on cpu" in lines
    )


@pytest.mark.usefixtures("ledger")
def test_json_and_csv_hold_the_same_numbers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The price may come from the environment, too."""
    totals = json.loads(printed(capsys, "--price", "1/h", "--json"))
    monkeypatch.setenv("HANGCHECK_PRICE", "1/h")
    rows = list(csv.DictReader(io.StringIO(printed(capsys, "--csv"))))
    assert [float(row["cost"]) for row in rows] == [
        row["cost"] for row in (*totals["phases"], *totals["runs"])
    ]
    assert [row["name"] for row in rows] == ["train", "train", "7b", "70b"]
    assert (totals["phases_cost"], totals["runs_cost"]) == (4.0, 8.0)


@pytest.mark.usefixtures("ledger")
def test_markdown_holds_the_same_tables(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "--price", "1/h", "--markdown").splitlines()
    assert (lines[0], lines[2]) == ("# Experiment log", "## phases, 4.00 in all")
    widths = {line.replace("\\|", "").count("|") for line in lines[4:8]}
    assert len(widths) == 1
    assert any(line.startswith("| 70b |") for line in lines)


@pytest.mark.usefixtures("ledger")
def test_a_chart_is_a_picture(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    assert printed(capsys, "--price", "1/h", "--chart", "costs.png") == "drawn: costs.png\n"
    assert Path("costs.png").read_bytes().startswith(b"\x89PNG")
    assert invoke(["ledger", "--chart", "no folder/costs.png"]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_a_chart_without_matplotlib_says_what_to_install(
    ledger: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert invoke(["ledger", "--chart", "costs.png"]) == 2
    assert "; pip install 'lightning-hangcheck[plots]'" in capsys.readouterr().err
    assert not (ledger.parent.parent / "costs.png").exists()


@pytest.mark.usefixtures("ledger")
def test_runs_and_phases_are_shown_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "--price", "1/h", "compare", "7b", "train")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert {"name 7b train", "time 2 h 00 min 1 h 00 min", "cost 4.00 2.00"} <= set(lines)


def test_a_phase_is_checked_by_its_metric_and_its_files(
    ledger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["ledger", "check", "train"]) == 0
    assert capsys.readouterr().out == "reuse: phase train: val_acc 0.91 is good (from 0.85)\n"
    Path("data").write_text("22")
    assert invoke(["ledger", "--price", "1/h", "check", "train"]) == 3
    said = capsys.readouterr().out
    assert said.startswith("ask: phase train: ")
    assert "rerun  1 h 00 min, price 2.00" in said
    ledger_file.append(ledger, ended("b", fingerprint("last.ckpt"), **{"acc\x1b[2J\n": 0.91}))
    assert invoke(["ledger", "check", "train"]) == 3
    assert "reuse  what it made (acc\\x1b[2J\\n 0.91)" in capsys.readouterr().out
    assert "acc\\x1b[2J =0.91" in printed(capsys, "--csv")
    ledger_file.append(ledger, discarded("b", "no good"))
    assert invoke(["ledger", "check", "train"]) == 1
    assert capsys.readouterr().out == "run: phase train: it is not done yet\n"


@pytest.mark.usefixtures("ledger")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--ledger", "none.jsonl"], "there is no ledger"),
        (["check", "dream"], "the ledger has no phase dream; it has train"),
        (["--json", "check", "train"], "leave out one of both: hangcheck ledger --json"),
        (["compare", "7b", "dream"], "has no run or phase dream; it has 70b, 7b, train"),
    ],
)
def test_what_is_typed_wrong_is_one_sentence(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["ledger", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
