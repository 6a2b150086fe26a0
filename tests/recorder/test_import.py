"""Importing the package is cheap and has no side effects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import lightning_hangcheck

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Program

HEAVY = ("torch", "lightning", "pytorch_lightning", "wandb", "transformers", "rich", "psutil")


def test_an_import_loads_nothing_heavy_and_leaves_no_trace(run: Callable[..., Program]) -> None:
    program = run(
        "import os, sys, threading\n"
        "before = (sys.excepthook, dict(os.environ))\n"
        "import lightning_hangcheck\n"
        "print(before == (sys.excepthook, dict(os.environ)), threading.active_count())\n"
        "print([name for name in sys.modules if name.partition('.')[0] in "
        f"{(*HEAVY, 'networkx', 'multiprocessing', 'ctypes')}])"
    )
    assert program.out == "True 1\n[]\n"
    assert program.err == ""
    assert program.pages() == set()


def test_recording_loads_nothing_heavy(run: Callable[..., Program]) -> None:
    program = run(
        "import sys\nimport lightning_hangcheck as hc\nhc.checkpoint('x')\n"
        f"print([name for name in sys.modules if name.partition('.')[0] in {HEAVY}])"
    )
    assert program.out == "[]\n"


def test_the_public_names_are_those_of_the_contract() -> None:
    assert lightning_hangcheck.__all__ == [
        "HangCheck",
        "HuggingFaceHangCheck",
        "__version__",
        "barrier",
        "beat",
        "checkpoint",
        "gradient_accumulation",
        "guarded_wandb_logger",
        "locked",
        "make_directory",
        "phase",
        "rank_zero_evaluation",
        "rank_zero_first",
        "report_state",
        "section",
        "step",
        "track",
    ]
    assert set(lightning_hangcheck.__all__) <= set(dir(lightning_hangcheck))


def test_beat_taken_before_recording_begins_works_then(run: Callable[..., Program]) -> None:
    program = run(
        "from lightning_hangcheck import beat, checkpoint\n"
        "beat()\nbeat()\ncheckpoint('x')\nbeat()\n"
    )
    assert program.page().beats == 3
