"""Locks that a blocked thread waits for, and who has them.

`file_locks` are the kernel's, `lock_holders` those of a process' own threads; `polled_locks` are
those that Python and native code poll for, `tried_locks` those on a file that is tried again and
again, and `marker_files` tells who made a file whose existence is a lock.
"""

__all__ = ["file_locks", "lock_holders", "polled_locks", "tried_locks"]
