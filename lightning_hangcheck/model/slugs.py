"""The public vocabulary: verdicts, causes, phases."""

from __future__ import annotations

from typing import Literal, get_args

VerdictKind = Literal[
    "healthy", "suspect", "slow", "hang", "dead", "crashed", "recovered", "finished"
]
Cause = Literal[
    "collective_mismatch", "rank_diverged", "uneven_work", "rank_stalled", "spinning",
    "dataloader_worker", "file_lock", "network_wait", "filesystem_wait", "logger_init",
    "rendezvous", "process_dead", "process_stopped", "thread_deadlock", "gil_held", "model_load",
    "checkpoint_io", "memory_pressure", "slow_progress", "unknown",
]  # fmt: skip
Phase = Literal[
    "startup", "tokenizer", "model_load", "logger_init", "trainer_init", "rendezvous",
    "sanity_check", "dataloading", "training_step", "backward", "optimizer_step", "validation",
    "checkpoint_save", "generate", "teardown",
]  # fmt: skip
SeenIn = Literal["live", "attach", "files"]
"""How evidence was obtained: by a watcher while the job ran, by attaching, or from files."""
Certainty = Literal["proven", "majority", "guess"]
"""What names the culprits: the evidence itself, or that most ranks do otherwise. A guess names no
culprit and is reported separately."""

VERDICT_KINDS: tuple[VerdictKind, ...] = get_args(VerdictKind)
SEVERITY: dict[VerdictKind, int] = {"slow": 1, "suspect": 2, "dead": 3, "hang": 3}
"""Of verdicts on a job that does not advance; of two at the same time, the graver counts."""
CAUSES: tuple[Cause, ...] = get_args(Cause)
