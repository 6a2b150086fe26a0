"""A real SLURM of two nodes on this machine: its nodes meet, and a later step looks at a job.

The daemons are ours, and end with the tests.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from long_tests import WHEN_ASKED_FOR
from processes import PROGRAMS, end, ending, until
from watch.launched import python, run_words, verdict_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

DAEMONS = ("munged", "slurmctld", "slurmd", "srun", "sinfo", "squeue", "scontrol", "scancel")
UP_WITHIN_S = 60.0
CONFIGURATION = """\
ClusterName=hangcheck
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmdSpoolDir={folder}/%n
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SchedulerType=sched/builtin
SelectType=select/cons_res
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
KillWait=2
NodeName=hcnode0 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs={cpus}
NodeName=hcnode1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs={cpus}
PartitionName=all Nodes=ALL Default=YES State=UP
"""


def missing() -> str:
    """Why there can be no cluster here, in one sentence; empty if there can."""
    absent = [name for name in DAEMONS if shutil.which(name) is None]
    if absent:
        return f"no {', '.join(absent)} here: apt-get install slurmctld slurmd slurm-client munge"
    return "" if os.geteuid() == 0 else "slurmd starts tasks as root only"


class SlurmCluster:
    """Two virtual nodes, hcnode0 and hcnode1, with ports, keys and folders of their own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._daemons: list[subprocess.Popen[bytes]] = []
        configuration = folder / "slurm.conf"
        configuration.write_text(
            CONFIGURATION.format(
                folder=folder, host=socket.gethostname(), ports=_ports(3), cpus=os.cpu_count() or 1
            )
        )
        self.environment = {
            **{name: value for name, value in os.environ.items() if name[:5] != "SLURM"},
            "SLURM_CONF": str(configuration),
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            "MASTER_ADDR": "127.0.0.1",
            "GLOO_SOCKET_IFNAME": "lo",
        }

    def start(self) -> None:
        """Start the daemons, and wait until both nodes may be used."""
        munge = self._folder / "munge"
        munge.mkdir(mode=0o700)
        (munge / "key").write_bytes(os.urandom(128))
        (munge / "key").chmod(0o600)
        names = {
            name: f"{munge}/{name}" for name in ("socket", "log-file", "pid-file", "seed-file")
        }
        places = [f"--{name}={place}" for name, place in names.items()]
        self._start("munged", "--foreground", "--force", f"--key-file={munge}/key", *places)
        until((munge / "socket").exists, "munged to answer", seconds=UP_WITHIN_S)
        self._start("slurmctld", "-D", "-c")
        for node in ("hcnode0", "hcnode1"):
            self._start("slurmd", "-D", "-c", "-N", node)
        until(self._is_up, "both nodes to be idle", seconds=UP_WITHIN_S)

    def srun(self, words: Sequence[str], said: Path) -> subprocess.Popen[bytes]:
        """Start one task on each node."""
        with said.open("wb") as output:
            return subprocess.Popen(
                ["srun", "-N2", "--ntasks-per-node=1", *words],
                env=self.environment,
                cwd=said.parent,
                stdout=output,
                stderr=output,
            )

    def ask(self, *words: str) -> str:
        """Run one of SLURM's programs and return what it prints."""
        done = subprocess.run(
            words, env=self.environment, check=False, capture_output=True, text=True, timeout=120
        )
        return done.stdout

    def end(self) -> None:
        """End all jobs, then the daemons."""
        for job in self.ask("squeue", "-h", "-o", "%i").split():
            self.ask("scancel", "--signal=KILL", job)
        until(lambda: not self.ask("squeue", "-h"), "the jobs to end", seconds=UP_WITHIN_S)
        for daemon in reversed(self._daemons):
            end(daemon)

    def _is_up(self) -> bool:
        return self.ask("sinfo", "-h", "-o", "%t %D").strip() == "idle 2"

    def _start(self, *words: str) -> None:
        with (self._folder / f"{words[0]}-{len(self._daemons)}.log").open("wb") as log:
            daemon = subprocess.Popen(list(words), env=self.environment, stdout=log, stderr=log)
        self._daemons.append(daemon)


def _ports(count: int) -> list[int]:
    """Free ports, all held until the last is found."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    found = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return found


pytestmark = pytest.mark.real
LONGEST_S = 120.0
TRAINING = [sys.executable, str(PROGRAMS / "slurm_training.py")]
NAMED = "--job-name=train"  # Lightning takes jobs called `bash` for a shell


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    why_not = missing()
    if why_not:
        pytest.skip(why_not)
    found = SlurmCluster(tmp_path_factory.mktemp("slurm"))
    try:
        found.start()
        yield found
    finally:
        found.end()


@WHEN_ASKED_FOR
def test_the_stalled_rank_of_another_node_is_named_by_all_and_all_nodes_end(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    options = ("--stall-timeout", "8", "--on-hang", "abort", "--set", "abort_grace=2")
    words = run_words([*TRAINING, "1"], *options)
    step = cluster.srun([NAMED, *words], tmp_path / "said")
    with ending(step):
        assert step.wait(LONGEST_S) == 75, (tmp_path / "said").read_text()
    first, second = (verdict_of(tmp_path / one) for one in ("run", "run/node-1"))
    assert (first.verdict, first.culprits, first.victims) == ("hang", (1,), (0,))
    assert (second.verdict, second.culprits) == ("hang", (1,))
    assert (first.world_size, first.nnodes) == (2, 2)
    assert "stand_still" in first.summary


@WHEN_ASKED_FOR
def test_a_step_that_overlaps_sees_the_ranks_of_its_job_and_no_others(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    """Another job of the same program runs beside it: SLURM says which processes are whose."""
    sleeping = python("import time; print('here', flush=True); time.sleep(1000)")
    files = [tmp_path / f"job{number}" for number in range(2)]
    steps = [cluster.srun([NAMED, *sleeping], said) for said in files]
    try:
        for said in files:
            until(lambda said=said: said.read_text().count("\n") == 2, "all tasks")
        job = cluster.ask("squeue", "-h", "-o", "%i").split()[0]
        tasks = [cluster.ask("scontrol", "listpids", job, f"hcnode{node}") for node in range(2)]
        pids = {int(row.split()[0]) for table in tasks for row in table.splitlines()[1:]}
        look = ["--overlap", f"--jobid={job}", sys.executable, "-m", "lightning_hangcheck"]
        visit = cluster.srun([*look, "attach", "--run-dir", "look"], tmp_path / "look-said")
        visit.wait(LONGEST_S)
    finally:
        for step in steps:
            end(step)
    folders = [tmp_path / "look", tmp_path / "look" / "node-1"]
    assert {rank.pid for one in folders for rank in verdict_of(one).ranks} == pids
    assert len(pids) == 2
