"""Reads evidence: what a process does, where it stands, and what it waits for.

From samples of one process (`process_activity`, `kernel_targets`, `thread_locks`), from frames and
what is known of other people's code (`knowledge`, `torch_waits`, `place`, `paced_place`, `source`,
`phase_of_life`), and from torch's record (`open_operations`, `messages`, `device_waits`), to what a
rank does (`rank_activity`). `wording` says it. Nothing here compares
ranks or blames one: that is ``diagnosis``.
"""

__all__ = [
    "device_waits",
    "kernel_targets",
    "knowledge",
    "livelock",
    "messages",
    "open_operations",
    "paced_place",
    "phase_of_life",
    "place",
    "process_activity",
    "rank_activity",
    "source",
    "stuck_thread",
    "thread_locks",
    "torch_waits",
    "wording",
]
