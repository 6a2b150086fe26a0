"""The run folder of the contract, as paths."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck import log
from lightning_hangcheck.errors import UnpreparedRunFolder, UnreadableRun, UsedRunFolder
from lightning_hangcheck.files.apart import NoAnswerFromStorage, apart
from lightning_hangcheck.files.atomic import (
    NEW_FILE,
    PRIVATE_FILE,
    PRIVATE_FOLDER,
    make_private_folder,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

RUNS_FOLDER = "hangcheck_runs"
TEMPORARY = Path("/tmp")  # noqa: S108 - a folder of our own below it, mode 0700
STAT_LIMIT_S = 1.0
FOLDERS = ("ranks", "verdicts", "evidence")
EARLY_BYTES = 1024 * 1024
"""Of a journal, which every one keeps: what is told while a script starts is there."""
NODES_FOLDER = "nodes"
"""In a run folder that all nodes of a job see: where their sidecars meet, unless elsewhere."""
NODE_PREFIX = "node-"
"""Begins the names of the other nodes' run folders in that of the first."""
START_PREFIX = "start-"
"""Begins the names of run folders of later starts of a job, in that of its first start."""
PARTS = ("run.json", "verdict.json", "report.html", NODES_FOLDER, *FOLDERS)


class RunFolder(Struct, frozen=True):
    """A run folder (mode 0700)."""

    path: Path

    @property
    def run_id(self) -> str:
        """The folder's own name."""
        return self.path.name

    @property
    def run_file(self) -> Path:
        """run.json: command, start, world size, nodes, versions, environment of each rank."""
        return self.path / "run.json"

    @property
    def verdict_file(self) -> Path:
        """verdict.json: the newest verdict."""
        return self.path / "verdict.json"

    @property
    def page_file(self) -> Path:
        """report.html: the newest verdict as one page."""
        return self.path / "report.html"

    def journal(self, rank: int | None, pid: int) -> Path:
        """ranks/rank-<R>.jsonl; ranks/pid-<PID>.jsonl where the rank was never learnt."""
        name = f"pid-{pid}" if rank is None else f"rank-{rank}"
        return self.journals / f"{name}.jsonl"

    @property
    def journals(self) -> Path:
        """ranks/, all journals."""
        return self.path / "ranks"

    def numbered_verdict(self, number: int) -> Path:
        """verdicts/<n>.json."""
        return self.path / "verdicts" / f"{number}.json"

    def evidence(self, number: int) -> Path:
        """evidence/<n>/, what verdict <n> rests on."""
        return self.path / "evidence" / str(number)

    def verdict_numbers(self) -> list[int]:
        """Numbers of the verdicts so far, ascending."""
        found = (re.fullmatch(r"(\d+)\.json", path.name) for path in self._verdict_files())
        return sorted(int(match[1]) for match in found if match)

    def evidence_numbers(self) -> list[int]:
        """Numbers of the verdicts whose evidence was begun, ascending.

        Raises:
            UnreadableRun: The folder may not be read.
        """
        folder = self.path / "evidence"
        try:
            names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        except OSError as error:
            raise UnreadableRun(
                f"{folder} cannot be read ({error.strerror})", "read it as the user who made it"
            ) from error
        return sorted(int(name) for name in names if name.isdecimal())

    def _verdict_files(self) -> Iterator[Path]:
        folder = self.path / "verdicts"
        return folder.iterdir() if folder.is_dir() else iter(())


def name_run_folder(wanted: str | None, now: datetime | None = None) -> RunFolder:
    """Choose the run folder without touching the disk.

    No JSON and no message can hold a name that is not UTF-8: then the run is kept elsewhere.

    Args:
        wanted: Exactly this folder; None for ``hangcheck_runs/<UTC time>-<short id>``.
        now: The start, for the folder's name.
    """
    moment = now or datetime.now(timezone.utc)
    name = f"{moment:%Y%m%dT%H%M%S}-{os.urandom(2).hex()}"
    path = Path(wanted or f"{RUNS_FOLDER}/{name}").absolute()
    try:
        str(path).encode()
    except UnicodeEncodeError:
        log.once(
            "run folder name",
            f"run folder {path} cannot be used: its name is not UTF-8; this run is kept below "
            f"{TEMPORARY} instead",
        )
        path = TEMPORARY / f"hangcheck-run-{name}"
    return RunFolder(path)


def folder_of_node(shared: str | None, node: str) -> RunFolder:
    """Choose the run folder of one of a job's nodes, which were all given the same.

    Args:
        shared: As for `name_run_folder`; the first node takes it as a whole.
        node: Names this node: its number, or its host's name.
    """
    if shared is None:
        return name_run_folder(None)
    return RunFolder(name_run_folder(shared).path / f"{NODE_PREFIX}{node}")


def folders_of_nodes(folder: RunFolder) -> list[RunFolder]:
    """Find the run folders of the other nodes of a job, which were all given the same.

    Args:
        folder: Of the first node.
    """
    try:
        below = [one for one in folder.path.iterdir() if one.name.startswith(NODE_PREFIX)]
    except OSError:
        return []
    found = [RunFolder(one) for one in below if (one / folder.run_file.name).exists()]
    return sorted(found, key=lambda one: (len(one.run_id), one.run_id))


def folder_of_start(first: RunFolder, number: int) -> RunFolder:
    """Choose the run folder of a later start of a job, which was given the same as its first.

    Args:
        first: Of the job's first start.
        number: 2 for the second.
    """
    return RunFolder(first.path / f"{START_PREFIX}{number}")


def starts_so_far(first: RunFolder) -> int:
    """Count the starts of a job in its run folder, at least 1.

    Args:
        first: Of the job's first start.
    """
    try:
        names = [one.name.removeprefix(START_PREFIX) for one in first.path.glob(f"{START_PREFIX}*")]
    except OSError:
        return 1
    return max((int(name) for name in names if re.fullmatch("[0-9]{1,9}", name)), default=1)


def prepare_run_folder(folder: RunFolder) -> RunFolder:
    """Make the folder and its subfolders; doing it again, or from several ranks, is no error.

    Returns:
        The same folder.

    Raises:
        UnpreparedRunFolder: They cannot be made, or one of them is not ours alone.
    """
    try:
        if folder.path.name.startswith(NODE_PREFIX):
            with suppress(FileExistsError):  # the first node's, or whatever it is
                folder.path.parent.mkdir(mode=PRIVATE_FOLDER, parents=True)
        make_private_folder(folder.path, PARTS)
        for part in FOLDERS:
            make_private_folder(folder.path / part)
    except OSError as error:
        at = str(error.filename or folder.path)
        part = "" if at == str(folder.path) else f"{at}: "
        raise UnpreparedRunFolder(
            f"run folder {folder.path} cannot be made ({part}{error.strerror})",
            "name a folder that you may write with --run-dir or HANGCHECK_RUN_DIR",
        ) from error
    return folder


def refuse_used(folder: RunFolder) -> None:
    """Refuse a folder that holds a run, before any work is done for it.

    Raises:
        UsedRunFolder: It does, as far as we may see.
    """
    try:
        used = apart(STAT_LIMIT_S, folder.run_file.exists)
    except (OSError, NoAnswerFromStorage):
        return
    if used:
        raise _used(folder)


def _used(folder: RunFolder) -> UsedRunFolder:
    return UsedRunFolder(
        f"run folder {folder.path} already holds a run", "name another folder, or remove it"
    )


def claim_run_folder(folder: RunFolder, record: bytes) -> None:
    """Make the folder this run's own by writing run.json; of two runs that try, one wins.

    Args:
        folder: Already prepared.
        record: First content of run.json.

    Raises:
        UsedRunFolder: It holds another run; nothing was touched.
        OSError: It cannot be written.
    """
    try:
        descriptor = os.open(folder.run_file, os.O_WRONLY | NEW_FILE, PRIVATE_FILE)
    except FileExistsError as error:
        raise _used(folder) from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(record)
    except OSError:
        folder.run_file.unlink(missing_ok=True)
        raise


def find_run_folder(named: str | None) -> RunFolder:
    """Find the run folder to read: the named one, or the newest below ``hangcheck_runs/``.

    Raises:
        UnreadableRun: There is none, or the named folder is no run.
    """
    if named is not None:
        folder = RunFolder(Path(named).absolute())
        if not folder.path.is_dir():
            raise UnreadableRun(f"{named} is no folder", "name the folder that the run printed")
        return folder
    runs = Path(RUNS_FOLDER)
    candidates = [path for path in runs.iterdir() if path.is_dir()] if runs.is_dir() else []
    if not candidates:
        raise UnreadableRun(
            f"there is no run below {runs.absolute()}",
            "name a run folder, or start one: hangcheck run",
        )
    return RunFolder(max(candidates, key=lambda path: path.stat().st_mtime).absolute())
