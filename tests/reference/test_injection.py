"""Faults strike the right rank, at the right place, once, and do what their name says."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from processes import end, until
from reference.faults import parse_fault
from reference.injection import Injection
from reference.strikes import FAULT_MARK_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable

SCRIPTS = Path(__file__).parent.parent.parent / "scripts"
STRIKER = """
import sys
from reference.faults import parse_fault
from reference.injection import Injection
injection = Injection([parse_fault(sys.argv[1])], rank=1)
for step in range(3):
    injection.before_step(step)
    injection.in_worker(0, step)
"""


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that a strike appends its moment to."""
    monkeypatch.setenv(FAULT_MARK_VARIABLE, str(tmp_path / "mark"))
    return tmp_path / "mark"


def _inject(*faults: str, rank: int = 1) -> Injection:
    return Injection([parse_fault(fault) for fault in faults], rank)


def test_strike_says_so_and_marks_the_moment(mark: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Benchmarks subtract the mark from the moment of detection."""
    before = time.monotonic_ns()
    with pytest.raises(ValueError, match="loss of batch 4 is not a number"):
        _inject("crashed@1:4").before_step(4)
    moment, cause = mark.read_text().split()
    assert before <= int(moment) <= time.monotonic_ns()
    assert cause == "crashed"
    assert "[inject] crashed strikes rank 1 at step 4" in capfd.readouterr().err


def test_nothing_strikes_before_its_step_or_on_another_rank(mark: Path) -> None:
    for step in range(4):
        _inject("crashed@1:4").before_step(step)
    other = _inject("crashed@1:4", "logger_init@1", "rendezvous@1", rank=0)
    other.before_step(4)
    other.before_rendezvous()
    assert not other.before_logger()
    assert not mark.exists()


@pytest.mark.parametrize(
    ("fault", "has_come"),
    [
        ("rank_stalled@1:2", lambda process: process.status() == psutil.STATUS_SLEEPING),
        ("dataloader_worker@1:2", lambda process: process.status() == psutil.STATUS_SLEEPING),
        ("process_stopped@1:2", lambda process: process.status() == psutil.STATUS_STOPPED),
        ("spinning@1:2", lambda process: sum(process.cpu_times()[:2]) > 2.0),
        ("process_dead@1:2", lambda process: process.wait(timeout=120) == -9),
    ],
)
def test_a_fault_does_what_its_name_says(
    fault: str, has_come: Callable[[psutil.Process], bool], mark: Path
) -> None:
    """It has announced itself before."""
    program = {**os.environ, "PYTHONPATH": str(SCRIPTS)}
    started = subprocess.Popen([sys.executable, "-c", STRIKER, fault], env=program)
    try:
        until(mark.exists, f"{fault} to strike")
        process = psutil.Process(started.pid)
        until(lambda: has_come(process), fault)
    finally:
        end(started)


def test_only_the_first_save_is_slow() -> None:
    injection = _inject("slow_save@0:5", rank=0)
    assert [injection.before_save(step) for step in (4, 5, 10)] == [False, True, False]


def test_rendezvous_fault_names_a_port_where_nobody_listens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MASTER_PORT", "1")
    _inject("rendezvous@1").before_rendezvous()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(os.environ["MASTER_PORT"])), timeout=5)


def test_logger_fault_points_rank_zero_at_a_silent_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """It accepts, as the kernel does for it, and never answers."""
    for name in ("WANDB_BASE_URL", "WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.setenv(name, "unset")
    injection = _inject("logger_init@0", rank=0)
    assert injection.before_logger()
    assert injection.silent_server is not None
    port = int(os.environ["WANDB_BASE_URL"].rpartition(":")[2])
    address = ("127.0.0.1", port)
    with injection.silent_server, socket.create_connection(address, timeout=5) as connection:
        connection.settimeout(0.2)
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        with pytest.raises(TimeoutError):
            connection.recv(1)
