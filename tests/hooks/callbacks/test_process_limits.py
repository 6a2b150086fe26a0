"""Under a low limit of processes training ends as without us, and it is said what is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from long_tests import LONG_TEST
from processes import PROGRAMS, ending

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# env: access(2), by which a program is looked for, grants that user no reading beyond its own
TORCHRUN = ("env", sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2")
TRAINING = (*TORCHRUN, str(PROGRAMS / "plain_training.py"))
WATCHED = (sys.executable, "-m", "lightning_hangcheck", "run", "--run-dir", "run", "--", *TRAINING)
JUST_ENOUGH = 16
"""torchrun with a thread, two ranks with three of gloo's each, and what starts them."""
SPARE_USER = 61_000  # plus our pid: a user who runs nothing else
pytestmark = [
    *LONG_TEST,
    pytest.mark.skipif(
        os.geteuid() != 0 or not shutil.which("setpriv") or not shutil.which("prlimit"),
        reason="another user without root's rights is needed: the kernel asks nothing of root",
    ),
]


def _run_limited(folder: Path, limit: int, command: Sequence[str]) -> tuple[int, list[str], str]:
    """Run as a user of its own who may read what root may, with so many processes and threads."""
    user = SPARE_USER + os.getpid() % 4000
    folder.mkdir()
    folder.chmod(0o777)
    reading = "-all,+dac_override"
    process = subprocess.Popen(
        [
            *("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"),
            *(f"--inh-caps={reading}", f"--ambient-caps={reading}"),
            *("prlimit", f"--nproc={limit}", *command),
        ],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HOME": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with ending(process):
        out, err = process.communicate(timeout=200)
    return process.returncode, sorted(out.splitlines()), err


@pytest.fixture(scope="module")
def without_us(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, list[str]]:
    """The training's exit code and output with room for just itself; more room changes neither."""
    folder = tmp_path_factory.mktemp("without_us") / "plain"
    code, out, errors = _run_limited(folder, JUST_ENOUGH, TRAINING)
    assert code == 0, errors
    return code, out


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        (JUST_ENOUGH, ("the command runs unwatched",)),
        (120, ("starts no further threads of ours",)),
        # how many threads are there at that moment depends on how fast others end
        (150, ("starts no further threads of ours", "offers no flight record")),
    ],
)
def test_training_ends_as_without_us(
    limit: int, said: tuple[str, ...], without_us: tuple[int, list[str]], tmp_path: Path
) -> None:
    code, out, errors = _run_limited(tmp_path / "watched", limit, WATCHED)
    assert (code, out) == without_us, errors
    ours = [line for line in errors.splitlines() if line.startswith("[hangcheck]")]
    ours = [line for line in ours if "] watching " not in line]
    assert ours
    assert all(f"(ulimit -u) is {limit}" in line for line in ours), ours
    assert all(any(words in line for words in said) for line in ours), ours
