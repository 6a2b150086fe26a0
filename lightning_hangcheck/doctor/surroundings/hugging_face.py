"""The cache of Hugging Face: may it be written, and does somebody hold one of its locks?"""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from lightning_hangcheck.doctor.check import Check
from lightning_hangcheck.doctor.places import nearest
from lightning_hangcheck.files.apart import NoAnswerFromStorage, apart
from lightning_hangcheck.look.open_files import file_locks, holders_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lightning_hangcheck.doctor.subject import Subject

CACHE = "Hugging Face cache"
LOCKS = "Hugging Face locks"
TIME_LIMIT_S = 3.0
MOST_LOCKS = 5_000
ELSEWHERE = "export HF_HOME=/a/folder/that/can/be/written"


def cache_usable(subject: Subject) -> tuple[Check, ...]:
    """Look whether models can be put into the cache, or must be there already.

    Args:
        subject: The run.
    """
    cache = cache_folder(subject.environment)
    offline = subject.environment.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON")
    try:
        there, writable = apart(TIME_LIMIT_S, lambda: _access(cache))
    except NoAnswerFromStorage as error:
        return (Check(CACHE, "failed", f"{cache}: {error}", ELSEWHERE),)
    if offline and not there:
        sentence = f"HF_HUB_OFFLINE is set, and there is no {cache}: nothing can be loaded by name"
        return (Check(CACHE, "warning", sentence, "unset HF_HUB_OFFLINE, or name a local folder"),)
    if not offline and not writable:
        sentence = f"{cache} cannot be written: every rank fails or fetches again"
        return (Check(CACHE, "warning", sentence, ELSEWHERE),)
    return (
        Check(CACHE, "ok", f"{cache} {'is read only offline' if offline else 'can be written'}"),
    )


def locks_free(subject: Subject) -> tuple[Check, ...]:
    """Name who holds a lock in the cache. A lock file that nobody holds keeps nobody waiting.

    Args:
        subject: The run.
    """
    cache = cache_folder(subject.environment)
    locks = file_locks()
    try:
        files = apart(TIME_LIMIT_S, lambda: _lock_files(cache))
    except (OSError, NoAnswerFromStorage):
        return ()  # `cache_usable` says so
    held = [(path, pid) for path, state in files for pid in holders_of(state, locks)]
    if not held:
        return (Check(LOCKS, "ok", f"{len(files)} lock files below {cache}, none of them held"),)
    return tuple(
        Check(LOCKS, "warning", f"{path} is held by pid {pid} ({_name(pid)})", f"ps -fp {pid}")
        for path, pid in held
    )


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder that huggingface_hub takes (its constants.py)."""
    home = environment.get("HOME", "~")
    caches = environment.get("XDG_CACHE_HOME") or f"{home}/.cache"
    hub_home = environment.get("HF_HOME") or f"{caches}/huggingface"
    chosen = environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE")
    return Path(chosen or f"{hub_home}/hub").expanduser()


def _access(folder: Path) -> tuple[bool, bool]:
    """Whether it is there, and whether it, or what is above it, can be written."""
    return folder.is_dir(), os.access(nearest(folder), os.W_OK | os.X_OK)


def _lock_files(cache: Path) -> list[tuple[str, os.stat_result]]:
    found = []
    for path in islice((cache / ".locks").rglob("*.lock"), MOST_LOCKS):
        with suppress(OSError):
            found.append((str(path), path.stat()))
    return found


def _name(pid: int) -> str:
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return "of another user, or gone"
