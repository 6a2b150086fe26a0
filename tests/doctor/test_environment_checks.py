"""What doctor says of the environment, and of what it may see of processes."""

from __future__ import annotations

import fcntl
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

import pytest
from subjects import subject

from lightning_hangcheck.doctor import every_run_checks
from lightning_hangcheck.doctor.environment_checks import (
    hugging_face_cache,
    output_buffering,
    wandb,
)
from lightning_hangcheck.doctor.every_run_checks import (
    run_folder,
    shared_memory_usable,
    stacks_readable,
)
from lightning_hangcheck.session.session import SHARED_MEMORY

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def test_a_pipe_keeps_lines_back_unless_python_is_told_to_let_go() -> None:
    reader, writer = os.pipe()
    (check,) = output_buffering(subject("python train.py"), descriptor=writer)
    assert (check.status, "a pipe" in check.found) == ("warning", True)
    assert check.remedy == "export PYTHONUNBUFFERED=1"
    told = subject("python -u a.py"), subject("python a.py", PYTHONUNBUFFERED="1")
    assert [output_buffering(one, descriptor=writer)[0].status for one in told] == ["ok", "ok"]
    os.close(reader)
    os.close(writer)


class _Answers(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.send_response(404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Keep the test's output to itself."""


@pytest.fixture
def server() -> Iterator[str]:
    answering = HTTPServer(("127.0.0.1", 0), _Answers)
    thread = threading.Thread(target=answering.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{answering.server_port}"
    answering.shutdown()
    thread.join()
    answering.server_close()


NETRC = "machine {} login a password b\ndefault login c password d\n"


@pytest.mark.parametrize(
    ("variables", "netrc", "status", "remedy"),
    [
        ({"WANDB_API_KEY": "0" * 40}, "", "ok", ""),
        ({}, NETRC.format("other.example"), "warning", "wandb login"),  # no key of wandb's
        ({"WANDB_API_KEY": "k", "WANDB_BASE_URL": "http://127.0.0.1:1"}, "", "failed", "=offline"),
        ({"WANDB_MODE": "offline", "WANDB_BASE_URL": "http://127.0.0.1:1"}, "", "ok", ""),
    ],
)
def test_wandb_needs_a_key_and_a_server_that_answers(
    server: str, tmp_path: Path, variables: dict[str, str], netrc: str, status: str, remedy: str
) -> None:
    file = tmp_path / "netrc"
    file.write_text(netrc)
    file.chmod(0o600)
    (check,) = wandb(subject(**{"WANDB_BASE_URL": server, "NETRC": str(file), **variables}))
    assert (check.status, remedy in check.remedy) == (status, True)
    assert "0000" not in check.found


@pytest.mark.parametrize(
    ("home", "offline", "status"),
    [
        ("/proc/self/hf", "", "warning"),
        ("{tmp}", "1", "warning"),  # nothing is there that could be loaded
        ("{tmp}/there", "1", "ok"),
    ],
)
def test_a_cache_must_be_there_or_be_writable(
    tmp_path: Path, home: str, offline: str, status: str
) -> None:
    (tmp_path / "there" / "hub").mkdir(parents=True)
    run = subject(HF_HOME=home.format(tmp=tmp_path), HF_HUB_OFFLINE=offline)
    (check,) = hugging_face_cache(run)
    assert (check.status, bool(check.remedy)) == (status, status != "ok")
    assert [one.name for one in tmp_path.iterdir()] == ["there"]


def test_a_lock_that_is_held_is_named_with_its_holder(tmp_path: Path) -> None:
    locks = tmp_path / "hub" / ".locks" / "models--a--b"
    locks.mkdir(parents=True)
    run = subject(HF_HOME=str(tmp_path))
    with (locks / "file.lock").open("w") as lock:
        assert [check.status for check in hugging_face_cache(run)] == ["ok"]
        fcntl.flock(lock, fcntl.LOCK_EX)
        _, check = hugging_face_cache(run)
    assert check.status == "warning"
    assert "file.lock" in check.found
    assert f"pid {os.getpid()}" in check.found


def test_without_py_spy_stacks_are_not_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "python").symlink_to(os.path.realpath(sys.executable))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    (check,) = stacks_readable(subject(), time_limit_s=30.0)
    assert check.status == "failed"
    assert check.remedy == "pip install py-spy"


def test_a_run_folder_that_is_not_there_yet_is_judged_by_what_is_above_it(tmp_path: Path) -> None:
    run = subject(run_dir=tmp_path / "a" / "b")
    assert next(iter(run_folder(run))).status == "ok"
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "a").write_text("in the way")
    (check,) = run_folder(run)
    assert (check.status, "Not a directory" in check.found) == ("failed", True)
    assert "--run-dir" in check.remedy


def test_storage_that_does_not_answer_fails_within_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: time.sleep(2))  # as a slow network disk does
    (check,) = run_folder(subject(run_dir=tmp_path), time_limit_s=0.05)
    assert check.status == "failed"
    assert "no answer within 0.05 s" in check.found


def test_shared_memory_is_tried_and_where_it_is_missing_the_fallback_named(tmp_path: Path) -> None:
    assert {check.status for check in shared_memory_usable(subject())} <= {"ok", "warning"}
    assert not list(SHARED_MEMORY.glob("hangcheck-doctor-*"))
    (check,) = shared_memory_usable(subject(), folder=tmp_path / "absent")
    assert check.status == "warning"
    assert "heartbeats go through files" in check.found
    assert "--shm-size" in check.remedy


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        *((one, "warning") for one in ("nfs4", "lustre", "fuse.sshfs", "tmpfs")),
        *((one, "ok") for one in ("ext4", "xfs", "overlay", "fuseblk")),
    ],
)
def test_disks_that_lose_evidence_are_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, status: str
) -> None:
    monkeypatch.setattr(every_run_checks, "_file_system", lambda _: kind)
    found = run_folder(subject(run_dir=tmp_path))
    assert [check.status for check in found] == ["ok", status][: 1 + (status == "warning")]
    assert all(f"is on {kind}" in check.found for check in found[1:])
    assert all("--run-dir" in check.remedy for check in found[1:])


@pytest.mark.parametrize(("ahead_s", "status"), [(-1e9, "failed"), (90.0, "warning"), (0.5, "ok")])
def test_a_clock_is_judged_by_the_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead_s: float, status: str
) -> None:
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + ahead_s)
    found = [one for one in run_folder(subject(run_dir=tmp_path)) if one.check == "clock"]
    assert [one.status for one in found[:1]] == [status] * (status != "ok")
    assert all(one.remedy for one in found)
