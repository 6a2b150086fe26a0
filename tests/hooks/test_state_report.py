"""What a rank says of its surroundings when asked."""

from __future__ import annotations

import os
import re
import subprocess
import sys

SECRET = "0123456789abcdef" * 2 + "01234567"
LINE = re.compile(r"^\[[\d:.]+\]\[\+[\d.]+s\]\[R1/2\]\[LR1\]\[PID:\d+\] state(.*)$", re.MULTILINE)


def _lines(code: str, **environment: str) -> list[str]:
    """What a rank says that runs this code, behind the prefix and the word ``state``."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    ranks = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", f"import lightning_hangcheck as hc\n{code}"],
        env={**kept, **ranks, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "Traceback" not in ran.stderr
    assert SECRET not in ran.stderr
    return LINE.findall(ran.stderr)


def test_before_torch_is_imported_it_says_so_and_imports_nothing() -> None:
    lines = _lines("hc.report_state('at the start')\nimport sys\nassert 'torch' not in sys.modules")
    assert " at the start: CUDA: not known yet, torch is not imported" in lines
    assert " at the start: process group: not initialized" in lines
    assert " at the start: environment: RANK=1" in lines
    assert " at the start: environment: MASTER_ADDR is not set" in lines
    (versions,) = [line for line in lines if "versions: " in line]
    assert "lightning_hangcheck " in versions


def test_secrets_are_hidden() -> None:
    lines = _lines("hc.report_state()", WANDB_API_KEY=SECRET)
    assert ": environment: WANDB_API_KEY=[redacted]" in lines


def test_what_our_processes_tell_each_other_is_no_line_and_an_option_is() -> None:
    lines = _lines("hc.report_state()", HANGCHECK_STALL_TIMEOUT="600")
    ours = [line for line in lines if "HANGCHECK_" in line]
    assert ours == [": environment: HANGCHECK_STALL_TIMEOUT=600"]


def test_later_only_what_changed_is_told_of_the_environment() -> None:
    lines = _lines(
        "import os\nhc.report_state('first')\nos.environ['MASTER_ADDR'] = '10.0.0.1'\n"
        "del os.environ['WANDB_MODE']\nhc.report_state('second')",
        WANDB_MODE="offline",
    )
    assert [line for line in lines if line.startswith(" second: environment")] == [
        " second: environment: MASTER_ADDR=10.0.0.1",
        " second: environment: WANDB_MODE is not set",
    ]


def test_with_torch_it_tells_of_devices_backends_and_the_group() -> None:
    lines = _lines(
        "import torch.distributed as dist\n"
        "store = dist.HashStore()\n"
        "dist.init_process_group('gloo', store=store, rank=0, world_size=1)\n"
        "hc.report_state('with a group')\n"
        "dist.destroy_process_group()",
        CUDA_VISIBLE_DEVICES="",
    )
    assert " with a group: CUDA: not available" in lines
    assert " with a group: process group: gloo, rank 0 of 1" in lines
    (backends,) = [line for line in lines if "backends: " in line]
    assert "gloo" in backends
    assert any("versions: python 3." in line and "torch " in line for line in lines)


def test_a_torch_that_refuses_to_answer_is_said_and_costs_nothing_else() -> None:
    lines = _lines(
        "import sys, types\nsys.modules['torch'] = types.ModuleType('torch')\nhc.report_state('x')",
    )
    assert any(line.startswith(" x: CUDA: unknown (AttributeError(") for line in lines)
    assert " x: process group: not initialized" in lines


def test_disabled_it_says_nothing() -> None:
    assert _lines("hc.report_state('x')", HANGCHECK_DISABLE="1") == []
