"""`hangcheck lint`: what it prints in each form, its exit codes, and its settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lightning_hangcheck.cli.main import invoke

GUILTY = """\
import torch.distributed as dist
from evaluation import evaluate

def main():
    if dist.get_rank() == 0:
        evaluate()
    dist.barrier()

main()
"""
EVALUATION = """\
from torch import distributed

def evaluate():
    return gather(1)

def gather(score):
    scores = [None]
    distributed.all_gather_object(scores, score)
    return scores
"""
WHERE = ("file", "line", "function")
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "train.py").write_text(GUILTY)
    (tmp_path / "evaluation.py").write_text(EVALUATION)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("project")
def test_text_underlines_the_call_and_shows_the_path(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["lint"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("train.py:6: HC101 error in main: one rank calls ")
    assert lines[1:3] == ["    evaluate()", "    ^^^^^^^^^^"]
    assert lines[3:7] == [
        "  path main (train.py:6)",
        "       -> evaluate (evaluation.py:4)",
        "       -> gather (evaluation.py:8)",
        "       -> all_gather_object of torch",
    ]
    assert lines[7].startswith("  do   move what main calls there out of the condition")
    assert lines[-1].startswith("1 error in 2 files")


@pytest.mark.usefixtures("project")
def test_json_is_the_object_of_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["lint", "train.py", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert list(report) == ["schema_version", "files", "seconds", "findings"]
    (finding,) = report["findings"]
    assert (report["schema_version"], report["files"]) == (1, 1)
    plain = ("HC101", "error", "train.py", 6, "main")
    assert tuple(finding.pop(name) for name in ("code", "severity", *WHERE)) == plain
    assert set(finding) == {"message", "path", "remedy", "see"}
    assert set(finding["remedy"]) == {"text", "command"}
    assert finding["path"][0] == "main (train.py:6)"


@pytest.mark.usefixtures("project")
def test_sarif_names_rule_and_region(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["lint", "--sarif"]) == 1
    log = json.loads(capsys.readouterr().out)
    (run,) = log["runs"]
    (result,) = run["results"]
    rules = run["tool"]["driver"]["rules"]
    assert (log["version"], result["level"]) == ("2.1.0", "error")
    assert rules[result["ruleIndex"]]["id"] == result["ruleId"] == "HC101"
    assert result["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": "train.py"},
        "region": {"startLine": 6, "startColumn": 9, "endColumn": 19},
    }


@pytest.mark.usefixtures("project")
def test_github_annotates_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["lint", "--github"]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("::error file=train.py,line=6,title=HC101::one rank calls ")


def test_what_cannot_be_read_is_said_and_the_rest_is_looked_at(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "broken.py").write_text("rank = (\n")
    assert invoke(["lint", ".", "absent.py"]) == 2
    output = capsys.readouterr()
    assert "train.py:6: HC101 error" in output.out
    assert [line.split(" is no ")[0] for line in output.err.splitlines()] == [
        "hangcheck: broken.py",
        "hangcheck: absent.py",
    ]


@pytest.mark.parametrize("content", [b"def f(:\n", b"\x7fELF\x02\x00", "x = 'ü'".encode("latin-1")])
def test_a_named_file_that_is_no_python_is_unusable(
    content: bytes, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where no word of it could have led to a finding."""
    (project / "notes.bin").write_bytes(content)
    assert invoke(["lint", "notes.bin"]) == 2
    assert capsys.readouterr().err.startswith("hangcheck: notes.bin ")


def test_deeply_nested_and_large_files_are_said(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "nested.py").write_text("rank = " + "(" * 500 + ")" * 500)
    (project / "large.py").write_text("rank = 1\n" + "#" * (3 << 20))
    assert invoke(["lint", "nested.py", "large.py"]) == 2
    assert capsys.readouterr().err.count("\n") == 2


def test_a_file_in_a_folder_is_named_as_imports_find_it(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "src").mkdir()
    (project / "train.py").rename(project / "src" / "train.py")
    assert invoke(["lint"]) == 1
    assert capsys.readouterr().out.startswith("src/train.py:6: HC101 error")


def test_nothing_found_is_exit_code_0(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["lint", "evaluation.py"]) == 0
    assert capsys.readouterr().out.startswith("0 errors in 1 file")
    (project / "pyproject.toml").write_text('[tool.hangcheck.lint]\nexclude = ["train.py"]\n')
    assert invoke(["lint"]) == 0


@pytest.mark.usefixtures("project")
def test_path_that_does_not_exist_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["lint", "nix"]) == 2
    said = "hangcheck: nix is no file or folder; name a Python file or a folder\n"
    assert capsys.readouterr() == ("", said)


def test_settings_of_the_project(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = project / "pyproject.toml"
    settings.write_text('[tool.hangcheck.lint]\nignore = ["HC1"]\n')
    assert invoke(["lint"]) == 0
    settings.write_text("[tool.hangcheck.lint]\nnotes = true\n")
    (project / "notes.py").write_text(
        "from torch import distributed as dist\n"
        "def step(batch):\n    if not batch: return\n    dist.all_reduce(batch)\n"
    )
    capsys.readouterr()
    assert invoke(["lint", "notes.py"]) == 1
    assert "HC202 note" in capsys.readouterr().out
    settings.write_text('[tool.hangcheck.lint]\nignored = ["HC1"]\n')
    assert invoke(["lint"]) == 2
    assert "`ignored`" in capsys.readouterr().err


@pytest.mark.usefixtures("project")
def test_notes_are_shown_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    Path("some.py").write_text(
        "from torch import distributed as dist\nif dist.get_rank() < 2: dist.barrier()\n"
    )
    assert invoke(["lint", "some.py"]) == 0
    assert invoke(["lint", "some.py", "--notes"]) == 1
    assert "HC101 note" in capsys.readouterr().out


def test_rule_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["lint", "--explain", "hc101"]) == 0
    assert "Why it hangs" in capsys.readouterr().out
    assert invoke(["lint", "--explain", "HC999"]) == 2


def test_corpus_healthy_programs_have_no_error_and_guilty_ones_are_flagged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Programs whose own code parts the ranks are found before they run, at least four of five."""
    cases = ROOT / "tests" / "hangbench" / "cases"
    invoke(["lint", str(cases), "--notes", "--json"])
    findings = json.loads(capsys.readouterr().out)["findings"]
    flagged = {Path(one["file"]).stem for one in findings}
    errors = {Path(one["file"]).stem for one in findings if one["severity"] == "error"}
    truths = {file.stem: file.read_text() for file in cases.glob("*.toml")}
    healthy = {name for name, truth in truths.items() if "culprits" not in truth}
    parted = {
        name
        for name, truth in truths.items()
        if any(cause in truth for cause in ("rank_diverged", "uneven_work"))
    }
    assert len(healthy) > 80
    assert len(parted) > 40
    assert errors & healthy == set()
    assert len(flagged & parted) >= 0.8 * len(parted)
