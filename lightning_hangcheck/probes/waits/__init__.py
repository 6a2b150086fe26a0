"""What a blocked thread waits for, and who could end that wait.

`system_calls` reads the call's arguments, `locks` tells of locks and who has them;
`thread_variables` which thread another joins, `bystanders` which ends nobody's wait; `holders` adds
who holds a lock or has the other end, which only all processes together show. `connections` are the
kernel's tables of these.
"""

__all__ = ["bystanders", "connections", "holders", "locks", "system_calls", "thread_variables"]
