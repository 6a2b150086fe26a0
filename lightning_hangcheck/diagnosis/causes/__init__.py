"""The rules, a file for each family of causes. Each ends with the `Rule` that `engine` asks.

A rule looks at the suspects of a `Situation` and returns a `Finding` or nothing. `gone.crash` is
asked apart: only when the job is over.
"""

__all__ = [
    "collectives",
    "dataloader_worker",
    "fallback",
    "files",
    "gone",
    "locks_across_ranks",
    "own_code",
    "remote",
    "shared_objects",
    "slow",
    "threads",
]
