"""Real hangs, recorded once on two gloo ranks (torch 2.13, lightning 2.6.6).

Machine paths are replaced, everything else is as it was taken.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from lightning_hangcheck.diagnosis import judge
from lightning_hangcheck.model.case import Case

GOLDEN = Path(__file__).parent / "golden"
EXPECTED = {
    "barrier_in_prepare_data": ("hang", (0,), "rank_diverged", "Samples.prepare_data"),
    "checkpoint_callback_on_rank_0": ("hang", (0,), "rank_diverged", "trainer.is_global_zero"),
    "groups_in_different_order": ("hang", (1,), "collective_mismatch", "all_reduce of group 2"),
    "l_allgather_global_zero": ("hang", (0,), "rank_diverged", "X.on_validation_epoch_end"),
    "l_barrier_in_prepare_data": ("hang", (0,), "rank_diverged", "D.prepare_data"),
    "l_stopiteration_break_rank": ("hang", (1,), "rank_diverged", "last agreed #26"),
    "l_wandb_stall": ("suspect", (0,), "logger_init", "rank 1 waits for it in barrier"),
    "new_group_on_members_only": ("hang", (0,), "rank_diverged", "in form_evaluation_group"),
    "p_busy_loop": ("suspect", (1,), "spinning", "p_busy_loop (user/train.py:81)"),
    "p_input_prompt": ("suspect", (0,), "rank_stalled", "p_input_prompt (user/train.py:133)"),
    "p_loader_worker_hang": ("suspect", (1,), "dataloader_worker", "HangDS.__getitem__"),
    "p_missing_rank": ("hang", (0, 1), "rendezvous", "process group to form"),
    "p_sigstop": ("hang", (1,), "process_stopped", "p_sigstop (user/train.py:74)"),
    "p_straggler": ("healthy", (), None, "all 2 ranks advance"),
    "p_wrong_port": ("hang", (0, 1), "rendezvous", "MASTER_ADDR:MASTER_PORT"),
    "receive_without_send": ("hang", (0,), "rank_diverged", "waits in recv"),
    "uneven_ddp_batches": ("hang", (1,), "uneven_work", "in barrier called in train"),
    "uneven_validation_batches": ("hang", (1,), "uneven_work", "last agreed #63"),
}
"""Where it was not recorded what a system call waits for, anything may end it, for as long as 300
seconds: `l_wandb_stall`, `p_input_prompt`, `p_loader_worker_hang`."""


def _read(name: str) -> Case:
    return msgspec.json.decode((GOLDEN / f"{name}.json").read_bytes(), type=Case)


def test_every_recorded_case_is_expected() -> None:
    assert {file.stem for file in GOLDEN.glob("*.json")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_recorded_case_is_judged_as_what_it_was(name: str) -> None:
    kind, culprits, cause, words = EXPECTED[name]
    verdict = judge(_read(name))
    assert (verdict.verdict, verdict.culprits, verdict.cause) == (kind, culprits, cause)
    assert words in verdict.summary
    assert set(verdict.culprits).isdisjoint(verdict.victims)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_recorded_case_tells_no_machine(name: str) -> None:
    text = (GOLDEN / f"{name}.json").read_text()
    allowed = ("/venv/", "/usr/lib/", "/home/user/")
    files = {piece for piece in text.split('"') if piece.startswith("/")}
    assert all(file.startswith(allowed) for file in files)
