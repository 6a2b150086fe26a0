"""On what kind of file system will the run be recorded, and does its clock agree with ours?"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

import psutil

from lightning_hangcheck.doctor.check import Check
from lightning_hangcheck.doctor.places import nearest
from lightning_hangcheck.files.apart import NoAnswerFromStorage, apart
from lightning_hangcheck.files.atomic import NEW_FILE, PRIVATE_FILE, name_beside
from lightning_hangcheck.machine.network_storage import OF_NETWORK

KIND = "run folder's disk"
CLOCK = "clock"
TIME_LIMIT_S = 2.0
ELSEWHERE = "name a folder on a local disk: --run-dir or HANGCHECK_RUN_DIR"
OF_MEMORY = ("tmpfs", "ramfs")
MOST_SKEW_S = 2.0
"""More than a file system's own grain, 2 s on FAT; an hour of NTP's drift stays far below."""
FIRST_RELEASE = 1_790_000_000.0
"""Autumn 2026, in seconds since 1970: a clock before that was never set."""


def file_system_kind(run_dir: Path, time_limit_s: float = TIME_LIMIT_S) -> Check:
    """Name the file system of the run folder, or of the nearest folder above that is there.

    Args:
        run_dir: Where the run will be recorded.
        time_limit_s: Seconds, for a disk that does not answer.
    """
    folder = _absolute(run_dir)
    try:
        there = apart(time_limit_s, lambda: nearest(folder).resolve())
    except (OSError, NoAnswerFromStorage) as error:
        return Check(KIND, "failed", f"{folder} cannot be looked at: {error}", ELSEWHERE)
    return judge_kind(folder, kind_of(there))


def kind_of(folder: Path) -> str:
    """Return the type of the file system that a folder is on, as the kernel names it."""
    mounts = {one.mountpoint: one.fstype for one in psutil.disk_partitions(all=True)}
    above = (str(one) for one in (folder, *folder.parents))
    return next((mounts[one] for one in above if one in mounts), "unknown")


def judge_kind(folder: Path, kind: str) -> Check:
    """Say what a type of file system means for a run folder.

    Args:
        folder: The run folder.
        kind: As the kernel names it.
    """
    if kind.startswith(OF_NETWORK):
        sentence = f"{folder} is on {kind}: evidence comes late or not at all while that stalls"
        return Check(KIND, "warning", sentence, ELSEWHERE)
    if kind in OF_MEMORY:
        sentence = f"{folder} is on {kind}: it takes main memory and is gone after a restart"
        return Check(KIND, "warning", sentence, ELSEWHERE)
    return Check(KIND, "ok", f"{folder} is on {kind}")


class Times(NamedTuple):
    """When a file was made: by this machine's clock, and by that of its file system."""

    here: float
    there: float


def clock_right(run_dir: Path, time_limit_s: float = TIME_LIMIT_S) -> Check:
    """Compare the clock with the time that the run folder's file system gives to a new file.

    Args:
        run_dir: Where the run will be recorded.
        time_limit_s: Seconds, for a disk that does not answer.
    """
    folder = _absolute(run_dir)
    try:
        times = apart(time_limit_s, lambda: _make_file(folder))
    except (OSError, NoAnswerFromStorage):
        return judge_clock(
            Times(time.time(), time.time())
        )  # what cannot be written fails elsewhere
    return judge_clock(times)


def judge_clock(times: Times) -> Check:
    """Say whether times of this machine can be compared with others'.

    Args:
        times: Of the same moment.
    """
    remedy = "timedatectl set-ntp true"
    if times.here < FIRST_RELEASE:
        stands = time.strftime("%Y-%m-%d", time.gmtime(times.here))
        return Check(CLOCK, "failed", f"the clock stands at {stands}: it was never set", remedy)
    skew = times.here - times.there
    if abs(skew) > MOST_SKEW_S:
        sentence = f"the clock is {skew:+.1f} s from that of the run folder's file system"
        return Check(CLOCK, "warning", sentence, remedy)
    return Check(CLOCK, "ok", "the clock agrees with the run folder's file system")


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100 - resolving links would touch the disk


def _make_file(folder: Path) -> Times:
    trial = name_beside(nearest(folder).resolve() / "hangcheck-doctor")
    before = time.time()
    os.close(os.open(trial, os.O_WRONLY | NEW_FILE, PRIVATE_FILE))
    try:
        # half of the time that making it took is the best guess of when it was made
        return Times((before + time.time()) / 2, trial.stat().st_mtime)
    finally:
        trial.unlink(missing_ok=True)
