"""A real model whose device map puts parts beside the GPU is told once, in the journal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from long_tests import WHEN_ASKED_FOR
from processes import until

PROGRAM = """
import transformers, lightning_hangcheck as hc
from lightning_hangcheck.hooks.models import offloaded_so_far, show_class_and_device
from lightning_hangcheck.recorder.lifecycle import current

config = transformers.GPT2Config(n_layer=1, n_head=1, n_embd=8, vocab_size=16)
model = transformers.GPT2LMHeadModel(config)
show_class_and_device(model, current())
for device_map in ({"": "cpu"}, {"transformer": 0, "lm_head": "cpu"}):
    model.hf_device_map = device_map  # as accelerate leaves it
    show_class_and_device(model, current())
    show_class_and_device(model, current())
with hc.phase("generate"):
    pass
print(tuple(offloaded_so_far))
"""
TOLD = "GPT2LMHeadModel, parts on cpu (device map)"


@WHEN_ASKED_FOR
@pytest.mark.real
def test_it_reaches_the_journal_and_the_phases_of_the_process(tmp_path: Path) -> None:
    """``real``: it imports transformers and torch."""
    ledger = tmp_path / "ledger.jsonl"
    environment = {"HANGCHECK_RUN_DIR": str(tmp_path / "run"), "HANGCHECK_LEDGER": str(ledger)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **environment, "RANK": "0", "WORLD_SIZE": "1"},
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True,
        start_new_session=True,  # else it is of one job with the rank of a test beside it
    )  # fmt: skip
    assert done.stdout == f"({TOLD!r},)\n", done.stderr

    def offloaded() -> list[str]:
        journals = Path(tmp_path / "run" / "ranks").glob("*.jsonl")
        lines = [json.loads(line) for one in journals for line in one.read_text().splitlines()]
        return [one["what"] for one in lines if one["kind"] == "offloaded"]

    # the sidecar carries the last lines over, and outlives the process for that
    assert until(offloaded, "the journal") == [TOLD]
    (*_, ended) = map(json.loads, ledger.read_text().splitlines())
    assert ended["offloaded"] == [TOLD]
