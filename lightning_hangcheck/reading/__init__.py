"""TODO."""

__all__ = [
    "kernel_targets",
    "knowledge",
    "livelock",
    "phase_of_life",
    "place",
    "process_activity",
    "rank_activity",
    "source",
    "thread_locks",
    "torch_waits",
    "wording",
]
