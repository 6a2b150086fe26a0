"""A SLURM cluster of two nodes on this machine: its daemons are ours, and end with the test."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from typing import TYPE_CHECKING

from processes import end, until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sinfo", "squeue", "scontrol", "scancel")
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
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
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
