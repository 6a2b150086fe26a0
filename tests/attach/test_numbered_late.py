"""`hangcheck attach` finds ranks that were numbered after their processes had started."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.attach.job_search import find_jobs, look_around

if TYPE_CHECKING:
    from pathlib import Path

    from processes import StartProgram


def test_ranks_that_were_numbered_late_are_one_job(program: StartProgram, tmp_path: Path) -> None:
    """They have torch in their memory, as it seems; who has not is not asked for it."""
    library = tmp_path / "libtorch.so"
    library.write_bytes(b"\0" * 4096)
    ranks = [program("numbered_late.py", "loads", str(library), str(rank)) for rank in (0, 1)]
    other = program("numbered_late.py")
    machine = look_around()
    (job,) = find_jobs(machine, [ranks[1].pid])
    assert [(one.rank, one.pid, one.world_size) for one in job.ranks] == [
        (0, ranks[0].pid, 4),
        (1, ranks[1].pid, 4),
    ]
    assert machine.processes[other.pid].process.identity.rank is None
