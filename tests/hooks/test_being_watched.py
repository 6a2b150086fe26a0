"""A node is watched once, and a sidecar that is lost is replaced three times at most."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from long_tests import WHEN_ASKED_FOR, real_when_asked_for
from processes import RunningProgram, is_sidecar, marked_processes, runs, until
from recorded_run import job_session
from watch.launched import verdict_of

from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.files import decode
from lightning_hangcheck.session.session import SESSION_VARIABLE, SidecarFacts

if TYPE_CHECKING:
    from collections.abc import Callable

    Start = Callable[..., RunningProgram]

REPLACEMENTS = 3


def sidecar_pid(file: Path, other_than: set[int]) -> int | None:
    try:
        pid = decode(file.read_bytes(), SidecarFacts, str(file)).pid
    except (OSError, UnreadableRun):
        return None
    return None if pid in other_than else pid


def sidecars_of(session: Path) -> list[psutil.Process]:
    mark = os.environ["HANGCHECK_TEST_SESSION"]
    return [
        process
        for process in marked_processes(mark)
        if is_sidecar(process) and runs(process, str(session))
    ]


@real_when_asked_for
def test_lost_sidecar_is_replaced_three_times_and_training_goes_on(
    program: Start, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    job = program("hooks_sidecar.py", HANGCHECK_RUN_DIR=str(tmp_path / "run"))
    file = tmp_path.joinpath(job.first_words, "sidecar.json")
    seen: set[int] = set()
    for _ in range(1 + REPLACEMENTS):
        pid = until(lambda: sidecar_pid(file, seen), "a sidecar")
        # the process that started it leaves as soon as it is there
        until(lambda: len(sidecars_of(file.parent)) == 1, "one a node")
        seen.add(pid)
        os.kill(pid, signal.SIGKILL)
    until(lambda: not sidecars_of(file.parent), "the last one to go")
    assert sidecar_pid(file, seen) is None
    assert job.process.poll() is None, "training goes on"
    assert capfd.readouterr().err.count("a new sidecar was started") == 1, "said once"


@pytest.mark.real
def test_the_sidecar_is_no_child_of_the_rank_and_outlives_its_launchers_sweep(
    program: Start, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """An actor of Ray kills its children as it exits; how its job ended must be told yet."""
    folder = tmp_path / "run"
    job = program("hooks_sidecar.py", HANGCHECK_RUN_DIR=str(folder), HANGCHECK_ON_HANG="abort")
    file = tmp_path.joinpath(job.first_words, "sidecar.json")
    sidecar = until(lambda: sidecar_pid(file, set()), "a sidecar")
    rank = psutil.Process(job.pid)
    until(lambda: sidecar_pid(file, set()) and not rank.children(), "no child, no zombie")
    assert os.getsid(sidecar) != os.getsid(job.pid)
    until(lambda: _recorded_ranks(tmp_path) == [job.pid], "the rank in run.json")
    for process in (*rank.children(recursive=True), rank):
        process.kill()
    job.process.wait(120)
    until((folder / "verdict.json").exists, "what became of the job")
    verdict = verdict_of(folder)
    assert (verdict.verdict, verdict.culprits) == ("crashed", (0,))
    assert "HANGCHECK_ON_HANG=abort needs hangcheck run" in capfd.readouterr().err


@real_when_asked_for
@pytest.mark.parametrize("rank", ["0", "1"])
def test_none_is_started_by_a_second_rank_of_a_node_nor_beside_hangcheck_run(
    rank: str, program: Start, tmp_path: Path
) -> None:
    variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2"}
    if rank == "0":
        variables[SESSION_VARIABLE] = str(job_session(tmp_path).path)
    job = program("hooks_sidecar.py", HANGCHECK_RUN_DIR=str(tmp_path / "run"), **variables)
    assert not sidecars_of(Path(job.first_words))


@real_when_asked_for
def test_children_that_set_their_rank_themselves_are_watched_together(
    program: Start, tmp_path: Path
) -> None:
    """As a notebook starts its ranks: the parent makes no callback and has no session."""
    job = program("hooks_forked.py", "told", "2", HANGCHECK_RUN_DIR=str(tmp_path / "run"))
    said = [job.first_words.split(), job.announcement().split()]
    (session,) = {folder for _, folder in said}
    until(lambda: sidecar_pid(Path(session, "sidecar.json"), set()), "a sidecar")
    ranks = {int(pid) for pid, _ in said}
    until(lambda: set(_recorded_ranks(tmp_path)) == ranks, "both in run.json")


@pytest.mark.real
@pytest.mark.parametrize("size", [pytest.param("1", marks=WHEN_ASKED_FOR), "2"])
def test_a_child_that_nobody_told_its_rank_is_watched_if_alone_else_it_says_so(
    size: str, program: Start, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    job = program("hooks_forked.py", "untold", size, HANGCHECK_RUN_DIR=str(tmp_path / "run"))
    session = Path(job.first_words.split()[1])
    if size == "1":
        until(lambda: sidecar_pid(session / "sidecar.json", set()), "a sidecar")
    else:
        job.announcement()
        assert capfd.readouterr().err.count("this rank is not watched") == 2


def _recorded_ranks(folder: Path) -> list[int]:
    """Process ids of the ranks in the run.json of all run folders below this one.

    An empty one claims its folder until the first record is written.
    """
    written = filter(None, (file.read_text() for file in folder.glob("run*/run.json")))
    return [rank["pid"] for record in map(json.loads, written) for rank in record["ranks"]]
