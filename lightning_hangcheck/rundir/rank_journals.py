"""One rank's journal, though it ran on several nodes: each keeps what it saw in its own folder.

Nodes of a job that were given one run folder have theirs below it. A rank of round 0 on one host
and of round 1 on another is one rank: its processes are put in the order of their starts.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lightning_hangcheck.rundir.journal_reader import read_journal
from lightning_hangcheck.rundir.layout import NODE_PREFIX, RunFolder, folders_of_nodes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from lightning_hangcheck.model.evidence import Gap

Entries = list[dict[str, Any]]


def folders_of_job(folder: RunFolder) -> list[RunFolder]:
    """Return the run folders of all nodes that share one with this one, this one first."""
    top = RunFolder(folder.path.parent)
    below = folder.path.name.startswith(NODE_PREFIX) and top.run_file.exists()
    if not below:
        return [folder, *folders_of_nodes(folder)]
    return list(dict.fromkeys([folder, top, *folders_of_nodes(top)]))


def journals_of_job(folder: RunFolder) -> dict[str, list[Path]]:
    """Return all journals of a job by their names, those of processes of other nodes left out.

    Args:
        folder: Of one of its nodes.

    Raises:
        OSError: That folder cannot be read; one of another node that cannot is left out.
    """
    own, *others = folders_of_job(folder)
    unnumbered = {path.stem: [path] for path in own.journals.glob("pid-*.jsonl")}
    return journals_in([own, *others]) | unnumbered


def journals_in(folders: Iterable[RunFolder]) -> dict[str, list[Path]]:
    """Return the journals of ranks by their names, such as ``rank-3``: one for each node.

    Args:
        folders: Of nodes; one that cannot be read is left out.
    """
    found: dict[str, list[Path]] = {}
    for one in folders:
        with suppress(OSError):
            for path in one.journals.glob("rank-*.jsonl"):
                found.setdefault(path.stem, []).append(path)
    return dict(sorted(found.items(), key=lambda item: (len(item[0]), item[0])))


def read_rank(paths: Iterable[Path]) -> tuple[Entries, tuple[Gap, ...]]:
    """Read the journals of one rank as one; each entry says on which ``host`` it was written.

    Args:
        paths: Of that rank, one for each node on which it ran.

    Returns:
        The entries, process by process, and what could not be read.
    """
    processes: list[Entries] = []
    gaps: list[Gap] = []
    for path in paths:
        entries, unread = read_journal(path)
        processes += _by_process(entries)
        gaps += unread
    ordered = sorted(processes, key=_began)
    return [entry for entries in ordered for entry in entries], tuple(gaps)


def _by_process(entries: Sequence[dict[str, Any]]) -> list[Entries]:
    """Split where a process began; what stands before the first start is of an unknown one."""
    found: list[Entries] = [[]]
    host = ""
    for entry in entries:
        if entry.get("kind") == "start":
            host = str(entry.get("host", ""))
            found.append([])
        entry.setdefault("host", host)
        found[-1].append(entry)
    return [one for one in found if one]


def _began(entries: Entries) -> str:
    """Moments are ISO 8601 UTC, which sort as they are."""
    return str(entries[0].get("at", ""))
