"""The messenger as the sidecar starts it: every way at once, troubles said, ended when told to."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import msgspec
import psutil
import pytest
from alerts.receiver import receiving
from alerts.test_hang_command import ended, news, printed
from processes import end, until

from lightning_hangcheck.alerts.messenger import AlertsAskedFor, Errand
from lightning_hangcheck.isolation.command import environment_of_module, own_command

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = "lightning_hangcheck.alerts.messenger"
LEAK = "xleakx"


def start(errand: Errand) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        own_command(PROGRAM),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment_of_module(),
        start_new_session=True,
    )
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(errand))
    process.stdin.close()
    process.stdin = None
    return process


def test_each_way_is_tried_whatever_becomes_of_the_others(tmp_path: Path) -> None:
    pytest.importorskip("apprise", reason="the extra `notify` is not installed")
    with receiving() as gone:
        pass
    with receiving() as people:
        addresses = (f"json://{gone.address}/{LEAK}", f"json://{people.address}/{LEAK}")
        asked_for = AlertsAskedFor(
            notify=addresses,
            on_hang_exec="exit 7",
        )
        process = start(Errand(asked_for, news(tmp_path)))
        try:
            _, said = process.communicate(timeout=120)
        finally:
            end(process)
    assert process.returncode == 0, said
    assert len(people.got) == 1
    lines = sorted(line.partition("] ")[2] for line in said.decode().splitlines())
    assert [line.partition(" (")[0] for line in lines] == [
        "notify address 1",
        "the command of --on-hang-exec failed",
    ]
    assert lines[0].startswith("notify address 1 (json://) was not reached: ")
    assert LEAK.encode() not in said


def test_one_that_is_told_to_end_takes_its_command_with_it(tmp_path: Path) -> None:
    asked_for = AlertsAskedFor(on_hang_exec="echo $$; sleep 1000")
    process = start(Errand(asked_for, news(tmp_path)))
    file = tmp_path / "evidence" / "1" / "on-hang-exec.txt"
    try:
        until(lambda: file.exists() and printed(tmp_path).endswith("\n"), "the command to run")
        shell = printed(tmp_path).strip()
        assert psutil.pid_exists(int(shell))
        process.terminate()
        process.wait(120)
        until(lambda: ended(shell), "the command to end")
    finally:
        end(process)
