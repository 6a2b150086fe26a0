"""Programs that only start ranks are known by their command line, and by the same names in both."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from lightning_hangcheck.hooks import zero_code
from lightning_hangcheck.observe.launchers import LAUNCHERS, is_launcher


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("python -m torch.distributed.run --nproc-per-node=2 train.py", True),
        ("/venv/bin/python3.11 -u -X dev -m torch.distributed.run train.py", True),
        ("/venv/bin/python /venv/bin/torchrun --standalone train.py", True),
        ("torchrun train.py", True),
        ("python /venv/bin/accelerate launch train.py", True),
        ("python train.py torchrun", False),
        ("python -m train --launcher torchrun", False),
        ("python -W ignore train.py", False),
        ("python", False),
        ("", False),
    ],
)
def test_a_launcher_is_the_program_and_no_argument(line: str, expected: bool) -> None:
    assert is_launcher(line.split()) is expected


def test_what_each_python_process_runs_knows_the_same_launchers() -> None:
    file = Path(zero_code.__file__).parent / "inject" / "sitecustomize.py"
    told = next(
        ast.literal_eval(node.value)
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_LAUNCHERS"
    )
    assert frozenset(told) == LAUNCHERS
