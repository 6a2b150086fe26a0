"""What is asked about the launch."""

from __future__ import annotations

from typing import Final

from lightning_hangcheck.doctor.launching.interfaces import interface_chosen
from lightning_hangcheck.doctor.launching.meeting_point import address_resolves, port_usable
from lightning_hangcheck.doctor.launching.strategy import script_parses, strategy_named
from lightning_hangcheck.doctor.launching.time_left import time_left
from lightning_hangcheck.doctor.launching.variables import slurm_agrees, variables_agree
from lightning_hangcheck.doctor.question import Question

GROUP: Final = "launch"
LAUNCH = (
    Question(
        GROUP,
        "launch variables",
        "RANK, LOCAL_RANK, WORLD_SIZE and LOCAL_WORLD_SIZE of this shell",
        "a rank with a wrong number, or a process that takes itself for a rank, waits for ranks "
        "that never come",
        variables_agree,
    ),
    Question(
        GROUP,
        "SLURM tasks",
        "SLURM_NTASKS and SLURM_NTASKS_PER_NODE beside the command and its --devices",
        "Lightning takes the world size from SLURM, and waits for as many ranks",
        slurm_agrees,
    ),
    Question(
        GROUP,
        "time left",
        "SLURM_JOB_END_TIME, and earlier runs of this command in the ledger",
        "a job that is cut off loses what it did since its last checkpoint",
        time_left,
    ),
    Question(
        GROUP,
        "master address",
        "MASTER_ADDR, or the launcher's option in its place, as this machine resolves it",
        "ranks that look for the first one in another place wait until the rendezvous times out",
        address_resolves,
    ),
    Question(
        GROUP,
        "master port",
        "the port at which ranks will meet: who listens there, or whether it answers",
        "ranks that meet another job's store, or a closed port, wait or fail late",
        port_usable,
    ),
    Question(
        GROUP,
        "network interface",
        "GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME, this host's own name, and what is up here",
        "ranks that offer an address which others cannot reach hang in their first collective",
        interface_chosen,
    ),
    Question(
        GROUP,
        "script",
        "the script of the command: its path and its source, which is not run",
        "a script that is not there or cannot be parsed ends every rank at its start",
        script_parses,
    ),
    Question(
        GROUP,
        "Trainer's strategy",
        "the strategy that the script gives Lightning's Trainer, or --strategy in its arguments",
        "a rank that sees one device where the others see two trains alone, and the others wait",
        strategy_named,
    ),
)
