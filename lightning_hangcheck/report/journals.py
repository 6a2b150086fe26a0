"""Reads run folders: journals of ranks, on all nodes of a job, and the newest case."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

from lightning_hangcheck import files
from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.model.case import Case
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.rundir import CASE_FILE, NODE_PREFIX, RunFolder, parse_journal

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from typing import Any

    Entries = list[dict[str, Any]]


def folders_of_nodes(folder: RunFolder) -> list[RunFolder]:
    """Find the run folders of a job's other nodes, which all got the same folder."""
    try:
        below = [path for path in folder.path.iterdir() if path.name.startswith(NODE_PREFIX)]
    except OSError:
        return []
    found = [RunFolder(path) for path in below if (path / folder.run_file.name).exists()]
    return sorted(found, key=lambda folder: (len(folder.run_id), folder.run_id))


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
    """Read the journals of one rank as one, process by process, and what could not be read."""
    # Each entry says on which ``host`` it was written. Entries before the first start are of an
    # unknown process.
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


def newest_case(folder: RunFolder) -> tuple[Case | None, tuple[Gap, ...]]:
    """Read the newest case, and gaps for newer torn ones; UnreadableRun if none can be read."""
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
