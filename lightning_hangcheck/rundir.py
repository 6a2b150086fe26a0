"""The run folder of the contract: the path of each file, and how to read its contents."""

from __future__ import annotations

import os
import re
from collections import Counter
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from lightning_hangcheck import files, log
from lightning_hangcheck.errors import UnpreparedRunFolder, UnreadableRun, UsedRunFolder
from lightning_hangcheck.model.evidence import Gap

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lightning_hangcheck.model.case import Case


RUNS_FOLDER = "hangcheck_runs"
TEMPORARY = Path("/tmp")  # noqa: S108 - a folder of our own below it, mode 0700
STAT_LIMIT_S = 1.0
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


class RunFolder(Struct, frozen=True):
    """A run folder (mode 0700)."""

    path: Path

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
    """Choose the run folder without touching the disk: the wanted path, or a new folder.

    A new folder is ``hangcheck_runs/<UTC time>-<short id>``. JSON and messages cannot hold a name
    that is not UTF-8: then the run is kept elsewhere.
    """
    name = f"{datetime.now(timezone.utc):%Y%m%dT%H%M%S}-{os.urandom(2).hex()}"
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


def folders_of_nodes(folder: RunFolder) -> list[RunFolder]:
    """Find the run folders of a job's other nodes, which all got the same folder."""
    try:
        below = [path for path in folder.path.iterdir() if path.name.startswith(NODE_PREFIX)]
    except OSError:
        return []
    found = [RunFolder(path) for path in below if (path / folder.run_file.name).exists()]
    return sorted(found, key=lambda folder: (len(folder.run_id), folder.run_id))


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


Entries = list[dict[str, Any]]
FASTER = "they came faster than they were written"
LARGEST_BYTES = 32 * 1024 * 1024
"""About 270,000 checkpoint lines; only the last lines of a journal are reported."""


def read_journal(path: Path) -> tuple[Entries, tuple[Gap, ...]]:
    """Read a journal's whole lines (beyond 32 MiB only its end), and what could not be read."""
    number = path.stem.removeprefix("rank-")
    rank = int(number) if number.isdecimal() else None
    entries: Entries = []
    gaps = []
    try:
        data, left_out = files.read_end_owned(path, LARGEST_BYTES)
    except OSError as error:
        gaps.append(f"it cannot be read ({error.strerror})")
    else:
        entries, torn = parse_journal(data)
        if left_out:
            gaps.append(f"its first {left_out:,} bytes were left out")
        if torn:
            gaps.append(f"{torn} of its lines are torn: a crash or a full disk cut them")
    missing: Counter[str] = Counter()  # lines that the journal reports as missing, by reason
    for entry in entries:
        if entry.get("kind") == "dropped" and isinstance(entry.get("lines"), int):
            missing[str(entry.get("why", FASTER))] += entry["lines"]
    gaps += [f"{lines:,} of its lines are missing: {why}" for why, lines in missing.items()]
    return entries, tuple(Gap(f"journal {path.name}", rank, why, "journal") for why in gaps)


def parse_journal(data: bytes) -> tuple[Entries, int]:
    """Return the entries of a journal's whole lines, and how many others there are."""
    entries = []
    torn = 0
    for line in filter(None, data.split(b"\n")):
        try:
            entries.append(msgspec.json.decode(line, type=dict[str, Any]))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            torn += 1
    return entries, torn


def folders_of_job(folder: RunFolder) -> list[RunFolder]:
    """Return the run folders of all nodes that share this one, this one first."""
    top = RunFolder(folder.path.parent)
    below = folder.path.name.startswith(NODE_PREFIX) and top.run_file.exists()
    if not below:
        return [folder, *folders_of_nodes(folder)]
    return list(dict.fromkeys([folder, top, *folders_of_nodes(top)]))


def journals_of_job(folder: RunFolder) -> dict[str, list[Path]]:
    """Return all journals of a job by name, except other nodes' processes without a rank."""
    # another node's folder that cannot be read is left out; OSError if it is this node's
    own, *others = folders_of_job(folder)
    unnumbered = {path.stem: [path] for path in own.journals.glob("pid-*.jsonl")}
    return journals_in([own, *others]) | unnumbered


def journals_in(folders: Iterable[RunFolder]) -> dict[str, list[Path]]:
    """Return the journals of ranks by name, such as ``rank-3``: one for each node."""
    found: dict[str, list[Path]] = {}
    for folder in folders:
        with suppress(OSError):
            for path in folder.journals.glob("rank-*.jsonl"):
                found.setdefault(path.stem, []).append(path)
    return dict(sorted(found.items(), key=lambda item: (len(item[0]), item[0])))


def read_rank(paths: Iterable[Path]) -> tuple[Entries, tuple[Gap, ...]]:
    """Read the journals of one rank as one, process by process, and what could not be read.

    Each entry says on which ``host`` it was written. Entries before the first start are of an
    unknown process.
    """
    processes: list[Entries] = []
    gaps: list[Gap] = []
    for path in paths:
        entries, unread = read_journal(path)
        gaps += unread
        processes.append([])
        host = ""
        for entry in entries:
            if entry.get("kind") == "start":
                host = str(entry.get("host", ""))
                processes.append([])
            entry.setdefault("host", host)
            processes[-1].append(entry)
    # times are ISO 8601 UTC, which sort as text
    ordered = sorted(filter(None, processes), key=lambda entries: str(entries[0].get("at", "")))
    return [entry for entries in ordered for entry in entries], tuple(gaps)


CASE_FILE = "case.json"


def newest_case(folder: RunFolder) -> tuple[Case | None, tuple[Gap, ...]]:
    """Read the newest case, and gaps for newer torn ones; UnreadableRun if none can be read."""
    from lightning_hangcheck.model.case import Case  # 5 ms that a rank does not pay at its start

    gaps: list[Gap] = []
    refused: UnreadableRun | None = None
    for number in reversed(folder.evidence_numbers()):
        file = folder.evidence(number) / CASE_FILE
        try:
            return files.decode(
                files.read_owned(file, files.EVIDENCE_BYTES), Case, str(file)
            ), tuple(gaps)
        except FileNotFoundError:
            why = "it was not finished"
        except OSError as error:
            refused = refused or files.unreadable(file, error)
            why = f"it cannot be read ({error.strerror})"
        except UnreadableRun as error:
            refused = refused or error
            why = str(error.args[0])
        gaps.append(Gap(f"evidence {number} of {folder.path}", None, why, "saved_evidence"))
    if refused is not None:
        raise refused
    return None, tuple(gaps)
