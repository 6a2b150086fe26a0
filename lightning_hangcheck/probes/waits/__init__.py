"""What a blocked thread waits for, and who could end that wait.

`system_calls` reads the call's arguments, `polled_locks` and `tried_locks` the locks that Python
and native code poll for, and `marker_files` who made a file whose existence is a lock;
`thread_variables` tells which thread another joins, and with `lock_holders` which one has the lock
that another takes, `bystanders` which ends nobody's wait; `holders` adds who holds a lock or has
the other end, which only all processes together show. `connections` are the kernel's tables of
these.
"""

__all__ = [
    "bystanders",
    "connections",
    "file_locks",
    "holders",
    "lock_holders",
    "polled_locks",
    "system_calls",
    "thread_variables",
]
