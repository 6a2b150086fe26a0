"""Programs that fork, spawn, exec or patch run as without us: same output, same exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hooks.launching import PACKAGE, as_rank, as_script, run_script

if TYPE_CHECKING:
    from pathlib import Path

PROGRAMS = {
    "forks": """
import datasets, os, sys
print("parent", flush=True)
child = os.fork()
if not child:
    print("child", flush=True)
    sys.exit(4)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""",
    "spawns": """
import datasets, multiprocessing, sys

def work(number):
    import datasets
    return number * number

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(work, [1, 2, 3]))
    child = multiprocessing.get_context("spawn").Process(target=sys.exit, args=(6,))
    child.start()
    child.join()
    print(child.exitcode)
""",
    "execs itself": """
import datasets, os, sys
print(sys.argv, flush=True)
if len(sys.argv) == 1:
    os.execv(sys.executable, [sys.executable, *sys.argv, "again"])
""",
    "ends at once": """
import datasets, os
print("nothing is flushed")
os._exit(9)
""",
    "exits late": """
import atexit, datasets, threading, sys
atexit.register(print, "handler")
threading.Timer(0.2, print, ["thread"]).start()
sys.exit("last words")
""",
    "raises": """
import datasets
raise KeyError("sample")
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_output_and_exit_code_are_the_programs_own(name: str, tmp_path: Path) -> None:
    (tmp_path / "datasets.py").write_text("")
    script = tmp_path / "train.py"
    script.write_text(PROGRAMS[name])
    plain = run_script(script, {}, PACKAGE)
    rank, other = run_script(script, *as_rank(tmp_path)), run_script(script, *as_script(tmp_path))
    assert rank[:2] == other[:2] == plain[:2]
    for errors in (rank[2], other[2]):
        others = [
            line for line in errors.splitlines() if "CHECKPOINT 1: Script started" not in line
        ]
        assert others == plain[2].splitlines()
