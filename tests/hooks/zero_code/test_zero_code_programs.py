"""Programs that fork, spawn, exec or patch run as without us: same output, same exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hooks.launching import PACKAGE, as_rank, as_script, run_script
from long_tests import WHEN_ASKED_FOR

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


PATCHING = """
import functools, inspect, io, pickle, sys, torch, torch.distributed as dist
from torch.utils.data import DataLoader

before = torch.save

@functools.wraps(before)
def counted(*arguments, **named):
    print("saving")
    return before(*arguments, **named)

torch.save = torch.serialization.save = counted
DataLoader.__init__ = functools.wraps(DataLoader.__init__)(
    lambda self, *rest, first=DataLoader.__init__, **named: first(self, *rest, **named)
)

class Loader(DataLoader):
    def __init__(self, data):
        super().__init__(data, batch_size=2)

buffer = io.BytesIO()
torch.save(torch.ones(2), buffer)
buffer.seek(0)
print(torch.load(buffer), inspect.signature(torch.load), inspect.signature(dist.barrier))
print(pickle.loads(pickle.dumps(torch.load)) is torch.load, pickle.dumps(dist.init_process_group))
print([batch.tolist() for batch in Loader(torch.arange(6))], isinstance(Loader([0]), DataLoader))
try:
    dist.barrier()
except ValueError as error:
    print(error)
dist.init_process_group("gloo", init_method="tcp://localhost:0", rank=0, world_size=1)
dist.barrier()
dist.destroy_process_group()
torch.load("no such file")
"""


@WHEN_ASKED_FOR
@pytest.mark.real
def test_a_script_that_patches_inspects_and_pickles_what_is_watched(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PATCHING)
    plain, watched = run_script(script, {}, PACKAGE), run_script(script, *as_rank(tmp_path))
    assert plain[1].startswith("saving\n"), plain[2]
    assert watched[:2] == plain[:2]
    assert watched[2].splitlines()[-1] == plain[2].splitlines()[-1]
    for section in ("torch.save", "init_process_group", "destroy_process_group"):
        assert f"About to call {section}..." in watched[2]
    assert "dist.barrier returned" in watched[2]
    assert "torch.load of a checkpoint raised FileNotFoundError" in watched[2]
