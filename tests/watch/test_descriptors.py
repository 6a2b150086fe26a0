"""How many files the sidecar may have open: more than the job's soft limit, which stays."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

import psutil
import pytest
from launched import start_run
from processes import end, end_by_pid, is_sidecar, until

if TYPE_CHECKING:
    from pathlib import Path

SOFT = 200


@pytest.mark.real
def test_the_sidecar_raises_its_own_soft_limit_up_to_the_hard_one(tmp_path: Path) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowered = ("bash", "-c", f'ulimit -Sn {SOFT}; exec "$@"', "bash")
    command = ["bash", "-c", "ulimit -Sn; exec sleep 60"]
    job = start_run(tmp_path, command, prefix=lowered)
    try:
        launcher = psutil.Process(job.pid)

        def limit() -> int | None:
            """The sidecar's own, once it has raised that."""
            for child in launcher.children(recursive=True):
                if is_sidecar(child):
                    soft, _ = child.rlimit(psutil.RLIMIT_NOFILE)
                    return soft if soft > SOFT else None
            return None

        soft = until(limit, "the sidecar to raise its limit")
        assert SOFT < soft <= hard or hard == resource.RLIM_INFINITY
        assert launcher.rlimit(psutil.RLIMIT_NOFILE) == (SOFT, hard)
        assert job.stdout is not None
        assert job.stdout.readline().strip() == str(SOFT), "the command's is as it was"
    finally:
        end_by_pid(psutil.Process(job.pid).children(recursive=True))
        end(job)
