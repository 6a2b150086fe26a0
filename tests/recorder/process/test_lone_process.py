"""When a process counts as the only one of its job, in its console lines."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Program

PLAIN = {"RANK": None, "WORLD_SIZE": None, "LOCAL_RANK": None}
SPEAK = "import lightning_hangcheck as hc\nhc.checkpoint('one')\n"
ALONE, UNKNOWN = "[R0/1][LR0]", "[R?/?][LR?]"


def who(program: Program) -> list[str]:
    return re.findall(r"\[R[^]]*\]\[LR[^]]*\]", program.err)


def test_a_plain_script_is_rank_0_of_1_and_nothing_but_its_lines_says_so(
    run: Callable[..., Program], tmp_path: Path
) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "model.py").write_text(
        "from . import layers\nimport json, os as system\n"
    )
    (tmp_path / "parts" / "layers.py").write_text("SIZE = 3\n")
    program = run("from parts.model import (\n  layers,\n)\n" + SPEAK, **PLAIN)
    assert who(program) == [ALONE]
    assert (program.page().rank, program.page().world_size) == (None, None)
    assert program.journal(f"pid-{program.process.pid}")[0]["rank"] is None


@pytest.mark.parametrize(
    ("script", "own_module"),
    [
        pytest.param("import helper\n", "from lightning.pytorch import Trainer", id="Lightning"),
        pytest.param("from helper import go\n", "def go(): init_process_group(rank=1)", id="group"),
        pytest.param("", None, id="spawn in a branch"),
        pytest.param("import helper\n", "def go(): importlib.import_module(NAME)", id="by name"),
        pytest.param("import not_there_at_all\n", None, id="code that is not found"),
    ],
)
def test_a_script_that_may_start_or_join_others_is_not_known_to_be_alone(
    run: Callable[..., Program], tmp_path: Path, script: str, own_module: str | None
) -> None:
    if own_module is not None:
        (tmp_path / "helper.py").write_text(own_module)
    spawns = "" if script else "if hc is None:\n    torch.multiprocessing.spawn(hc)\n"
    program = run(SPEAK + script + spawns, **PLAIN)
    assert who(program) == [UNKNOWN]


def test_a_framework_that_starts_ranks_is_noticed_once_it_is_imported(
    run: Callable[..., Program],
) -> None:
    framework = "sys.modules['light' + 'ning'] = types.ModuleType('any')\nhc.checkpoint('two')\n"
    program = run(f"import sys, types\n{SPEAK}{framework}", **PLAIN)
    assert who(program) == [ALONE, UNKNOWN]


def test_what_a_launcher_leaves_in_the_environment_counts(run: Callable[..., Program]) -> None:
    """Of launchers that the identity does not read, or whose rank comes later."""
    program = run(
        """
from lightning_hangcheck.identity import identify
from lightning_hangcheck.recorder.process import LoneProcess
for line in '''
NOTHING=1
OMPI_COMM_WORLD_SIZE=1
OMPI_COMM_WORLD_SIZE=2
PMI_SIZE=2
SLURM_NTASKS=4
MASTER_ADDR=node1
RANK=0
LOCAL_RANK=1
'''.split():
    environment = dict([line.split("=")])
    print(line, LoneProcess(environment).is_alone(identify(environment)))
""",
        **PLAIN,
    )
    alone = [line.split()[0] for line in program.out.splitlines() if line.endswith(" True")]
    assert alone == ["NOTHING=1", "OMPI_COMM_WORLD_SIZE=1"]
    assert program.out.count("False") == 6


def test_code_that_has_no_file_is_not_known(run: Callable[..., Program]) -> None:
    program = run(
        f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {SPEAK!r}], check=True)\n",
        **PLAIN,
    )
    assert who(program) == [UNKNOWN]
