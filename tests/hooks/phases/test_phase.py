"""`hc.phase` in real programs: what is kept, what is reused, and what is not in training's way."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from hooks.launching import start_job
from processes import PROGRAMS, run_python

import lightning_hangcheck as hc
from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.ledger import ledger_file

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

PROGRAM = str(PROGRAMS / "phases.py")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "raw.txt").write_text("a\n")
    return tmp_path


def run(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    ours = {**os.environ, "HANGCHECK_CONSOLE": "off", **environment}
    return run_python(*words, folder=folder, environment=ours)


def ran(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run(folder, PROGRAM, *arguments, **environment)


def in_folder(folder: Path, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a few lines whose phases are all there is to them."""
    return run(folder, "-c", f"import os, lightning_hangcheck as hc\n{code}", **environment)


def history(folder: Path) -> ledger_file.History:
    return ledger_file.read(folder / "hangcheck_runs" / "ledger.jsonl")


def test_phases_are_kept_with_what_they_were_made_from(folder: Path) -> None:
    assert ran(folder, "rerun", "0.91").returncode == 0
    prepare, train = history(folder).phases
    assert (prepare.name, prepare.status, prepare.metrics) == ("prepare", "done", {"rows": 0.95})
    assert [one.path for one in prepare.inputs] == [str(folder / "raw.txt")]
    assert [one.how for one in train.outputs] == ["its whole content"]
    assert train.metric == ("val_acc", 0.91)
    assert train.place.host == os.uname().nodename
    assert train.duration_s is not None
    assert train.duration_s >= 0
    state = json.loads((folder / "hangcheck_runs" / "state.json").read_text())
    assert [one["name"] for one in state["phases"]] == ["prepare", "train"]


def test_what_is_done_is_reused_until_its_input_changes(folder: Path) -> None:
    ran(folder, "reuse", "0.9")
    again = ran(folder, "reuse", "0.9")
    assert "prepare False" in again.stdout
    assert "phase prepare is reused, made 20" in again.stderr
    assert history(folder).phases[0].reused == 1
    (folder / "raw.txt").write_text("b\n")
    changed = ran(folder, "reuse", "0.9")
    assert "prepare True" in changed.stdout
    assert "raw.txt has changed (known by its whole content)" in changed.stderr
    refused = ran(folder, "error", "0.9")
    assert refused.returncode == 1
    assert "PhaseDone: phase prepare is done since" in refused.stderr


PIPELINE = """
from pathlib import Path
with hc.phase("prepare", inputs={inputs}, outputs=["data.txt"], if_done={if_done!r}) as prepare:
    if prepare.needed:
        Path("data.txt").write_text({content!r})
with hc.phase(
    "train", inputs=["data.txt"], outputs=["model.txt"], metric="fidelity", if_done="ask"
) as train:
    if train.needed:
        Path("model.txt").write_text({fidelity!r})
        train.metric("fidelity", {fidelity!r})
"""


@pytest.mark.parametrize(("if_done", "inputs"), [("rerun", "[]"), ("reuse", "['raw.txt']")])
def test_work_that_wants_to_be_asked_about_is_neither_made_stale_nor_overwritten_unasked(
    folder: Path, if_done: str, inputs: str
) -> None:
    def pipeline(content: str, fidelity: str, **told: str) -> tuple[int, str, str, str]:
        code = PIPELINE.format(content=content, fidelity=fidelity, if_done=if_done, inputs=inputs)
        done = in_folder(folder, code, **told)
        made = [(folder / name).read_text() for name in ("data.txt", "model.txt")]
        return done.returncode, *made, done.stderr

    assert pipeline("first", "0.9")[:3] == (0, "first", "0.9")
    (folder / "raw.txt").write_text("other\n")
    *asked, said = pipeline("second", "0.5")
    assert asked == [3, "first", "0.9"]
    assert "train rests on it\n" in said
    assert "becomes stale:\n         train (fidelity 0.9), " in said
    assert "nobody is here to answer; HANGCHECK_IF_DONE=" in said

    changed = PIPELINE.format(content="third", fidelity="0", if_done="rerun", inputs=inputs)
    assert in_folder(folder, changed, HANGCHECK_IF_DONE="reuse").returncode == 0
    assert history(folder).phases[1].stale == "prepare, which it rests on, was run again"
    *asked, said = pipeline("third", "0.5")
    assert asked == [3, "third", "0.9"]
    assert "phase train: " in said
    assert "reuse  what it made (fidelity 0.9)" in said
    assert pipeline("third", "0.8", HANGCHECK_IF_DONE="rerun")[:3] == (0, "third", "0.8")


def test_a_phase_that_is_killed_is_interrupted_with_the_metrics_that_it_told(folder: Path) -> None:
    program = start_job(folder, "phases.py", "rerun", "0.4", "wait", environment={})
    while (line := program.stdout.readline()) and line != "waiting\n":
        pass
    assert history(folder).phases[1].status == "running"
    state = json.loads((folder / "hangcheck_runs" / "state.json").read_text())
    assert "metrics" not in state["phases"][1], "a metric is a line, however long the ledger is"
    program.kill()
    program.communicate(timeout=120)
    prepare, train = history(folder).phases
    assert (prepare.status, train.status, train.metrics) == (
        "done", "interrupted", {"val_acc": 0.4},
    )  # fmt: skip


def test_a_full_disk_does_not_stop_training(folder: Path) -> None:
    """The size limit of files fails a write as a full disk does, after a part of the line."""
    code = (
        "import resource, runpy, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500));"
        f"sys.argv[1:] = ['rerun', '0.9']; runpy.run_path({str(PROGRAM)!r})"
    )
    done = run(folder, "-c", code)
    assert (done.returncode, done.stderr.count("the ledger")) == (0, 1), done.stderr
    assert history(folder).phases[0].name == "prepare"
    assert (folder / "hangcheck_runs" / "ledger.jsonl").stat().st_size == 1500


def test_all_ranks_do_what_the_first_decides_and_only_it_writes(folder: Path) -> None:
    ran(folder, "reuse", "0.9")
    torchrun = ("-m", "torch.distributed.run", "--nproc_per_node=2", "--master_port=0")
    done = run(folder, *torchrun, PROGRAM, "reuse", "0.9")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("prepare False") == 2
    phases = history(folder).phases
    assert [(one.name, one.place.ranks) for one in phases] == [
        ("prepare", 1),
        ("train", 1),
        ("train", 2),
    ]


def test_an_option_that_cannot_be_used_is_one_sentence() -> None:
    with pytest.raises(BadUsage, match="is none of rerun, reuse, ask, error"):
        hc.phase("train", if_done="maybe")  # type: ignore[arg-type]
    with pytest.raises(BadUsage, match=r"poor=0\.9 is above good=0\.8"):
        hc.phase("train", good=0.8, poor=0.9)


FOUR_PHASES = """
for if_done in ("rerun", "reuse", "ask", "error"):
    with hc.phase("train", inputs=[data], outputs=["last.ckpt"], if_done=if_done) as train:
        train.metric("acc", 1.0)
    assert train.needed
print("trained")
"""


def test_what_the_disk_refuses_is_said_once_and_training_goes_on(folder: Path) -> None:
    gone = "os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone'); data = 'raw.txt'"
    done = in_folder(folder, f"{gone}\n{FOUR_PHASES}")
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    assert done.stderr.count("writing the ledger") == 1, done.stderr
