"""The run folder of the contract: the path of each file, and who may use it."""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from pathlib import Path

from lightning_hangcheck import files, log
from lightning_hangcheck.errors import UnpreparedRunFolder, UnreadableRun, UsedRunFolder

TYPE_CHECKING = False  # typing takes 4 ms
if TYPE_CHECKING:
    from typing import Any, NamedTuple
else:
    from lightning_hangcheck.plain import NamedTuple

RUNS_FOLDER = "hangcheck_runs"
TEMPORARY = Path("/tmp")  # noqa: S108 - a folder of our own below it, mode 0700
STAT_LIMIT_S = 1.0
CASE_FILE = "case.json"
FOLDERS = ("ranks", "verdicts", "evidence")
NODES_FOLDER = "nodes"
"""In a run folder that all nodes of a job see: where their sidecars meet, unless elsewhere."""
NODE_PREFIX = "node-"  # Begins the names of other nodes' run folders, inside the first node's
START_PREFIX = "start-"
"""Begins the names of run folders of later starts of a job, inside that of its first start."""
PARTS = ("run.json", "verdict.json", "report.html", NODES_FOLDER, *FOLDERS)


class Part:
    """A file or folder in the folder ``path`` of the object whose attribute it is."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: Any, _: type | None = None) -> Path:  # noqa: ANN401
        path: Path = folder.path
        return path / self._name


class _OfPath(NamedTuple):
    path: Path


class RunFolder(_OfPath):
    """A run folder (mode 0700)."""

    @property
    def run_id(self) -> str:
        """The folder's own name."""
        return self.path.name

    run_file = Part("run.json")  # command, start, world size, nodes, versions, environments
    verdict_file = Part("verdict.json")  # the newest verdict
    page_file = Part("report.html")  # the same as one page
    journals = Part("ranks")

    def journal(self, rank: int | None, pid: int) -> Path:
        """ranks/rank-<R>.jsonl; ranks/pid-<PID>.jsonl if the rank is unknown."""
        name = f"pid-{pid}" if rank is None else f"rank-{rank}"
        return self.journals / f"{name}.jsonl"

    def numbered_verdict(self, number: int) -> Path:
        """verdicts/<n>.json."""
        return self.path / "verdicts" / f"{number}.json"

    def evidence(self, number: int) -> Path:
        """evidence/<n>/, what verdict <n> is based on."""
        return self.path / "evidence" / str(number)

    def verdict_numbers(self) -> list[int]:
        """Numbers of the verdicts so far, ascending."""
        return self._numbers("verdicts", ".json")

    def evidence_numbers(self) -> list[int]:
        """Numbers of the verdicts with evidence, ascending; may raise UnreadableRun."""
        try:
            return self._numbers("evidence", "")
        except OSError as error:
            raise files.unreadable(self.path / "evidence", error) from error

    def _numbers(self, part: str, ending: str) -> list[int]:
        folder = self.path / part
        names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        bare = (name.removesuffix(ending) for name in names if name.endswith(ending))
        return sorted(int(name) for name in bare if name.isdecimal())


def name_run_folder(wanted: str | None) -> RunFolder:
    """Choose the run folder without touching the disk: the wanted path, or a new folder."""
    # A new folder is ``hangcheck_runs/<UTC time>-<short id>``. JSON and messages cannot hold a name
    # that is not UTF-8: then the run is kept elsewhere.
    name = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{os.urandom(2).hex()}"
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
    """Choose the run folder of one of a job's nodes, which all got the same folder."""
    named = name_run_folder(shared)
    return named if shared is None else RunFolder(named.path / f"{NODE_PREFIX}{node}")


def folder_of_start(first: RunFolder, number: int) -> RunFolder:
    """Choose the run folder of a later start of a job, which got its first start's folder."""
    return RunFolder(first.path / f"{START_PREFIX}{number}")


def starts_so_far(first: RunFolder) -> int:
    """Count the starts of a job in its run folder, at least 1."""
    names: list[str] = []
    with suppress(OSError):
        names += (path.name for path in first.path.glob(f"{START_PREFIX}*"))
    found = (re.fullmatch(rf"{START_PREFIX}([0-9]{{1,9}})", name) for name in names)
    return max((int(match[1]) for match in found if match), default=1)


def prepare_run_folder(folder: RunFolder) -> RunFolder:
    """Make the folder and its parts, maybe again; UnpreparedRunFolder if that is not possible."""
    try:
        if folder.path.name.startswith(NODE_PREFIX):
            with suppress(FileExistsError):  # the first node's, or something else
                folder.path.parent.mkdir(mode=files.PRIVATE_FOLDER, parents=True)
        files.make_private_folder(folder.path, PARTS)
        for part in FOLDERS:
            files.make_private_folder(folder.path / part)
    except OSError as error:
        at = str(error.filename or folder.path)
        part = "" if at == str(folder.path) else f"{at}: "
        raise UnpreparedRunFolder(
            f"run folder {folder.path} cannot be made ({part}{error.strerror})",
            "name a folder that you may write with --run-dir or HANGCHECK_RUN_DIR",
        ) from error
    return folder


def refuse_used(folder: RunFolder) -> None:
    """Raise UsedRunFolder, before any work, if a folder visibly holds a run."""
    with suppress(OSError, files.NoAnswerFromStorage):
        if files.apart(STAT_LIMIT_S, folder.run_file.exists):
            raise _used(folder)


def _used(folder: RunFolder) -> UsedRunFolder:
    return UsedRunFolder(
        f"run folder {folder.path} already holds a run", "name another folder, or remove it"
    )


def claim_run_folder(folder: RunFolder, record: bytes) -> None:
    """Claim the folder by writing run.json; UsedRunFolder, with nothing changed, if it is taken."""
    try:
        descriptor = os.open(folder.run_file, os.O_WRONLY | files.NEW_FILE, files.PRIVATE_FILE)
    except FileExistsError as error:
        raise _used(folder) from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(record)
    except OSError:
        folder.run_file.unlink(missing_ok=True)
        raise


def find_run_folder(named: str | None) -> RunFolder:
    """Find the named folder, or the newest below ``hangcheck_runs/``; else UnreadableRun."""
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


def parse_journal(data: bytes) -> tuple[list[dict[str, Any]], int]:
    """Return the entries of a journal's whole lines, and how many others there are."""
    import msgspec

    entries = []
    torn = 0
    for line in filter(None, data.split(b"\n")):
        try:
            entries.append(msgspec.json.decode(line, type=dict[str, object]))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            torn += 1
    return entries, torn
