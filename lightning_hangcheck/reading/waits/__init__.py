"""What a thread waits for, and where that wait ends: frames, locks, the kernel, other threads."""

__all__ = [
    "free_threads",
    "kernel_targets",
    "late_callers",
    "remembered",
    "seen_before",
    "stuck_thread",
    "thread_locks",
    "torch_waits",
    "wait_chain",
]
