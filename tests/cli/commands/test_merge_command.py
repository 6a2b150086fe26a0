"""`hangcheck merge` on run folders of two nodes, and on folders that cannot be merged."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest
from cases import IN_BARRIER, IN_LOAD, job, rank

from lightning_hangcheck.cli.main import invoke
from lightning_hangcheck.diagnosis import judge
from lightning_hangcheck.model.run import RunRecord
from lightning_hangcheck.model.verdict import Verdict
from lightning_hangcheck.observe.saving import save_run
from lightning_hangcheck.rundir.layout import RunFolder


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


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line with which a merge is refused."""
    assert invoke(["merge", *arguments]) == 2
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


def test_what_was_merged_can_be_reported_and_merged_again(nodes: list[str]) -> None:
    assert invoke(["merge", *nodes, "--run-dir", "whole"]) == 3
    assert invoke(["report", "whole"]) == 0
    assert invoke(["merge", "whole", "--run-dir", "again"]) == 3


def test_nothing_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert "merge needs the run folders" in refused(capsys)


def test_a_folder_named_twice(nodes: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, nodes[0], f"./{nodes[1]}", f"{Path.cwd()}/{nodes[0]}")
    assert "is named twice" in said


def test_a_folder_that_is_not_there(nodes: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert "node7-run is no folder" in refused(capsys, nodes[0], "node7-run")


def test_a_folder_without_evidence(nodes: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree("node1-run/evidence")
    assert "node1-run holds no evidence; name a folder" in refused(capsys, *nodes)


def test_evidence_that_is_torn(nodes: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    case = Path("node1-run/evidence/1/case.json")
    case.write_bytes(case.read_bytes()[:200])
    assert "case.json cannot be read" in refused(capsys, *nodes)


def test_older_evidence_stands_in_for_what_was_not_finished(nodes: list[str]) -> None:
    Path("node1-run/evidence/2").mkdir()
    assert invoke(["merge", *nodes, "--run-dir", "whole"]) == 3
    verdict = msgspec.json.decode(Path("whole/verdict.json").read_bytes(), type=Verdict)
    assert [gap.why for gap in verdict.gaps] == ["it was not finished"]


def test_evidence_of_a_newer_version(nodes: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("node1-run/evidence/1/case.json").write_text('{"schema_version": 2}')
    assert "has schema_version 2; this version reads 1" in refused(capsys, *nodes)


def test_a_used_folder_for_the_result(nodes: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert "already holds a run" in refused(capsys, *nodes, "--run-dir", nodes[0])
