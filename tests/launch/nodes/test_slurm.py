"""A real SLURM on one machine: nodes of a step meet, and a later step looks at a job."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from launch.nodes.slurm_cluster import SlurmCluster, missing
from long_tests import WHEN_ASKED_FOR
from processes import PROGRAMS, end, until
from watch.launched import python, record_of, run_words, verdict_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.real
LONGEST_S = 120.0
TRAINING = [sys.executable, str(PROGRAMS / "slurm_training.py")]
NAMED = "--job-name=train"  # Lightning takes jobs called `bash` for a shell


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    why_not = missing()
    if why_not:
        pytest.skip(why_not)
    found = SlurmCluster(tmp_path_factory.mktemp("slurm"))
    try:
        found.start()
        yield found
    finally:
        found.end()


@WHEN_ASKED_FOR
def test_tasks_that_run_hangcheck_meet_below_the_run_folder_that_they_share(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    """Healthy, with Lightning's own SLURM environment: no store but the one inside rank 0."""
    step = cluster.srun([NAMED, *run_words(TRAINING)], tmp_path / "said")
    try:
        assert step.wait(LONGEST_S) == 0, (tmp_path / "said").read_text()
    finally:
        end(step)
    assert "HANG" not in (tmp_path / "said").read_text()
    run = tmp_path / "run"
    assert [verdict_of(one).verdict for one in (run, run / "node-1")] == ["finished", "finished"]
    (job,) = (run / "nodes").iterdir()
    assert sorted(one.name for one in job.iterdir()) == ["first", "node-0", "node-1"]
    record = record_of(run / "node-1")
    assert [rank.rank for rank in record.ranks] == [1]
    assert record.meeting.startswith(f"folder {job}: no store that outlives the ranks")
    assert record.meeting.endswith("this is node 1 of 2")


@WHEN_ASKED_FOR
def test_the_stalled_rank_of_another_node_is_named_by_all_and_all_nodes_end(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    options = ("--stall-timeout", "8", "--on-hang", "abort", "--set", "abort_grace=2")
    words = run_words([*TRAINING, "1"], *options)
    step = cluster.srun([NAMED, *words], tmp_path / "said")
    try:
        assert step.wait(LONGEST_S) == 75, (tmp_path / "said").read_text()
    finally:
        end(step)
    first, second = (verdict_of(tmp_path / one) for one in ("run", "run/node-1"))
    assert (first.verdict, first.culprits, first.victims) == ("hang", (1,), (0,))
    assert (second.verdict, second.culprits) == ("hang", (1,))
    assert (first.world_size, first.nnodes) == (2, 2)
    assert "stand_still" in first.summary


@WHEN_ASKED_FOR
def test_a_step_that_overlaps_sees_the_ranks_of_its_job_and_no_others(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    """Another job of the same program runs beside it: SLURM says which processes are whose."""
    sleeping = python("import time; print('here', flush=True); time.sleep(1000)")
    files = [tmp_path / f"job{number}" for number in range(2)]
    steps = [cluster.srun([NAMED, *sleeping], said) for said in files]
    try:
        for said in files:
            until(lambda said=said: said.read_text().count("\n") == 2, "all tasks")
        job = cluster.ask("squeue", "-h", "-o", "%i").split()[0]
        tasks = [cluster.ask("scontrol", "listpids", job, f"hcnode{node}") for node in range(2)]
        pids = {int(row.split()[0]) for table in tasks for row in table.splitlines()[1:]}
        look = ["--overlap", f"--jobid={job}", sys.executable, "-m", "lightning_hangcheck"]
        visit = cluster.srun([*look, "attach", "--run-dir", "look"], tmp_path / "look-said")
        visit.wait(LONGEST_S)
    finally:
        for step in steps:
            end(step)
    folders = [tmp_path / "look", tmp_path / "look" / "node-1"]
    assert {rank.pid for one in folders for rank in verdict_of(one).ranks} == pids
    assert len(pids) == 2
