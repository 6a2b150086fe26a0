"""What /proc tells of a process: alive, since when, who started it, what it may be asked.

Nothing here needs another program, and nothing pauses the process.
"""

__all__ = [
    "exits",
    "files",
    "last_run",
    "loaded",
    "permission",
    "present_environment",
    "process_tree",
    "vitals",
]
