"""What a blocked thread waits for, and who could end that wait.

`system_calls` reads the call's arguments, `polled_locks` the locks that a library polls for;
`holders` adds who holds a lock or has the other end, which only all processes together show.
"""

__all__ = ["file_locks", "holders", "polled_locks", "system_calls"]
