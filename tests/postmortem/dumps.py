"""Composes flight-record dumps of torch (version 2.9 of their form), a few lines for a job."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_hangcheck.judge import judge
from lightning_hangcheck.postmortem.postmortem import case_of, read_left

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lightning_hangcheck.model.verdict import Verdict

SHARED = Path(__file__).resolve().parents[3] / "shared"
LEFT_BEHIND = Path(os.environ.get("HANGCHECK_LEFT_BEHIND", SHARED / "left-behind"))
"""Real dumps and logs, which are not part of this repository."""
SECOND = 1_000_000_000
BEGAN = 1_700_000_000 * SECOND
Groups = "Mapping[str, Sequence[int]]"


def did(
    number: int,
    op: str = "all_reduce",
    *,
    group: str = "0",
    ended: bool = False,
    size: int = 4,
    at_s: float | None = None,
    frames: Sequence[tuple[str, str, int]] = (),
    of_block: bool = False,
) -> dict[str, Any]:
    """An operation that a rank entered; not ended unless said so."""
    return {
        "process_group": (group, ""),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "profiling_name": f"nccl:{op}",
        "is_p2p": False,
        "retired": ended,
        "state": "completed" if ended else "scheduled",
        "input_sizes": [] if of_block else [[size]],
        "input_dtypes": [] if of_block else ["Float"],
        "at_s": at_s,
        "frames": [{"name": name, "filename": file, "line": line} for name, file, line in frames],
    }


def posted(number: int, text: str, *, group: str, ended: bool = False) -> dict[str, Any]:
    """A message, by ranks of its group: ``send 0->1``, ``recv 1<-0``."""
    entry = did(3, group=group, ended=ended)
    return {**entry, "p2p_seq_id": number, "profiling_name": f"nccl:{text}", "is_p2p": True}


def dump(
    rank: int,
    *entries: dict[str, Any],
    groups: Mapping[str, Sequence[int]],
    counted: Mapping[str, tuple[int, int]] | None = None,
    began_s: float = 0.0,
    first_record: int = 0,
) -> dict[str, Any]:
    """What a rank dumps: its operations, each a second younger than the one before.

    A group of its own tells its number, as jobs with expert parallelism have one. Of the job's
    groups, ``0`` the default one, only its own are written; ``counted`` are the numbers entered
    last and ended last of each. ``first_record`` is the number of its first record.
    """
    own = {name: ranks for name, ranks in groups.items() if rank in ranks}
    own[str(1000 + rank)] = [rank]
    local = {name: number for number, name in enumerate(sorted(own, key=int))}
    told = []
    for at, entry in enumerate(entries):
        seconds = entry["at_s"] if entry["at_s"] is not None else began_s + at
        whole = {**entry, "time_created_ns": BEGAN + int(seconds * SECOND), "timeout_ms": 600_000}
        whole |= {"record_id": first_record + at, "pg_id": local[entry["process_group"][0]]}
        told.append({name: one for name, one in whole.items() if name != "at_s"})
    return {
        "version": "2.9",
        "pg_config": {
            name: {
                "name": name,
                "desc": "default_pg" if name == "0" else f"GROUP_{name}",
                "ranks": str(list(ranks)),
            }
            for name, ranks in own.items()
        },
        "pg_status": {
            str(number): {
                "last_enqueued_collective": (counted or {}).get(name, (-1, -1))[0],
                "last_started_collective": -1,
                "last_completed_collective": (counted or {}).get(name, (-1, -1))[1],
            }
            for name, number in local.items()
        },
        "entries": told,
    }


def write(folder: Path, dumps: Mapping[str, dict[str, Any]]) -> Path:
    """Write dumps as torch pickles them, by the names of their files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, one in dumps.items():
        (folder / name).write_bytes(pickle.dumps(one, protocol=2))
    return folder


def judged(folder: Path, dumps: Mapping[int, dict[str, Any]]) -> Verdict:
    """Write dumps of ranks, read and judge them."""
    return judged_files([write(folder, {f"dump_{rank}": one for rank, one in dumps.items()})])


def judged_files(paths: Sequence[Path]) -> Verdict:
    """Read and judge what lies there."""
    return judge(case_of(read_left(list(map(str, paths))), "test"))
