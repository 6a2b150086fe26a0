"""`hangcheck merge` on run folders of two nodes, and on folders that cannot be merged."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import msgspec
import pytest
from cases import IN_BARRIER, IN_LOAD, job, rank

from lightning_hangcheck.cli.main import invoke
from lightning_hangcheck.judge import judge
from lightning_hangcheck.model.run import RankPlace, Round, RunRecord
from lightning_hangcheck.model.verdict import Verdict
from lightning_hangcheck.observe.run_record import save_run
from lightning_hangcheck.rundir import RunFolder


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run folders of two nodes: rank 3 on the second one holds the others up."""
    monkeypatch.chdir(tmp_path)
    facts = {"world_size": 4, "local_world_size": 2, "nnodes": 2}
    views = [rank(0, IN_BARRIER), rank(1, IN_BARRIER), rank(2, IN_BARRIER), rank(3, IN_LOAD)]
    for number in (0, 1):
        here = [
            msgspec.structs.replace(view, host=f"node{number}")
            for view in views[2 * number : 2 * number + 2]
        ]
        case = job(*here, **facts)
        save_run(case, judge(case), (), RunFolder(tmp_path / f"node{number}-run"))
    return ["node0-run", "node1-run"]


def refused(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 2) -> str:
    """The one line with which a merge is refused."""
    assert invoke(["merge", *arguments]) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    return said.err


def test_two_nodes_give_one_verdict(nodes: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["merge", *nodes, "--run-dir", "whole"]) == 3
    verdict = msgspec.json.decode(Path("whole/verdict.json").read_bytes(), type=Verdict)
    assert capsys.readouterr().out.startswith("HANG  rank 3 ")
    assert (verdict.culprits, verdict.victims, verdict.run_id) == ((3,), (0, 1, 2), "whole")
    assert Path("whole/evidence/1/case.json").is_file()
    record = msgspec.json.decode(Path("whole/run.json").read_bytes(), type=RunRecord)
    assert record.nodes == ("node0", "node1")
    assert invoke(["report", "whole"]) == 0
    assert invoke(["merge", "whole", "--run-dir", "again"]) == 3


def test_a_folder_that_all_nodes_were_given_is_not_missed_where_it_holds_theirs_alone(
    nodes: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """On a disk of its own the second node keeps its run in node-1 of the folder that it got."""
    Path("own").mkdir()
    Path(nodes[1]).rename("own/node-1")
    assert invoke(["merge", nodes[0], "own", "--run-dir", "whole"]) == 3
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("node0-run ./node1-run {here}/node0-run", "is named twice"),
        ("node0-run node7-run", "node7-run is no folder"),
        ("node0-run node1-run --run-dir node0-run", "already holds a run"),
    ],
)
@pytest.mark.usefixtures("nodes")
def test_folders_that_cannot_be_meant_are_refused(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused(capsys, *words.format(here=Path.cwd()).split())


def spoiled(folder: str, how: str) -> None:
    """Make the evidence of a folder one that cannot be used."""
    case = Path(folder) / "evidence" / "1" / "case.json"
    if how == "none":
        shutil.rmtree(case.parent.parent)
    elif how == "torn":
        case.write_bytes(case.read_bytes()[:200])
    elif how == "ranges":
        told = msgspec.json.decode(case.read_bytes())
        case.write_bytes(msgspec.json.encode(told | {"alike": [{"rank": 2, "ranks": "9-2"}]}))
    elif how == "newer":
        case.write_text('{"schema_version": 2}')
    else:
        case.unlink()
        os.mkfifo(case)


SPOILED = {
    "none": "node1-run holds no evidence; name a folder that hangcheck attach wrote",
    "torn": "case.json cannot be read: ",
    "ranges": "'9-2' is not an ascending range of ranks",
    "newer": "has schema_version 2; this version reads 1; install",
    "fifo": "it is a FIFO, not a file",
}


@pytest.mark.parametrize("how", SPOILED)
def test_a_folder_that_cannot_be_used_is_left_out_and_said(
    how: str, nodes: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Of many nodes one may have written what nobody can read: the others' verdict stands."""
    spoiled("node1-run", how)
    assert invoke(["merge", *nodes, "--run-dir", "whole"]) == 0
    said = capsys.readouterr()
    assert said.err.startswith("hangcheck: left out: ")
    assert said.err.count("\n") == 1
    assert SPOILED[how] in said.err
    verdict = msgspec.json.decode(Path("whole/verdict.json").read_bytes(), type=Verdict)
    assert verdict.verdict not in ("hang", "dead", "crashed")
    assert {"ranks 2-3", f"run folder {Path.cwd()}/node1-run"} == {gap.what for gap in verdict.gaps}


@pytest.mark.parametrize("how", SPOILED)
def test_folders_of_which_none_can_be_used_are_refused(
    how: str, nodes: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    spoiled("node0-run", how)
    spoiled("node1-run", how)
    said = refused(capsys, *nodes, code=4)
    assert SPOILED[how].replace("node1", "node0").split(";")[0] in said
    assert "(and none of 1 more can be used)" in said


def test_older_evidence_stands_in_for_what_was_not_finished(nodes: list[str]) -> None:
    Path("node1-run/evidence/2").mkdir()
    assert invoke(["merge", *nodes, "--run-dir", "whole"]) == 3
    verdict = msgspec.json.decode(Path("whole/verdict.json").read_bytes(), type=Verdict)
    assert [gap.why for gap in verdict.gaps] == ["it was not finished"]


def elastic_node(folder: str, host: str, number: int, rounds: dict[int, tuple[int, ...]]) -> None:
    """A node that was in these rounds; its newest evidence is of the last of them."""
    newest = max(rounds)
    places = {
        round: tuple(RankPlace(rank=one, host=host, pid=100 + one) for one in ranks)
        for round, ranks in rounds.items()
    }
    told = tuple(
        Round(number=round, started_at=f"2026-11-20T10:{10 * round:02}:00Z", ranks=ranks)
        for round, ranks in places.items()
    )
    views = [
        msgspec.structs.replace(rank(one, IN_LOAD if one == number else IN_BARRIER), host=host)
        for one in rounds[newest]
    ]
    case = job(*views, world_size=2, local_world_size=1, nnodes=2, round=newest)
    case = msgspec.structs.replace(case, taken_at=f"2026-11-20T10:{10 * newest + 5:02}:00Z")
    run = RunFolder(Path(folder).absolute())
    save_run(case, judge(case), (), run, told)
    for round, ranks in rounds.items():
        for one in ranks:
            at = f"2026-11-20T10:{10 * round:02}:01.000000Z"
            line = {"at": at, "pid": 100 + one, "kind": "start", "host": host}
            with run.journal(one, 0).open("ab") as journal:
                journal.write(msgspec.json.encode(line) + b"\n")


def test_nodes_that_were_replaced_are_the_history_of_the_newest_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 moved from a to b to c; what a saw of it is none of the newest verdict."""
    monkeypatch.chdir(tmp_path)
    elastic_node("a", "a", 0, {0: (0,)})
    elastic_node("b", "b", 1, {0: (1,), 1: (0,), 2: (1,)})
    elastic_node("c", "c", 1, {2: (0,)})
    assert invoke(["merge", "a", "b", "c", "--run-dir", "whole"]) == 3
    verdict = msgspec.json.decode(Path("whole/verdict.json").read_bytes(), type=Verdict)
    assert (verdict.verdict, verdict.culprits, verdict.victims) == ("hang", (1,), (0,))
    assert [(one.rank, one.host) for one in verdict.ranks] == [(0, "c"), (1, "b")]
    assert [gap.what for gap in verdict.gaps] == [f"run folder {tmp_path / 'a'}"]
    record = msgspec.json.decode(Path("whole/run.json").read_bytes(), type=RunRecord)
    assert [[place.host for place in one.ranks] for one in record.rounds] == [
        ["a", "b"],
        ["b"],
        ["c", "b"],
    ]
    lines = Path("whole/ranks/rank-0.jsonl").read_bytes().splitlines()
    assert [msgspec.json.decode(line)["host"] for line in lines] == ["a", "b", "c"]


def test_nodes_that_count_their_rounds_apart_are_joined_where_they_were_seen_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They did not hear each other: one that came in the second round counts it as its first."""
    monkeypatch.chdir(tmp_path)
    elastic_node("b", "b", 1, {0: (0,), 1: (1,)})
    elastic_node("c", "c", 1, {0: (0,)})
    evidence = Path("c/evidence/1/case.json")
    evidence.write_text(evidence.read_text().replace("T10:05:00Z", "T10:15:00Z"))
    assert invoke(["merge", "b", "c", "--run-dir", "whole"]) == 3
    verdict = msgspec.json.decode(Path("whole/verdict.json").read_bytes(), type=Verdict)
    assert (verdict.culprits, verdict.victims) == ((1,), (0,))


def test_a_file_among_the_folders_is_left_out_and_said(
    nodes: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """``hangcheck merge hangcheck_runs/*`` names the ledger as well."""
    Path("ledger.jsonl").write_text("{}\n")
    assert invoke(["merge", *nodes, "ledger.jsonl", "--run-dir", "whole"]) == 3
    said = capsys.readouterr()
    assert said.out.startswith("HANG  rank 3 ")
    assert said.err == "hangcheck: left out: ledger.jsonl is a file, not a run folder\n"


def test_a_verdict_whose_folder_cannot_be_written_is_kept_where_the_line_says(
    nodes: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert invoke(["merge", *nodes, "--run-dir", "file"]) == 3
    said = capfd.readouterr()
    kept = re.search(r"this run is kept in (\S+) instead", said.err)
    assert f"hangcheck report {kept[1]}" in said.out
    assert invoke(["report", kept[1]]) == 0
    shutil.rmtree(kept[1])
