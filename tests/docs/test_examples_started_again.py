"""The example jobs, started twice as their schedulers do it: training begins each time.

Only what they call of a cluster stands in for itself: srun starts a command once a node, and the
launchers say that they were started and wait until all nodes were.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from long_tests import LONG_TEST

from lightning_hangcheck.launch.folder import SCHEDULERS

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = list(LONG_TEST)
EXAMPLES = Path(__file__).parent.parent.parent / "docs" / "clusters" / "examples"
LONGEST_S = 240
LAUNCHER = """\
#!/bin/sh
echo "$0" >> started
for _ in $(seq 2000); do
  [ "$(wc -l < started)" -lt "$EXPECTED" ] || exit 0
  sleep 0.1
done
exit 9
"""
SRUN = """\
#!/bin/bash
while [ "${1#--}" != "$1" ]; do
  case $1 in --container-mounts=*,$PWD/runs:/runs) RUN=$PWD$RUN ;; esac
  shift
done
SLURM_NODEID=0 "$@" & first=$!
SLURM_NODEID=1 "$@" & second=$!
wait $first || exit
wait $second
"""
SLURM = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "node[0-1]", "SLURM_NNODES": "2"}


@pytest.fixture(autouse=True)
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs in place of a cluster's, and hangcheck as it is here."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    programs = {
        "hangcheck": f'#!/bin/sh\nexec {sys.executable} -m lightning_hangcheck "$@"\n',
        "scontrol": "#!/bin/sh\necho node0\necho node1\n",
        "srun": SRUN,
        "torchrun": LAUNCHER,
        "accelerate": LAUNCHER,
    }
    for name, program in programs.items():
        (bin_folder / name).write_text(program)
        (bin_folder / name).chmod(0o700)
    for name in (*SCHEDULERS, "SLURM_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", f"{bin_folder}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)


def start(*commands: Sequence[str], **environment: str) -> str:
    """Start a command of each node at once and say what they wrote; all nodes must train."""
    started = Path("started")
    before = len(started.read_text().splitlines()) if started.exists() else 0
    given = {**os.environ, **environment, "EXPECTED": str(before + 2)}
    nodes = [
        subprocess.Popen(command, env=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for command in commands
    ]
    said = "".join(node.communicate(timeout=LONGEST_S)[0].decode() for node in nodes)
    assert [node.returncode for node in nodes] == [0] * len(commands), said
    assert len(started.read_text().splitlines()) == before + 2, said
    return said


def folders() -> list[str]:
    """All run folders so far, below the one for all runs."""
    return sorted(str(file.parent.relative_to("runs")) for file in Path("runs").rglob("run.json"))


def of_two_nodes(*runs: str) -> list[str]:
    return sorted(folder for run in runs for folder in (run, f"{run}/node-1"))


@pytest.mark.parametrize("name", ["torchrun", "pyxis"])
def test_a_job_that_slurm_requeues_trains_again(name: str) -> None:
    job = ["bash", str(EXAMPLES / "slurm" / f"{name}.sbatch")]
    start(job, **SLURM)
    start(job, **SLURM, SLURM_RESTART_COUNT="1")
    assert folders() == of_two_nodes("4711-0", "4711-1")
    said = start(job, **SLURM, SLURM_RESTART_COUNT="1")
    assert folders() == of_two_nodes("4711-0", "4711-1", "4711-1/start-2")
    assert said.count("already holds a run; this one is kept in") == 2


def test_a_callback_in_a_job_that_slurm_requeues_gets_another_folder(tmp_path: Path) -> None:
    told = Path("told")
    (tmp_path / "bin" / "python").write_text('#!/bin/sh\necho "$HANGCHECK_RUN_DIR" >> told\n')
    (tmp_path / "bin" / "python").chmod(0o700)
    job = ["bash", str(EXAMPLES / "slurm" / "lightning.sbatch")]
    for count in ({}, {"SLURM_RESTART_COUNT": "1"}):
        subprocess.run(job, env={**os.environ, **SLURM, **count}, timeout=LONGEST_S, check=True)
    assert told.read_text().splitlines() == [
        f"{tmp_path}/runs/4711-{count}" for count in (0, 0, 1, 1)
    ]


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("pytorchjob", "RANK"),
        ("jobset", "JOB_COMPLETION_INDEX"),
    ],
)
def test_pods_that_are_started_again_train_again(name: str, number: str, tmp_path: Path) -> None:
    (script,) = {*_scripts(EXAMPLES / "kubernetes" / f"{name}.yaml")}
    on_volume = script.replace("/runs/", f"{tmp_path}/runs/")
    pods = [["env", f"{number}={node}", "bash", "-c", on_volume] for node in "01"]
    given = {
        "KUBERNETES_SERVICE_HOST": "10.0.0.1",
        "MASTER_ADDR": "train-master-0",
        "MASTER_PORT": "23456",
        "RUN": "one",
    }
    start(*pods, **given)
    (run,) = {folder.partition("/")[0] for folder in folders()}
    assert folders() == of_two_nodes(run)
    start(*pods, **given)
    assert folders() == of_two_nodes(run, f"{run}/start-2")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("accelerate-node", ("node0", "{node}")),
        ("torchrun-elastic", ("node0",)),
    ],
)
def test_nodes_that_are_started_by_hand_share_the_run_that_is_named(
    name: str, words: Sequence[str]
) -> None:
    """An elastic job numbers no node beforehand: the first to come takes the folder."""
    script = ["bash", str(EXAMPLES / "launchers" / f"{name}.sh")]
    for run in ("one", "two"):
        start(*([*script, *(one.format(node=node) for one in words), run] for node in "01"))
        first, second = (folder for folder in folders() if folder.startswith(run))
        assert first == run
        assert second.startswith(f"{run}/node-")


def _scripts(manifest: Path) -> list[str]:
    """What the containers of a manifest run."""

    def below(part: Any) -> list[str]:
        if isinstance(part, dict):
            within = [script for value in part.values() for script in below(value)]
            return [*part.get("args", []), *within]
        return [script for one in part for script in below(one)] if isinstance(part, list) else []

    return below(pytest.importorskip("yaml").safe_load(manifest.read_text()))
