"""Which processes record: ranks do; forked and spawned workers, and helpers of a rank, do not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lightning_hangcheck.session.session import SESSION_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Program

WORKER = """
import multiprocessing, os, sys
import lightning_hangcheck as hc
from lightning_hangcheck.recorder.lifecycle import current

def work(how):
    hc.beat()
    hc.checkpoint("worker checkpoint")
    with hc.section("worker section"):
        pass
    current().page.enter_phase("backward", step=99)
    current().note("worker")
    if how == "raise":
        raise ValueError("of a worker")
    if how == "learn":
        current().learn_identity(1, 2, 1)
        hc.checkpoint("now a rank")
    if how == "learn and raise":
        current().learn_identity(1, 2, 1)
        raise ValueError("of a rank")
    if how == "learn and exit":
        current().learn_identity(1, 2, 1)
        try:
            raise ValueError("of a rank")
        except ValueError:
            sys.exit(1)  # as torch's multiprocessing wrapper does

if __name__ == "__main__":
    hc.checkpoint("Script started")
    with hc.section("training"):
        process = multiprocessing.get_context(METHOD).Process(target=work, args=(HOW,))
        process.start()
        process.join()
    print(process.pid)
"""


def worker(method: str, how: str) -> str:
    return WORKER.replace("METHOD", repr(method)).replace("HOW", repr(how))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("how", ["return", "raise"])
def test_a_multiprocessing_worker_leaves_no_trace(
    run: Callable[..., Program], method: str, how: str
) -> None:
    program = run(worker(method, how))
    assert [line.partition(" (")[0] for line in program.said] == [
        "CHECKPOINT 1: Script started",
        "About to call training...",
        "training returned",
    ]
    assert program.pages() == {program.process.pid}
    page = program.page()
    assert (page.beats, page.step, page.ending) == (0, None, "finished")
    assert {entry["pid"] for entry in program.journal()} == {program.process.pid}
    assert program.troubles == []


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_worker_that_learns_its_rank_is_a_rank(run: Callable[..., Program], method: str) -> None:
    """As Lightning's ddp_fork and ddp_spawn do it."""
    program = run(worker(method, "learn"))
    pid = int(program.out)
    assert program.pages() == {program.process.pid, pid}
    page = program.page(pid)
    assert (page.rank, page.world_size, page.ending) == (1, 2, "finished")
    assert page.checkpoint
    assert page.checkpoint.name == "now a rank"
    assert [entry["kind"] for entry in program.journal("rank-1")] == [
        "start",
        "checkpoint",
        "finished",
    ]
    assert program.page().rank == 0


@pytest.mark.skipif(
    sys.version_info >= (3, 13),
    reason="from Python 3.13 on such a child has forgotten its exception when its exit hooks run",
)
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("how", ["learn and raise", "learn and exit"])
def test_such_a_rank_leaves_last_words(run: Callable[..., Program], method: str, how: str) -> None:
    program = run(worker(method, how))
    page = program.page(int(program.out))
    assert page.ending == "raised"
    assert page.last_words.startswith("ValueError: of a rank in work (train.py:")
    assert program.page().ending == "finished"


def test_a_child_forked_by_hand_is_silent_even_when_it_raises(
    run: Callable[..., Program],
) -> None:
    program = run("""
import os, threading
import lightning_hangcheck as hc
hc.checkpoint("parent")
with hc.section("fork"):
    pid = os.fork()
    if pid == 0:
        print("threads", threading.active_count(), flush=True)
        hc.checkpoint("child")
        hc.beat()
        raise ValueError("child")
    os.waitpid(pid, 0)
hc.beat()
""")
    assert program.process.returncode == 0
    assert program.out == "threads 1\n"
    assert [line.partition(" (")[0] for line in program.said] == [
        "CHECKPOINT 1: parent",
        "About to call fork...",
        "fork returned",
    ]
    assert "ValueError: child" in program.err  # Python's own traceback
    assert (program.page().beats, program.page().ending) == (1, "finished")
    assert len(program.pages()) == 1


START_ANOTHER = """
import os, subprocess, sys
import lightning_hangcheck as hc
hc.checkpoint("first")
code = "import lightning_hangcheck as hc; hc.checkpoint('other'); hc.beat()"
shell = ["/bin/sh", "-c", '"$0" -c "$1"; true', sys.executable, code]
subprocess.run(shell, check=True, env=os.environ | CHANGES)
"""


def test_a_program_that_a_rank_starts_is_no_second_rank(run: Callable[..., Program]) -> None:
    """A compile worker, a helper script: it inherits RANK and the session."""
    program = run(START_ANOTHER.replace("CHANGES", "{}"))
    assert program.said == ["CHECKPOINT 1: first"]
    assert program.pages() == {program.process.pid}


def test_a_rank_that_a_plain_program_starts_is_a_rank(run: Callable[..., Program]) -> None:
    """As Lightning's own launcher starts ranks 1 and up from `python train.py`."""
    changes = "{'LOCAL_RANK': '1', 'NODE_RANK': '0', 'WORLD_SIZE': '2'}"
    code = START_ANOTHER.replace("CHANGES", changes)
    program = run(code, RANK=None, WORLD_SIZE=None, LOCAL_RANK=None)
    assert program.said == ["CHECKPOINT 1: first", "CHECKPOINT 1: other"]
    assert "[R?/?][LR?]" in program.err
    assert "[R1/2][LR1]" in program.err
    ranks = {program.page(pid).rank for pid in program.pages()}
    assert ranks == {None, 1}
    assert program.journal(f"pid-{program.process.pid}")
    assert program.journal("rank-1")


def test_a_plain_program_waits_with_its_journal_until_it_knows_its_rank(
    run: Callable[..., Program],
) -> None:
    program = run(
        """
import lightning_hangcheck as hc  # in the first of several, as lightning starts them
from lightning_hangcheck.recorder.lifecycle import current
hc.checkpoint("Script started")
current().learn_identity(0, 2, 0, 29500)
hc.checkpoint("Trainer ready")
""",
        RANK=None,
        WORLD_SIZE=None,
        LOCAL_RANK=None,
    )
    assert "[R?/?][LR?]" in program.err.splitlines()[0]
    assert "[R0/2][LR0]" in program.err.splitlines()[1]
    kinds = [entry["kind"] for entry in program.journal("rank-0")]
    assert kinds == ["start", "checkpoint", "identity", "checkpoint", "finished"]
    assert (program.page().rank, program.page().store_port) == (0, 29500)


def test_ranks_that_a_launcher_started_meet_in_one_session(
    start: Callable[..., Program], tmp_path: Path
) -> None:
    """Without HANGCHECK_SESSION they agree on one by what the launcher gave them all."""
    code = (
        "from lightning_hangcheck.recorder.lifecycle import current\n"
        "import os\nprint(current().session.path)\n"
        "print(os.environ['HANGCHECK_SESSION'])\ninput()\n"
    )
    shared = {
        SESSION_VARIABLE: None,
        "TORCHELASTIC_RUN_ID": "job",
        "HANGCHECK_RUN_DIR": str(tmp_path / "own"),
    }
    ranks = [start(code, RANK=rank, LOCAL_RANK=rank, **shared) for rank in "01"]
    named = [program.hear() for program in ranks]
    exported = [program.hear() for program in ranks]
    assert named[0] == named[1] == exported[0] == exported[1]
    for program in ranks:
        program.finish("\n")
    assert not Path(named[0]).exists(), "the last to leave frees it"
    assert {path.name for path in (tmp_path / "own" / "ranks").iterdir()} == {
        "rank-0.jsonl",
        "rank-1.jsonl",
    }
