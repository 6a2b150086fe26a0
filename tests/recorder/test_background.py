"""A rank notices that its sidecar was killed, says so once, and its pulse goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from processes import end, until

from lightning_hangcheck.machine import read_process_stat
from lightning_hangcheck.model.codec import encode
from lightning_hangcheck.recorder.process import SidecarWatch
from lightning_hangcheck.session.session import SidecarFacts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from conftest import Program

    from lightning_hangcheck.session.session import Session

AT_ONCE = float  # no seconds
WAITING = [sys.executable, "-c", "input()"]


@pytest.fixture
def sidecar() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(WAITING, stdin=subprocess.PIPE)
    yield process
    end(process)


def name_sidecar(file: Path, pid: int) -> None:
    stat = read_process_stat(pid)
    assert stat
    file.write_bytes(encode(SidecarFacts(pid=pid, started_ticks=stat.started_ticks)))


def test_a_killed_sidecar_is_missed_once(tmp_path: Path, sidecar: subprocess.Popen[bytes]) -> None:
    """Already as a zombie: whoever started it may be too busy to reap it."""
    lost: list[int] = []
    file = tmp_path / "sidecar.json"
    watch = SidecarWatch(file, lost.append, AT_ONCE)
    watch.look()
    name_sidecar(file, sidecar.pid)
    watch.look()
    assert lost == []
    sidecar.kill()
    until(lambda: watch.look() or lost, "the sidecar to be missed")
    watch.look()
    assert lost == [sidecar.pid]
    name_sidecar(file, os.getpid())
    watch.look()
    assert lost == [sidecar.pid]


def test_a_sidecar_that_is_replaced_in_time_is_not_missed(
    tmp_path: Path, sidecar: subprocess.Popen[bytes]
) -> None:
    """Whoever replaced it has said so; that training goes on unwatched would be wrong by then."""
    lost: list[int] = []
    patience_s = [60.0]
    file = tmp_path / "sidecar.json"
    watch = SidecarWatch(file, lost.append, lambda: patience_s[0])
    name_sidecar(file, sidecar.pid)
    sidecar.kill()
    sidecar.wait(120)
    watch.look()
    killed = file.read_bytes()
    name_sidecar(file, os.getpid())
    patience_s[0] = 0.0
    watch.look()
    assert lost == []
    file.write_bytes(killed)
    watch.look()
    assert lost == [sidecar.pid], "nobody replaces it, and patience ends"


def test_a_sidecar_that_left_on_purpose_is_not_missed(
    tmp_path: Path, sidecar: subprocess.Popen[bytes]
) -> None:
    lost: list[int] = []
    file = tmp_path / "sidecar.json"
    watch = SidecarWatch(file, lost.append, AT_ONCE)
    name_sidecar(file, sidecar.pid)
    watch.look()
    file.unlink()
    sidecar.kill()
    sidecar.wait(120)
    watch.look()
    assert lost == []


def test_another_process_with_its_id_is_not_the_sidecar(tmp_path: Path) -> None:
    lost: list[int] = []
    file = tmp_path / "sidecar.json"
    file.write_bytes(encode(SidecarFacts(pid=os.getpid(), started_ticks=1)))
    SidecarWatch(file, lost.append, AT_ONCE).look()
    assert lost == [os.getpid()]


def test_a_file_that_names_no_sidecar_is_ignored(tmp_path: Path) -> None:
    file = tmp_path / "sidecar.json"
    file.write_text("{")
    SidecarWatch(file, lambda pid: pytest.fail(str(pid)), AT_ONCE).look()


def test_a_rank_says_that_its_sidecar_is_gone_and_calls_for_another(
    start: Callable[..., Program], session: Session, sidecar: subprocess.Popen[bytes]
) -> None:
    program = start("""
import lightning_hangcheck as hc
from lightning_hangcheck.recorder.lifecycle import current
def start_another():
    print("lost", flush=True)
    raise OSError("cannot start another")
current().on_sidecar_lost = start_another
input()
""")
    name_sidecar(session.sidecar_file, sidecar.pid)
    sidecar.kill()
    assert program.hear() == "lost"
    before = program.page().pulse_ns
    until(lambda: program.page().pulse_ns > before, "the pulse to go on")
    program.finish("\n")
    assert len([line for line in program.troubles if "is gone" in line]) == 1
    assert f"the sidecar (pid {sidecar.pid}) is gone; training goes on" in program.err
    assert "cannot start another" in program.err
    assert len(program.troubles) == 2
    assert program.page().ending == "finished"


def test_the_pulse_beats_while_nothing_advances(start: Callable[..., Program]) -> None:
    program = start("import lightning_hangcheck as hc\nhc.beat()\nprint(1, flush=True)\ninput()")
    program.hear()
    first = program.page()
    until(lambda: program.page().pulse_ns > first.pulse_ns, "a pulse")
    assert program.page().last_beat_ns == first.last_beat_ns
    program.finish("\n")
