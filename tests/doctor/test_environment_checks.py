"""What doctor says of the environment, of places of checkpoints, and of remotes of rclone."""

from __future__ import annotations

import fcntl
import os
import re
import resource
import shutil
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace
from subjects import saving, subject

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
from lightning_hangcheck.doctor.storage_checks import MOST_LINES, checkpoints, rclone_remotes, tree
from lightning_hangcheck.session.session import SHARED_MEMORY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lightning_hangcheck.doctor.check import Finding


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


def test_without_py_spy_stacks_are_not_readable(as_py_spy: Callable[[str], None]) -> None:
    as_py_spy("")
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
    mounts = f"none / rootfs rw 0 0\nhost:/disk {tmp_path} {kind} rw 0 0\n"
    monkeypatch.setattr(Path, "read_text", lambda _: mounts)  # of the kernel
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


# Places of checkpoints, their files as a tree, and remotes of rclone.


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    for step in ("step_1", "step_2"):
        (tmp_path / step).mkdir()
        (tmp_path / step / "model.pt").write_bytes(b"x" * 1000)
    return tmp_path


@pytest.mark.parametrize(
    ("expect", "status", "said"),
    [
        ("step_*/model.pt", "ok", "2 files, 2.0 kB"),
        ("step_final/*", "failed", "step_1/model.pt"),  # what is there instead
    ],
)
def test_what_is_expected_must_be_there(saved: Path, expect: str, status: str, said: str) -> None:
    place, expected, _ = checkpoints(saving(saved, expect))
    assert (place.status, expected.status, said in expected.found) == ("ok", status, True)


@pytest.mark.parametrize(("expect", "status"), [((), "warning"), (("*",), "failed")])
@pytest.mark.parametrize(
    ("place", "remedy"),
    [
        ("no such folder", "mkdir -p 'no such folder'"),
        ("remote:path", "rclone lsf remote:path"),
        ("memory://nothing", "correct its spelling, or leave it to the first run"),
    ],
)
def test_the_remedy_fits_the_kind_of_place(
    place: str, remedy: str, expect: tuple[str, ...], status: str
) -> None:
    (check,) = checkpoints(saving(place, *expect))
    assert (check.status, remedy in check.remedy) == (status, True)
    assert ("mkdir" in check.remedy) is ("mkdir" in remedy)
    assert not Path(place).exists()


def test_a_folder_is_written_read_and_left_as_it_was(saved: Path) -> None:
    check = checkpoints(saving(saved))[-1]
    assert check.status == "ok"
    rate = r"[\d.]+ [kMG]B/s"
    told = rf"written at {rate}, synchronised in .* \({rate} together\), read back at {rate}; "
    assert re.fullmatch(told + "at this rate saving 1.0 kB takes .*", check.found)
    assert sorted(path.name for path in saved.iterdir()) == ["step_1", "step_2"]


def test_a_disk_that_takes_no_more_fails_and_nothing_stays(saved: Path) -> None:
    """A limit on the size of a file ends a write half-way, as a full disk or a quota does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, before[1]))
    try:
        check = checkpoints(saving(saved))[-1]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert check.status == "failed"
    assert "File too large" in check.found
    assert sorted(path.name for path in saved.iterdir()) == ["step_1", "step_2"]


def test_room_for_less_than_two_checkpoints_fails(saved: Path) -> None:
    """The largest one is a file full of holes: it has that size, and takes no room."""
    free = shutil.disk_usage(saved).free
    with (saved / "step_3.ckpt").open("wb") as file:
        file.truncate(int(free * 0.75))
    check = checkpoints(saving(saved))[-1]
    assert check.status == "failed"
    assert "less than two checkpoints take" in check.found
    assert check.remedy.startswith("free some space")


def test_a_tree_shows_what_is_in_folders_and_has_an_end() -> None:
    lines = tree({"step_1/model.pt": 3_000_000, "step_1/more/x": 5, "last.ckpt": 7})
    assert [" ".join(line.split()) for line in lines] == [
        *("last.ckpt 7 B", "step_1/ 2 files, 3.0 MB", "model.pt 3.0 MB"),
        *("more/ 1 file, 5 B", "x 5 B"),
    ]
    assert [len(line) - len(line.lstrip()) for line in lines] == [0, 0, 2, 2, 4]
    files = {f"{a}/{b}/{c}": 1 for a in range(6) for b in range(6) for c in range(6)}
    assert tree(files)[MOST_LINES:] == ("... 228 more lines",)


def test_depth_says_how_deep_the_place_is_shown(saved: Path) -> None:
    (saved / "a/b/c").mkdir(parents=True)
    (saved / "a/b/c/model.pt").write_bytes(b"x")
    shown = [checkpoints(replace(saving(saved), depth=deep))[0] for deep in (2, 4)]
    assert [
        any("model.pt" in line and line.startswith("      ") for line in one.details)
        for one in shown
    ] == [False, True]
    assert "2 folders deep" in shown[0].found


SECRET = "q7hX9" * 8
WELL = f"""[store]
type = s3
provider = Cloudflare
endpoint = https://store.example
access_key_id = {SECRET}
secret_access_key = {SECRET}
"""


def _check(folder: Path, text: str, **environment: str) -> tuple[Finding, ...]:
    file = folder / "rclone.conf"
    file.write_text(text)
    return rclone_remotes(subject(RCLONE_CONFIG=str(file), HOME=str(folder), **environment))


AWS = "[a]\ntype = s3\nprovider = AWS\n"
ENCRYPTED = "RCLONE_ENCRYPT_V0:\nAAAA\n"


@pytest.mark.parametrize(
    ("text", "environment", "status", "said", "remedy"),
    [
        (WELL, {}, "ok", ": store", ""),
        *(
            (
                re.sub(rf"(?m)^{key} .*\n", "", WELL),
                {},
                status,
                f"rclone.conf:1: [store] has no {key}",
                f"[store]\n{mended}",
            )
            for key, mended, status in (
                ("type", "type = s3", "failed"),
                ("access_key_id", "access_key_id = YOUR-KEY", "warning"),
            )
        ),
        # without a region AWS takes us-east-1
        (f"{AWS}access_key_id = k\nsecret_access_key = s\n", {}, "ok", ": a", ""),
        (f"{AWS}env_auth = true\n", {}, "warning", "no credentials are in the environment", ""),
        (f"{AWS}env_auth = true\n", {"AWS_ACCESS_KEY_ID": "k"}, "ok", ": a", ""),
        (ENCRYPTED, {}, "", "", ""),
    ],
)
def test_what_is_missing_in_a_remote_is_named_with_its_line_and_the_block_corrected(
    tmp_path: Path, text: str, environment: dict[str, str], status: str, said: str, remedy: str
) -> None:
    found = _check(tmp_path, text, **environment)
    assert [check.status for check in found[:1]] == [status] * bool(status)
    for check in found[:1]:
        assert said in check.found
        assert remedy in check.remedy
        assert SECRET not in check.remedy


def test_a_run_without_rclone_is_not_asked(tmp_path: Path) -> None:
    file = tmp_path / ".config" / "rclone" / "rclone.conf"
    file.parent.mkdir(parents=True)
    file.write_text("[store]\nprovider = AWS\n")
    script = tmp_path / "train.py"
    script.write_text("import torch\n")
    run = subject(f"python {script}", HOME=str(tmp_path))
    assert rclone_remotes(run) == ()
    script.write_text("subprocess.run(['rclone', 'copy'])\n")
    (check,) = rclone_remotes(run)
    assert check.status == "failed"
