"""A trial whose doctor is interrupted or killed: no rank and no launcher stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest
from processes import end, free_port, is_alive, until


@pytest.mark.real
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_whatever_ends_doctor_ends_what_it_started(how: signal.Signals) -> None:
    # the second node never comes, so the launcher waits
    launcher = ["torchrun", "--nnodes=2", "--node_rank=0", f"--master_port={free_port()}"]
    doctor = subprocess.Popen(
        [sys.executable, "-m", "lightning_hangcheck", "doctor", "--only", "ranks", "--", *launcher],
        stdout=subprocess.DEVNULL,
        env={**os.environ, "MASTER_ADDR": "127.0.0.1"},
    )
    try:
        started = until(
            lambda: psutil.Process(doctor.pid).children(recursive=True), "the launcher to start"
        )
        os.kill(doctor.pid, how)
        doctor.wait(120)
        until(lambda: not any(map(is_alive, started)), "the launcher to end")
    finally:
        end(doctor)
